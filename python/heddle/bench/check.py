"""Every element of a full-size call against what NumPy says it must be. Exact: the numbers are small and whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import Error
from ..results import Combined, Received
from .expect import Arrivals, World, multipliers, weights_of
from .payload import Payload, bf16_bits, chunks


class WrongResult(Error):
    """A result is not what it must be."""

    code = "wrong result"


def check_dispatch(world: World, rank: int, arrivals: Arrivals, payload: Payload, received: Received) -> int:
    """Number of elements that were compared. Raises WrongResult."""
    place, number = arrivals.place, arrivals.number
    options = world.options
    _same("num_per_expert", received.num_per_expert, _counts(world, rank, arrivals))
    _same("row_source", received.row_source.reshape(-1)[place], number // options.tokens)
    _same("row_token", received.row_token.reshape(-1)[place], number % options.tokens)
    _check_weights(world, rank, arrivals, received)
    rows = received.x.reshape(-1, options.hidden)
    _none_wrong("rows", payload.arrived.num_wrong(number, _Placed(rows, place)), len(number))
    if payload.scales is not None:
        _none_wrong("scales", payload.scales.num_wrong(number, _scale_rows(received.scales, place)), len(number))
    return len(number) * (options.hidden + options.num_scales)


def check_combine(world: World, rank: int, payload: Payload, combined: Combined) -> int:
    """Number of elements that were compared. Raises WrongResult."""
    options = world.options
    own = rank * options.tokens + np.arange(options.tokens)
    times = multipliers(world, rank)
    wrong = 0
    for part in chunks(options.tokens):
        numbers = payload.numbers.rows(own[part]) * times[part, None].astype(np.uint16)
        wrong += int((bf16_bits(numbers) != combined.x[part]).any(axis=1).sum())
    _none_wrong("sums", wrong, options.tokens)
    return combined.x.size


def expert_rows(arrivals: Arrivals, payload: Payload, y: np.ndarray) -> None:
    """Writes what the experts make of the rows that arrived, bfloat16 bits of row x 2^exponent, to y [rows, H]."""
    for part in chunks(len(arrivals.number)):
        numbers = payload.numbers.rows(arrivals.number[part]).astype(np.uint16)
        y[arrivals.place[part]] = bf16_bits(numbers << arrivals.exponent[part, None].astype(np.uint16))


def _counts(world: World, rank: int, arrivals: Arrivals) -> np.ndarray:
    first, last = world.bounds[rank], world.bounds[rank + 1]
    if world.options.is_slab:
        return np.array(arrivals.counts)
    local = [ids[(ids >= first) & (ids < last)] - first for ids in world.ids]
    return np.bincount(np.concatenate(local), minlength=last - first)


def _check_weights(world: World, rank: int, arrivals: Arrivals, received: Received) -> None:
    options = world.options
    source, token = np.divmod(arrivals.number, max(1, options.tokens))
    ids = np.stack(world.ids)[source, token] if len(token) else np.empty((0, options.topk), np.int64)
    first, last = world.bounds[rank], world.bounds[rank + 1]
    if not options.is_slab:
        _same("ids", received.ids, np.where((ids >= first) & (ids < last), ids - first, -1))
        return
    expert = first + arrivals.place // (options.ranks * options.tokens)
    weights = np.where(ids == expert[:, None], weights_of(options)[0] if options.tokens else 0, 0).sum(axis=1)
    seen: Any = received.weights
    _same("weights", seen.reshape(-1)[arrivals.place], weights)


class _Placed:
    """Rows in the order of `place`, gathered a chunk at a time."""

    def __init__(self, rows: np.ndarray, place: np.ndarray) -> None:
        self._rows, self._place = rows, place

    def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
        part, columns = index
        return self._rows[self._place[part], columns]


def _scale_rows(scales: Any, place: np.ndarray) -> np.ndarray:
    """[n, P] of row-major or slab scales."""
    if scales.ndim == 2:
        return scales[place]
    group = scales.shape[1]
    return scales[place // group, place % group]


def _same(name: str, seen: Any, wanted: np.ndarray) -> None:
    if seen.shape != wanted.shape or not np.array_equal(seen, wanted):
        differ = int((seen != wanted).sum()) if seen.shape == wanted.shape else "all"
        raise WrongResult(f"{name} {list(seen.shape)}: {differ} entries are wrong (wanted {list(wanted.shape)})")


def _none_wrong(name: str, wrong: int, total: int) -> None:
    if wrong:
        raise WrongResult(f"{wrong} of {total} {name} are wrong")
