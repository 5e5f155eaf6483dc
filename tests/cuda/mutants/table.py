"""Faults of device code, one a row: each takes away one release, acquire, warp barrier or async-proxy fence.

LANES has those that can be put into what a CPU runs, where tests/sim plays workers of many lanes with ThreadSanitizer looking on.
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


class LaneFault(NamedTuple):
    name: str
    file: str  # under src/
    find: str
    replace: str
    test: str  # under tests/sim/: the one file that is compiled with the fault
    filter: str  # of its tests
    more: tuple[str, str, str] | None = None  # file, find, replace: what would make up for it


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

# The cases are small: each lane is a thread to ThreadSanitizer.
PUMPS = "*Pumps.ThreeBlocksOfThree/token_major_2_ranks:*Pumps.BeltsOfTwoRowsAtOnce/expert_major_2_ranks"
STEPS_OF_LANES = "*Lanes.ThreeWorkersOfFourLanes/token_major_2_ranks:*Lanes.ThreeWorkersOfFourLanes/expert_major_2_ranks"
# Before a row is put its lanes meet, and again before it is announced: one of the two is enough where puts are stores.
STORED_AT_ONCE = (
    "protocol/dispatch_rounds.hpp",
    "  writer.write(coop, payload, at);\n  coop.worker_sync();\n",
    "  writer.write(coop, payload, at);\n",
)
LOOK = "std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire)"
ACQUIRE = (LOOK, LOOK.replace("acquire", "relaxed"))
LANES = [
    LaneFault(
        "an add does not release what was stored",
        "device/atomic.hpp",
        "fetch_add(n, std::memory_order_release)",
        "fetch_add(n, std::memory_order_relaxed)",
        "lanes_test.cpp",
        STEPS_OF_LANES,
    ),
    LaneFault(
        "a publisher announces without a release",
        "device/atomic.hpp",
        "  store_relaxed(word, value);\n#else\n  store_release(word, value);",
        "  store_relaxed(word, value);\n#else\n  store_relaxed(word, value);",
        "pump_test.cpp",
        PUMPS,
    ),
    LaneFault(
        "a look does not acquire what was stored",
        "device/atomic.hpp",
        *ACQUIRE,
        "lanes_test.cpp",
        STEPS_OF_LANES,
    ),
    LaneFault(
        "a look of a whole call does not acquire",
        "device/atomic.hpp",
        *ACQUIRE,
        "pump_test.cpp",
        PUMPS,
    ),
    LaneFault(
        "a row is announced before all lanes of the warp have stored it",
        "protocol/port.hpp",
        "    coop.worker_sync();  // the lane that announces must come after the lanes that stored\n",
        "",
        "lanes_test.cpp",
        STEPS_OF_LANES,
        STORED_AT_ONCE,
    ),
    LaneFault(
        "a worker posts a row before all its lanes have stored it",
        "device/board.hpp",
        "  HEDDLE_HD void post(int peer, int64_t offset, uint64_t value, bool is_sound = true) {\n    coop_.worker_sync();\n",
        "  HEDDLE_HD void post(int peer, int64_t offset, uint64_t value, bool is_sound = true) {\n",
        "pump_test.cpp",
        PUMPS,
        STORED_AT_ONCE,
    ),
    LaneFault(
        "lanes raise a word before their first lane has cleared it",
        "device/board.hpp",
        "    if (coop_.lane() == 0) board_->told[worker_] = 0;\n    coop_.worker_sync();\n",
        "    if (coop_.lane() == 0) board_->told[worker_] = 0;\n",
        "pump_test.cpp",
        "Desks.*",
    ),
    LaneFault(
        "a stage is filled before all lanes have read the row before",
        "cuda/dispatch_movers.hpp",
        "    coop_.worker_sync();\n    return belt_.next();\n",
        "    return belt_.next();\n",
        "pump_test.cpp",
        PUMPS,
    ),
]
