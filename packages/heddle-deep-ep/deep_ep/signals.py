"""Signals by which a GEMM tells a combine that its rows are ready, as heddle's combines take them: (words, counts or
None, rows of each word, value)."""

from __future__ import annotations

from typing import Any

import torch
from heddle import UsageError

from .checks import check_int32, positive

Ready = tuple[torch.Tensor, torch.Tensor | None, int, int]


def of_row_blocks(signal: Any, recv_count: Any, rows: int, block_m: int, threshold: int, num_sms: int) -> Ready:
    """Each block of `block_m` received rows has a word that comes to `threshold` (branch antgroup-opt)."""
    positive("block_m", block_m)
    positive("threshold", threshold)
    positive("num_sms", num_sms)
    if not isinstance(recv_count, torch.Tensor) or recv_count.dim() != 1:
        raise UsageError("packed_recv_count is not [L] int32, legal with comp_signal: recv_count of the dispatch")
    experts = recv_count.shape[0]
    check_int32(recv_count, (experts,), "packed_recv_count")
    check_int32(signal, (experts * -(-rows // 64),), "comp_signal")
    if experts * -(-rows // block_m) > signal.numel():
        raise UsageError(f"block_m = {block_m}, legal: 64 or more for comp_signal of {signal.numel()}")
    return signal, recv_count, block_m, threshold


def of_experts(signals: Any, experts: int, expected: int) -> Ready | None:
    """Each expert has a word that comes to `expected` (branch hybrid-ep); None waits for nothing."""
    if signals is None:
        return None
    if not isinstance(signals, torch.Tensor) or signals.dtype != torch.uint32 or signals.numel() < experts:
        raise UsageError(f"src_signals is not uint32 with {experts} or more elements, legal: that, or None")
    return signals.view(torch.int32), None, 0, positive("src_signal_expect_value", expected, 0)
