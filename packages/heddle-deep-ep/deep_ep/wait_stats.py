"""Statistics that low-latency calls add to tensors of the caller's."""

from __future__ import annotations

from typing import Any

import torch

from .checks import check_int32


def row_of_waits(name: str, waits: Any, rank: int, ranks: int) -> torch.Tensor | None:
    """What this rank adds to; None where the caller wants none. waits is [R] or [R, R] int64, else UsageError."""
    if waits is None:
        return None
    shape = (ranks, ranks) if isinstance(waits, torch.Tensor) and waits.dim() == 2 else (ranks,)
    check_int32(waits, shape, name, torch.int64)
    return waits[rank] if waits.dim() == 2 else waits


def check_counts(counts: Any, experts: int) -> None:
    """cumulative_local_expert_recv_stats: [L] int32, or None."""
    if counts is not None:
        check_int32(counts, (experts,), "cumulative_local_expert_recv_stats")
