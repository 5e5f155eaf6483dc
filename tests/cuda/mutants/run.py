#!/usr/bin/env python3
"""Compiles each fault of table.py into a test program of its own and says which test finds it. Needs a GPU and nvcc, but
for --lanes.

run.py --build DIR [--scratch DIR] [--only WORD] [--jobs N] [--json FILE]    DIR: a tree that scripts/gpu_check built
run.py --lanes --build DIR [...]                                             those a CPU can show; DIR: preset tsan's, built
run.py --check                                                               only looks if the table fits the sources

Exits 1 if the sources as they are fail, or a fault does not fit them. That a fault is not found is no failure: what
orders memory between GPUs may show nowhere else.
"""

import argparse
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from table import LANES, MUTANTS, STEPS, TESTS, WHOLE, LaneFault, Mutant

SOURCE = Path(__file__).resolve().parents[3]
PROGRAM = "tests/heddle_cuda_tests"
SIM_PROGRAM = "tests/heddle_sim_tests"
PATIENCE = 40  # seconds of one test: a fault may make ranks wait for their deadlines
AS_THEY_ARE = (
    Mutant("the sources as they are, steps", "", "", "", "steps_grid.cu", STEPS),
    Mutant("the sources as they are, whole calls", "", "", "", "whole.cu", WHOLE),
)

LANES_AS_THEY_ARE = tuple(
    LaneFault(f"the sources as they are, {test}", "", "", "", test, ":".join({one.filter for one in LANES if one.test == test}))
    for test in ("lanes_test.cpp", "pump_test.cpp")
)


def damaged(file, find, replace):
    """The file's text with the fault in it."""
    text = (SOURCE / "src" / file).read_text()
    if text.count(find) != 1:
        raise SystemExit(f"{file}: found {text.count(find)} times, not once: {find}")
    return text.replace(find, replace)


def damages(fault):
    """What it changes: file, find, replace."""
    if fault.file:
        yield fault.file, fault.find, fault.replace
    if getattr(fault, "more", None):
        yield fault.more


class Tree:
    """A built tree: how it compiles a file of kernels, how it links the test program."""

    def __init__(self, build, program):
        self.build = build
        commands = json.loads((build / "compile_commands.json").read_text())
        self.compile = {
            Path(one["file"]).name: one["command"] for one in commands if one["file"].endswith((".cu", "_test.cpp"))
        }
        self.link = self.ask_ninja(program)

    def ask_ninja(self, program):
        told = subprocess.run(
            ["ninja", "-C", self.build, "-t", "commands", program], capture_output=True, text=True, check=True
        )
        return told.stdout.splitlines()[-1].removeprefix(": && ").removesuffix(" && :")

    def make(self, mutant, folder):
        """A test program whose kernels of one file have the fault. Its object goes before the library that has one."""
        put_damaged(mutant, folder)
        words = [word for word in shlex.split(self.compile[mutant.kernels]) if not word.endswith("ccache")]
        words[words.index("-o") + 1] = folder / "kernels.o"
        run_quietly([words[0], f"-I{folder}", *words[1:]], self.build)
        words = shlex.split(self.link)
        place = words.index("-o")
        words[place + 1] = folder / "tests"
        run_quietly([*words[:place], folder / "kernels.o", *words[place:]], self.build)
        return folder / "tests"


class LaneTree(Tree):
    def make(self, fault, folder):
        """A program of the one test file, compiled with the fault in it."""
        put_damaged(fault, folder)
        words = [word for word in shlex.split(self.compile[fault.test]) if not word.endswith("ccache")]
        words[words.index("-o") + 1] = folder / "test.o"
        run_quietly([words[0], f"-I{folder}", *words[1:], "-w"], self.build)
        others = [word for word in shlex.split(self.link) if not word.endswith("_test.cpp.o")]
        others[others.index("-o") + 1] = folder / "tests"
        run_quietly([others[0], folder / "test.o", *others[1:]], self.build)
        return folder / "tests"


def put_damaged(fault, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for damage in damages(fault):
        path = folder / damage[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(damaged(*damage))


def run_quietly(command, where):
    done = subprocess.run([str(word) for word in command], cwd=where, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def finds(program, test):
    prefix, filter, environment = TESTS[test]
    return fails([*prefix, str(program)], filter, environment)


def fails(program, filter, environment):
    """(whether a test failed, its first words about that)"""
    command = [*program, f"--gtest_filter={filter}", "--gtest_fail_fast"]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired:
        return True, f"no end after {PATIENCE} s"
    wanted = ("Failure", "hazard", "wanted", "WARNING: ThreadSanitizer")
    lines = [line for line in done.stdout.splitlines() if any(word in line for word in wanted)]
    if "0 tests from 0" in done.stdout or "[  PASSED  ] 0 tests" in done.stdout:
        raise SystemExit(f"{filter}: no test ran\n{done.stdout}")
    return done.returncode != 0, lines[0].strip()[:100] if lines else f"exit {done.returncode}"


def try_tests(mutant, program):
    result = {"fault": mutant.name, "found by": "", "words": ""}
    started = time.monotonic()
    for test in mutant.tests:
        failed, words = finds(program, test)
        if failed:
            result |= {"found by": test, "words": words}
            break
    return result | {"seconds": round(time.monotonic() - started, 1)}


def try_lanes(fault, program):
    """ThreadSanitizer wants its address ranges free."""
    started = time.monotonic()
    failed, words = fails(["setarch", "-R", str(program)], fault.filter, {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"})
    result = {"fault": fault.name, "found by": "lanes" if failed else "", "words": words}
    return result | {"seconds": round(time.monotonic() - started, 1)}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--only", default="", help="a part of a fault's name")
    parser.add_argument("--jobs", type=int, default=4, help="faults that are tried at a time, on the same GPU")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lanes", action="store_true", help="those of LANES, by a CPU's simulation")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    for mutant in [*MUTANTS, *LANES]:
        for damage in damages(mutant):
            damaged(*damage)
    if options.check:
        return print(f"{len(MUTANTS)} faults of device code fit the sources, and {len(LANES)} for lanes on a CPU")
    build = options.build.resolve()
    tree = LaneTree(build, SIM_PROGRAM) if options.lanes else Tree(build, PROGRAM)
    as_they_are, faults, attempt = (
        (LANES_AS_THEY_ARE, LANES, try_lanes) if options.lanes else (AS_THEY_ARE, MUTANTS, try_tests)
    )
    scratch = (options.scratch or options.build / "mutants").resolve()
    tried = [*as_they_are, *(fault for fault in faults if options.only in fault.name)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = list(
            pool.map(lambda one: tree.make(*one), ((mutant, scratch / str(n)) for n, mutant in enumerate(tried)))
        )
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(attempt, tried, programs):
            results.append(result)
            found = f"found by {result['found by']}" if result["found by"] else "not found"
            print(f"{result['fault']:76}{found:28}{result['seconds']:6.1f} s  {result['words']}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    sound = not any(result["found by"] for result in results[: len(as_they_are)])
    caught = sum(bool(result["found by"]) for result in results[len(as_they_are) :])
    print(f"{caught} of {len(results) - len(as_they_are)} faults found" if sound else "THE SOURCES AS THEY ARE FAIL")
    sys.exit(not sound)


if __name__ == "__main__":
    main()
