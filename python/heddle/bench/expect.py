"""What a rank must receive and get back, computed from everybody's ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .options import Options
from .payload import expert_exponent
from .routing import ids_of

Group = tuple[int, np.ndarray, Any]
"""First place in the output, numbers of the tokens, exponent of their expert."""


class World:
    """Everybody's ids, as every rank can compute them."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ids = [ids_of(options, rank) for rank in range(options.ranks)]
        self.bounds = np.array([rank * options.experts // options.ranks for rank in range(options.ranks + 1)])

    def owners(self, rank: int) -> np.ndarray:
        """[T, K] rank that owns each choice; -1 = none."""
        ids = self.ids[rank]
        return np.where(ids >= 0, np.searchsorted(self.bounds, ids, side="right") - 1, -1)

    def in_rank(self, rank: int) -> np.ndarray:
        """[T, R] bool: the token goes there."""
        owners = self.owners(rank)
        return np.stack([(owners == peer).any(axis=1) for peer in range(self.options.ranks)], axis=1)

    def rows_sent(self, rank: int) -> int:
        """(token, rank) pairs; for a slab the same, for a token crosses once."""
        return int(self.in_rank(rank).sum())

    def most_sum(self) -> int:
        """The most that a combine multiplies a token's numbers with, in any routing of this size."""
        if self.options.is_slab:
            return self.options.topk * _largest_weight * 4
        factors = sorted((2 ** int(expert_exponent(rank)) for rank in range(self.options.ranks)), reverse=True)
        return sum(factors[: self.options.topk])


_largest_weight = 2


def weights_of(options: Options) -> np.ndarray:
    """[T, K] float32 whole numbers."""
    column = np.arange(options.topk, dtype=np.float32) % _largest_weight + 1
    return np.ascontiguousarray(np.broadcast_to(column, (options.tokens, options.topk)))


class Arrivals:
    """The rows that reach one rank: `place` of each in the output, its token's `number`, its expert's `exponent`."""

    def __init__(self, world: World, rank: int) -> None:
        self.counts: list[int] = []
        place, number, exponent = [], [], []
        for group in _slab_groups(world, rank) if world.options.is_slab else _token_groups(world, rank):
            begin, numbers, power = group
            self.counts.append(len(numbers))
            place.append(begin + np.arange(len(numbers)))
            number.append(numbers)
            exponent.append(np.full(len(numbers), power))
        self.place = np.concatenate(place) if place else np.empty(0, np.int64)
        self.number = np.concatenate(number) if number else np.empty(0, np.int64)
        self.exponent = np.concatenate(exponent) if exponent else np.empty(0, np.int64)


def _token_groups(world: World, rank: int) -> Iterator[Group]:
    """One group a source: its tokens that come here, in order."""
    begin = 0
    for source in range(world.options.ranks):
        tokens = np.flatnonzero(world.in_rank(source)[:, rank])
        yield begin, source * world.options.tokens + tokens, expert_exponent(rank)
        begin += len(tokens)


def _slab_groups(world: World, rank: int) -> Iterator[Group]:
    """One group a local expert: by source, then token."""
    options = world.options
    for local, expert in enumerate(range(world.bounds[rank], world.bounds[rank + 1])):
        hits = [
            source * options.tokens + np.flatnonzero((world.ids[source] == expert).any(axis=1))
            for source in range(options.ranks)
        ]
        yield local * options.ranks * options.tokens, np.concatenate(hits), expert_exponent(expert)


def multipliers(world: World, rank: int) -> np.ndarray:
    """[T] what a combine multiplies each token's numbers with, if experts multiply by their powers of two."""
    if not world.options.is_slab:
        powers = 2 ** expert_exponent(np.arange(world.options.ranks))
        return (world.in_rank(rank) * powers).sum(axis=1)
    ids = world.ids[rank]
    terms = weights_of(world.options) * 2.0 ** expert_exponent(np.maximum(ids, 0))
    return np.where(ids >= 0, terms, 0).sum(axis=1).astype(np.int64)
