"""What the same bytes cost if nothing but memory counts: copied into a window and out of it again, by the same
processes at the same time. The best of a few ways, so that the floor is no straw man."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ..bootstrap import Bootstrap

WAYS = {"64 KiB at a time": 1 << 16, "1 MiB at a time": 1 << 20, "32 MiB at a time": 32 << 20}
_REPEATS = 3


def measure(
    bootstrap: Bootstrap, source: np.ndarray, target: np.ndarray, into: int, out_of: int
) -> dict[str, list[int]]:
    """Nanoseconds of each repeat of each way to copy `into` bytes from source to a window and `out_of` bytes from the
    window to target. Collective: ranks compete for memory as in a real call."""
    source, target = _bytes_of(source), _bytes_of(target)
    results: dict[str, list[int]] = {}
    for name, piece in WAYS.items():
        piece = max(1, min(piece, max(into, out_of, 1)))
        window = np.ones(piece, np.uint8)
        move = _mover(source, target, window, into, out_of)
        move()
        results[name] = [_timed(bootstrap, move) for _ in range(_REPEATS)]
    return results


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _mover(source: np.ndarray, target: np.ndarray, window: np.ndarray, into: int, out_of: int) -> Callable[[], None]:
    """Takes turns: a piece into the window, its share of the rest out of it."""

    def move() -> None:
        moved_in = moved_out = 0
        while moved_in < into or moved_out < out_of:
            step = min(len(window), into - moved_in)
            _copy(window, source, step, moved_in)
            moved_in += step
            due = out_of if moved_in >= into else out_of * moved_in // into
            while moved_out < due:
                step = min(len(window), due - moved_out)
                _copy_out(target, window, step, moved_out)
                moved_out += step

    return move


def _copy(window: np.ndarray, source: np.ndarray, size: int, at: int) -> None:
    """Source bytes [at, at + size), round and round."""
    done = 0
    while done < size:
        begin = (at + done) % len(source)
        step = min(size - done, len(source) - begin)
        window[done : done + step] = source[begin : begin + step]
        done += step


def _copy_out(target: np.ndarray, window: np.ndarray, size: int, at: int) -> None:
    done = 0
    while done < size:
        begin = (at + done) % len(target)
        step = min(size - done, len(target) - begin)
        target[begin : begin + step] = window[done : done + step]
        done += step


def _timed(bootstrap: Bootstrap, move: Callable[[], None]) -> int:
    bootstrap.barrier("floor")
    begin = time.perf_counter_ns()
    move()
    return time.perf_counter_ns() - begin
