"""Statistics that low-latency calls add to tensors of the caller's."""

from __future__ import annotations

import time
from typing import Any

import torch

from .checks import check_int32


class WaitStats:
    """Nanoseconds from begin(), or from when it was made, to add(): for every other rank the whole receive."""

    def __init__(self, waits: torch.Tensor, rank: int, ranks: int) -> None:
        self._row = waits[rank] if waits.dim() == 2 else waits
        self._others = torch.ones(ranks, dtype=torch.int64, device=waits.device)
        self._others[rank] = 0
        self.begin()

    @staticmethod
    def of(name: str, waits: Any, rank: int, ranks: int) -> WaitStats | None:
        """None where the caller wants none. waits is [R] or [R, R] int64, else UsageError."""
        if waits is None:
            return None
        shape = (ranks, ranks) if isinstance(waits, torch.Tensor) and waits.dim() == 2 else (ranks,)
        check_int32(waits, shape, name, torch.int64)
        return WaitStats(waits, rank, ranks)

    def begin(self) -> None:
        self._began = time.perf_counter_ns()

    def add(self) -> None:
        self._row.add_(self._others * (time.perf_counter_ns() - self._began))


def check_counts(counts: Any, experts: int) -> None:
    """cumulative_local_expert_recv_stats: [L] int32, or None."""
    if counts is not None:
        check_int32(counts, (experts,), "cumulative_local_expert_recv_stats")
