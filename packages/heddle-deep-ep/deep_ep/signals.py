"""Signals by which a GEMM tells a combine that its rows are ready. CPU tensors only: a GPU's kernel must poll its
own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from heddle import TimeoutError_, UsageError

from .checks import check_int32, positive
from .group import default_timeout


def wait_for_rows(signal: Any, recv_count: Any, rows: int, block_m: int, threshold: int, num_sms: int) -> None:
    """Waits until each block of `block_m` received rows has its signal at `threshold` (branch antgroup-opt)."""
    positive("block_m", block_m)
    positive("threshold", threshold)
    positive("num_sms", num_sms)
    if not isinstance(recv_count, torch.Tensor) or recv_count.dim() != 1:
        raise UsageError("packed_recv_count is not [L] int32, legal with comp_signal: recv_count of the dispatch")
    experts = recv_count.shape[0]
    check_int32(recv_count, (experts,), "packed_recv_count")
    check_int32(signal, (experts * -(-rows // 64),), "comp_signal")
    _refuse_cuda("comp_signal", signal)
    blocks = -(-rows // block_m)
    if experts * blocks > signal.numel():
        raise UsageError(f"block_m = {block_m}, legal: 64 or more for comp_signal of {signal.numel()}")
    wanted = [e * blocks + i for e, count in enumerate(recv_count.tolist()) for i in range(-(-count // block_m))]
    _wait("comp_signal", lambda: all(signal[i] >= threshold for i in wanted), threshold)


def wait_for_experts(signals: Any, experts: int, expected: int) -> None:
    """Waits until each expert's element shows `expected` (branch hybrid-ep); None waits for nothing."""
    if signals is None:
        return
    if not isinstance(signals, torch.Tensor) or signals.dtype != torch.uint32 or signals.numel() < experts:
        raise UsageError(f"src_signals is not uint32 with {experts} or more elements, legal: that, or None")
    _refuse_cuda("src_signals", signals)
    words = signals.view(torch.int32)
    _wait("src_signals", lambda: bool((words[:experts] >= expected).all()), expected)


def _refuse_cuda(name: str, tensor: torch.Tensor) -> None:
    if tensor.is_cuda:
        raise NotImplementedError(
            f"{name} is on {tensor.device}, legal here: the CPU (kernels do not poll signals yet)"
        )


def _wait(name: str, is_ready: Callable[[], bool], wanted: int) -> None:
    deadline = time.monotonic() + default_timeout()
    while not is_ready():
        if time.monotonic() > deadline:
            raise TimeoutError_(f"{name} did not reach {wanted} within {default_timeout():g} s")
        time.sleep(0)
