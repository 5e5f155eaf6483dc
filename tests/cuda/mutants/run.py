#!/usr/bin/env python3
"""Compiles each fault of table.py into a test program of its own and says which test finds it. Needs a GPU and nvcc.

run.py --build DIR [--scratch DIR] [--only WORD] [--jobs N] [--json FILE]    DIR: a tree that scripts/gpu_check built
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

from table import MUTANTS, STEPS, TESTS, WHOLE, Mutant

SOURCE = Path(__file__).resolve().parents[3]
PROGRAM = "tests/heddle_cuda_tests"
PATIENCE = 40  # seconds of one test: a fault may make ranks wait for their deadlines
AS_THEY_ARE = (
    Mutant("the sources as they are, steps", "", "", "", "steps_grid.cu", STEPS),
    Mutant("the sources as they are, whole calls", "", "", "", "whole.cu", WHOLE),
)


def damaged(mutant):
    """The file's text with the fault in it."""
    text = (SOURCE / "src" / mutant.file).read_text()
    if text.count(mutant.find) != 1:
        raise SystemExit(f"{mutant.file}: found {text.count(mutant.find)} times, not once: {mutant.find}")
    return text.replace(mutant.find, mutant.replace)


class Tree:
    """A built tree: how it compiles a file of kernels, how it links the test program."""

    def __init__(self, build):
        self.build = build
        commands = json.loads((build / "compile_commands.json").read_text())
        self.compile = {Path(one["file"]).name: one["command"] for one in commands if one["file"].endswith(".cu")}
        self.link = self.ask_ninja()

    def ask_ninja(self):
        told = subprocess.run(
            ["ninja", "-C", self.build, "-t", "commands", PROGRAM], capture_output=True, text=True, check=True
        )
        return told.stdout.splitlines()[-1].removeprefix(": && ").removesuffix(" && :")

    def make(self, mutant, folder):
        """A test program whose kernels of one file have the fault. Its object goes before the library that has one."""
        folder.mkdir(parents=True, exist_ok=True)
        if mutant.file:
            path = folder / mutant.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(damaged(mutant))
        words = [word for word in shlex.split(self.compile[mutant.kernels]) if not word.endswith("ccache")]
        words[words.index("-o") + 1] = folder / "kernels.o"
        run_quietly([words[0], f"-I{folder}", *words[1:]], self.build)
        words = shlex.split(self.link)
        place = words.index("-o")
        words[place + 1] = folder / "tests"
        run_quietly([*words[:place], folder / "kernels.o", *words[place:]], self.build)
        return folder / "tests"


def run_quietly(command, where):
    done = subprocess.run([str(word) for word in command], cwd=where, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def finds(program, test):
    """(whether the test failed, its first words about that)"""
    prefix, filter, environment = TESTS[test]
    command = [*prefix, str(program), f"--gtest_filter={filter}", "--gtest_fail_fast"]
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
    lines = [line for line in done.stdout.splitlines() if "Failure" in line or "hazard" in line or "wanted" in line]
    if "0 tests from 0" in done.stdout or "[  PASSED  ] 0 tests" in done.stdout:
        raise SystemExit(f"{test}: no test ran\n{done.stdout}")
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


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--only", default="", help="a part of a fault's name")
    parser.add_argument("--jobs", type=int, default=4, help="faults that are tried at a time, on the same GPU")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    for mutant in MUTANTS:
        damaged(mutant)
    if options.check:
        return print(f"{len(MUTANTS)} faults of device code fit the sources")
    tree = Tree(options.build.resolve())
    scratch = (options.scratch or options.build / "mutants").resolve()
    tried = [*AS_THEY_ARE, *(mutant for mutant in MUTANTS if options.only in mutant.name)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = list(
            pool.map(lambda one: tree.make(*one), ((mutant, scratch / str(n)) for n, mutant in enumerate(tried)))
        )
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(try_tests, tried, programs):
            results.append(result)
            found = f"found by {result['found by']}" if result["found by"] else "not found"
            print(f"{result['fault']:76}{found:28}{result['seconds']:6.1f} s  {result['words']}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    sound = not any(result["found by"] for result in results[: len(AS_THEY_ARE)])
    caught = sum(bool(result["found by"]) for result in results[len(AS_THEY_ARE) :])
    print(f"{caught} of {len(results) - len(AS_THEY_ARE)} faults found" if sound else "THE SOURCES AS THEY ARE FAIL")
    sys.exit(not sound)


if __name__ == "__main__":
    main()
