"""Dispatch and combine once more, in plain NumPy, for all ranks at once. Whole numbers, so that equality is exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Batch:
    ids: np.ndarray  # [T, K]
    x: np.ndarray  # [T, H] float32
    weights: np.ndarray  # [T, K] float32


def first_expert(rank: int, ranks: int, experts: int) -> int:
    return rank * experts // ranks


def make_batch(seed: int, tokens: int, hidden: int, topk: int, experts: int, absent: float = 0.2) -> Batch:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, experts, (tokens, topk))
    ids[rng.random((tokens, topk)) < absent] = -1
    x = rng.integers(0, 4, (tokens, hidden)).astype(np.float32)
    weights = rng.integers(1, 3, (tokens, topk)).astype(np.float32)
    weights[ids < 0] = np.nan  # must not be used
    return Batch(ids, x, weights)


def hits(batch: Batch, first: int, last: int) -> np.ndarray:
    """[T, K] bool: the column names an expert of [first, last)."""
    return (batch.ids >= first) & (batch.ids < last)


def arrivals(batches: list[Batch], rank: int, experts: int) -> list[tuple[int, int]]:
    """(source, token) of each token that reaches `rank`, in the order of a token-major output."""
    first, last = (first_expert(r, len(batches), experts) for r in (rank, rank + 1))
    return [(s, t) for s, batch in enumerate(batches) for t in np.flatnonzero(hits(batch, first, last).any(axis=1))]


def num_ranks_reached(batch: Batch, ranks: int, experts: int) -> np.ndarray:
    """[T] how many ranks each token goes to."""
    bounds = [first_expert(r, ranks, experts) for r in range(ranks + 1)]
    return sum(hits(batch, a, b).any(axis=1).astype(int) for a, b in zip(bounds, bounds[1:], strict=False))


def expert_rows(batches: list[Batch], expert: int) -> list[tuple[int, int, float]]:
    """(source, token, summed weight) of each distinct hit of `expert`, by source, then token."""
    rows = []
    for source, batch in enumerate(batches):
        for token in np.flatnonzero((batch.ids == expert).any(axis=1)):
            columns = batch.ids[token] == expert
            rows.append((source, int(token), float(batch.weights[token][columns].sum())))
    return rows
