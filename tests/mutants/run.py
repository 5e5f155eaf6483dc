#!/usr/bin/env python3
"""Builds each fault of table.py into a library of its own and tries it: the units must pass, the simulation must not.

run.py --source DIR --scratch DIR --driver PROGRAM --tsan-driver PROGRAM -- COMPILER FLAGS...
"""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from table import MUTANTS, Mutant

SCHEDULES = 1000
TSAN_SCHEDULES = 100
PATIENCE = 60  # seconds: a fault may make ranks go round for ever


def fixed_addresses():
    """ThreadSanitizer wants its address ranges free."""
    command = ["setarch", "-R"]
    allowed = shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if allowed else []


class Trial:
    """Whether one build passes; where it does not, what its last words were."""

    def __init__(self, options, mutant):
        self.options = options
        self.mutant = mutant
        self.folder = options.scratch / ("sources_as_they_are" if mutant.name == "" else mutant.name.replace(" ", "_"))
        self.folder = self.folder.with_name(self.folder.name + ("_tsan" if mutant.tsan else ""))

    def damage(self):
        damaged = self.folder / self.mutant.file
        damaged.parent.mkdir(parents=True, exist_ok=True)
        text = (self.options.source / "src" / self.mutant.file).read_text()
        if text.count(self.mutant.find) != 1:
            sys.exit(f"{self.mutant.file}: found {text.count(self.mutant.find)} times, not once: {self.mutant.find}")
        damaged.write_text(text.replace(self.mutant.find, self.mutant.replace))

    def build(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.mutant.file:
            self.damage()
        library = self.folder / "steps.so"
        # Optimised: a put lands on the main stack, where a store into a frame would be of another rank each time.
        flags = ["-fsanitize=thread", "-g1", "-O1"] if self.mutant.tsan else ["-O0"]
        command = [*self.options.compiler, *flags, f"-I{self.folder}", f"-I{self.options.source}/src",
                   f"-I{self.options.source}/include", f"-I{self.options.source}/tests", "-std=c++20", "-w", "-fPIC",
                   "-ffp-contract=off", "-shared", "-Wl,-Bsymbolic", "-o", library,
                   self.options.source / "tests/mutants/library.cpp"]
        subprocess.run(command, check=True)
        return library

    def run(self, what, library):
        tsan = self.mutant.tsan
        driver = [*fixed_addresses(), self.options.tsan_driver] if tsan else [self.options.driver]
        environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1 exitcode=66"}
        try:
            result = subprocess.run([*driver, what, str(TSAN_SCHEDULES if tsan else SCHEDULES), library], text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, env=environment,
                                    errors="replace")
        except subprocess.TimeoutExpired:
            return False, f"no end after {PATIENCE} s"
        return result.returncode == 0, self.last_words(result)

    @staticmethod
    def last_words(result):
        if result.returncode == 66:
            return "ThreadSanitizer: data race"
        lines = [line for line in result.stdout.splitlines() if line.strip()]
        if result.returncode < 0:
            return f"signal {-result.returncode}"
        return next((line for line in lines if line.startswith("seed")), lines[-1] if lines else "")

    def __call__(self):
        started = time.monotonic()
        library = self.build()
        units, words = self.run("units", library)
        simulation, more = self.run("simulate", library)
        return self.mutant, units, simulation, words if not units else more, time.monotonic() - started


def parse():
    parser = argparse.ArgumentParser()
    for name in ("source", "scratch", "driver", "tsan-driver"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--only", default="", help="a part of a fault's name")
    parser.add_argument("compiler", nargs="+")
    return parser.parse_args()


def main():
    options = parse()
    undamaged = [Trial(options, Mutant("", "", "", "", "", tsan=tsan)) for tsan in (False, True)]
    trials = [Trial(options, mutant) for mutant in MUTANTS if options.only in mutant.name]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for _, units, simulation, words, _ in pool.map(lambda trial: trial(), undamaged):
            if not units or not simulation:
                sys.exit(f"the sources as they are fail: {words}")
        results = list(pool.map(lambda trial: trial(), trials))
    failed = 0
    print(f"{'':6}{'fault':62}{'units':8}{'simulation':12}{'s':>5}  first failure")
    for mutant, units, simulation, words, seconds in results:
        failed += not units or simulation
        print(f"{mutant.invariant:6}{mutant.name:62}{'pass' if units else 'FAIL':8}{'SURVIVES' if simulation else 'caught':12}"
              f"{seconds:5.1f}  {words[:100]}")
    print(f"{len(results) - failed} of {len(results)} faults pass the units and are caught by the simulation")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
