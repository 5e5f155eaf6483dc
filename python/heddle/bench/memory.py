"""Whether a benchmark fits this machine, before it starts, and what it holds."""

from __future__ import annotations

from ..errors import UsageError
from .expect import World
from .options import Options

_DEFAULT_WINDOW = 256 << 20
_PROCESS = 60 << 20  # an interpreter with NumPy


def needed_bytes(options: Options, world: World) -> int:
    """Of all ranks, roughly: batches, outputs, results, windows. Pages of a slab that hold no row are never touched."""
    hits = sum(int((ids >= 0).sum()) for ids in world.ids)
    rows = hits if options.is_slab else sum(world.rows_sent(rank) for rank in range(options.ranks))
    tokens = options.ranks * options.tokens
    batch = tokens * (options.hidden * (1 if options.sends_fp8 else 2) + 2 * options.result_row_bytes)
    outputs = rows * (options.wire_row_bytes + (options.result_row_bytes if options.dtype == "fp8" else 0))
    window = options.window_bytes or _DEFAULT_WINDOW
    return batch + outputs + options.ranks * (window + _PROCESS)


def check_fits(options: Options, world: World) -> None:
    """Raises UsageError with both numbers and what to lower."""
    needed, available = needed_bytes(options, world), available_bytes()
    if available is not None and needed > available:
        raise UsageError(
            f"tokens is {options.tokens}: {options.ranks} ranks of it need {needed / 2**30:.1f} GiB, and "
            f"{available / 2**30:.1f} GiB are free; lower tokens, ranks, hidden or window_bytes"
        )


def held_bytes() -> int | None:
    """Of this process now; what it shares with others is counted by its share. None where Linux does not say."""
    try:
        with open("/proc/self/smaps_rollup") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), None)
    except OSError:
        return None


def available_bytes() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
