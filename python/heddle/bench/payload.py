"""The contents of rows: whole numbers so small that every sum is exact in bfloat16, and no two tokens alike.

A token's number (rank * tokens + token) has two digits in base P. The left part of its row is row `low digit` of one
table, the right part row `high digit` of another, so rows of gigabytes are told from two tables of megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import _core
from ..arguments import dispatch_options
from .options import SCALE_BLOCK, Options

MOST = 256  # whole numbers up to here are exact in bfloat16
_CHUNK = 512  # rows at a time

_bits = (np.arange(MOST + 1, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)


def bf16_bits(numbers: np.ndarray) -> np.ndarray:
    """bfloat16 bits of whole numbers up to MOST."""
    return _bits[numbers]


def expert_exponent(index: np.ndarray | int) -> np.ndarray | int:
    """Expert (or rank) number i multiplies its rows by two to this power, so that a sum tells who was in it."""
    return index % 3


class Table:
    """Rows put together from a left and a right table."""

    def __init__(self, left: np.ndarray, right: np.ndarray) -> None:
        self.left = np.ascontiguousarray(left)
        self.right = np.ascontiguousarray(right)

    @property
    def base(self) -> int:
        return len(self.left)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """[n, H] rows of these tokens."""
        return np.concatenate([self.left[numbers % self.base], self.right[numbers // self.base]], axis=1)

    def num_wrong(self, numbers: np.ndarray, rows: Any) -> int:
        """How many of `rows` differ from those of these tokens in any element."""
        split = self.left.shape[1]
        wrong = 0
        for part in chunks(len(numbers)):
            which = numbers[part]
            bad = (rows[part, :split] != self.left[which % self.base]).any(axis=1)
            bad |= (rows[part, split:] != self.right[which // self.base]).any(axis=1)
            wrong += int(bad.sum())
        return wrong


class Payload:
    """The tables of a run. `sent` is what dispatch is given, `arrived` what must come out, `numbers` the numbers."""

    def __init__(self, options: Options, most_sum: int) -> None:
        """`most_sum`: the most that a row's numbers are multiplied with until they are combined."""
        rng = np.random.default_rng(options.seed)
        base = max(2, int(np.ceil(np.sqrt(options.ranks * options.tokens))))
        split = max(SCALE_BLOCK, options.hidden // 2 // SCALE_BLOCK * SCALE_BLOCK)
        split = min(split, options.hidden)
        largest = min(255, max(1, MOST // most_sum))
        self.numbers = Table(
            rng.integers(1, largest + 1, (base, split), np.uint8),
            rng.integers(1, largest + 1, (base, options.hidden - split), np.uint8),
        )
        self.scales: Table | None = None
        bf16 = Table(bf16_bits(self.numbers.left), bf16_bits(self.numbers.right))
        self.sent = self.arrived = bf16
        if options.sends_fp8:
            self.sent = self.arrived = Table(
                rng.integers(0, 256, (base, split), np.uint8),
                rng.integers(0, 256, (base, options.hidden - split), np.uint8),
            )
            blocks = split // SCALE_BLOCK
            left = rng.random((base, blocks), np.float32)
            self.scales = Table(left, rng.random((base, options.num_scales - blocks), np.float32))
        if options.quantises:
            left, left_scales = _quantise(bf16.left)
            right, right_scales = _quantise(bf16.right)
            self.arrived = Table(left, right)
            self.scales = Table(left_scales, right_scales)


def _quantise(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float8 bytes and float32 scales of bfloat16 rows, as the spec says."""
    blocks = -(-rows.shape[1] // SCALE_BLOCK)
    if rows.size == 0:
        return np.empty(rows.shape, np.uint8), np.empty((len(rows), blocks), np.float32)
    fp8 = dispatch_options(quantise="fp8")
    pairs = [_core.spec.quantise_row(fp8, row) for row in rows]
    return np.stack([values for values, _ in pairs]), np.stack([scales.view(np.float32) for _, scales in pairs])


def chunks(n: int) -> Iterator[slice]:
    """Slices that cover n rows, each small enough for the cache."""
    for at in range(0, n, _CHUNK):
        yield slice(at, min(n, at + _CHUNK))
