"""Faults of device code, one a row: each takes away one release, acquire, warp barrier or async-proxy fence.

The text is found once in its file.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str  # under src/
    find: str
    replace: str
    kernels: str  # the one file under src/cuda/ that is compiled with the fault
    tests: tuple[str, ...]  # tried in this order until one fails; names of TESTS


# name -> (program before the test program, its filter, environment)
SANITIZER = ("compute-sanitizer", "--tool", "racecheck", "--report-api-errors", "no", "--error-exitcode", "9")
LOAD = {"HEDDLE_ROUNDS": "400", "HEDDLE_TOKENS": "2048"}
TESTS = {
    "parity": ((), "*Parity.Grid/*2_ranks:*Parity.Grid/*three_slots:*Parity.Grid/*five_slots", {}),
    "parity whole": ((), "*Parity.Whole/*2_ranks:*Parity.Whole/*three_slots:*Parity.Whole/*five_slots", {}),
    "rounds": ((), "*Rounds*/token_major_2_ranks:*Rounds*/expert_major_2_ranks:*Rounds*/token_major_4_ranks", {}),
    "rounds whole": (
        (),
        "*Rounds*/whole_token_major_2_ranks:*Rounds*/whole_expert_major_2_ranks:*Rounds*/whole_*_4_ranks",
        {},
    ),
    "load": ((), "*Rounds*/token_major_2_ranks:*Rounds*/expert_major_2_ranks", LOAD),
    "load whole": ((), "*Rounds*/whole_token_major_2_ranks:*Rounds*/whole_expert_major_2_ranks", LOAD),
    "racecheck": (SANITIZER, "*Lockstep.Parity/token_major_2_ranks", {}),
}
STEPS = ("parity", "rounds", "load", "racecheck")
# racecheck reports hazards of the pumps as they are (README.md).
WHOLE = ("parity whole", "rounds whole", "load whole")

MUTANTS = [
    Mutant(
        "an add does not release what was stored",
        "device/atomic.hpp",
        "red.release.sys.global.add.u64",
        "red.relaxed.sys.global.add.u64",
        "steps_grid.cu",
        STEPS,
    ),
    Mutant(
        "a publisher announces without a release", "device/board.hpp", "    release_all();\n", "", "whole.cu", WHOLE
    ),
    Mutant(
        "a look does not acquire what was stored",
        "device/atomic.hpp",
        "ld.acquire.sys.global.u64",
        "ld.relaxed.sys.global.u64",
        "steps_grid.cu",
        STEPS,
    ),
    Mutant(
        "a look of a whole call does not acquire",
        "device/atomic.hpp",
        "ld.acquire.sys.global.u64",
        "ld.relaxed.sys.global.u64",
        "whole.cu",
        WHOLE,
    ),
    Mutant(
        "a row is announced before all lanes of the warp have stored it",
        "protocol/port.hpp",
        "    coop.worker_sync();  // the lane that announces must come after the lanes that stored\n",
        "",
        "steps_grid.cu",
        STEPS,
    ),
    Mutant(
        "lanes raise a word before their first lane has cleared it",
        "device/board.hpp",
        "    if (coop_.lane() == 0) board_->told[worker_] = 0;\n    coop_.worker_sync();\n",
        "    if (coop_.lane() == 0) board_->told[worker_] = 0;\n",
        "whole.cu",
        WHOLE,
    ),
    Mutant(
        "a bulk store starts before all lanes of the warp have stored their words",
        "cuda/dispatch_movers.hpp",
        "    bulk::fence_block();\n    coop_.worker_sync();\n    if (coop_.lane() != 0) return;\n    const std::byte* at",
        "    bulk::fence_block();\n    if (coop_.lane() != 0) return;\n    const std::byte* at",
        "whole.cu",
        WHOLE,
    ),
    Mutant(
        "a bulk store without the fence after what lanes stored",
        "cuda/dispatch_movers.hpp",
        "    bulk::fence_block();\n    coop_.worker_sync();\n    if (coop_.lane() != 0) return;\n    const std::byte* at",
        "    coop_.worker_sync();\n    if (coop_.lane() != 0) return;\n    const std::byte* at",
        "whole.cu",
        WHOLE,
    ),
    Mutant(
        "a bulk load without the fence after the wait for its row",
        "cuda/dispatch_movers.hpp",
        "      bulk::fence_device();  // after the wait for the row\n",
        "",
        "whole.cu",
        WHOLE,
    ),
]
