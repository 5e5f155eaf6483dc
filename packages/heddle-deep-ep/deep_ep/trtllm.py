"""What TensorRT-LLM's fork adds to low latency: rows that are 4-bit already, and a combine that may lose precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from heddle import UsageError

from .checks import check_ids, describe
from .forms import ready_fp4
from .utils.event import EventOverlap


class ReadyFp4:
    """Mixed into Buffer, whose low-latency half it calls."""

    _dispatch_form: Any
    low_latency_combine: Any

    def low_latency_dispatch_fp4(
        self,
        x: torch.Tensor,
        scales: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[Any, ...], EventOverlap, Callable[[], None] | None]:
        """low_latency_dispatch() of rows that are quantised already; their bytes arrive as they are. Collective.

        x       uint8 [N, H / 2], H a multiple of 64
        scales  uint8 or float8_e4m3fn [N, H / 16]

        Returns (x [L, R M, H / 2], scales [L, R M, H / 16], recv_count, handle, event, hook or None).
        """
        for name, tensor, types in (("x", x, (torch.uint8,)), ("scales", scales, (torch.uint8, torch.float8_e4m3fn))):
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != 2 or tensor.dtype not in types:
                raise UsageError(f"{name} is {describe(tensor)}, legal: {types[0]} [tokens, any]")
        if x.shape[1] % 32 or scales.shape != (x.shape[0], x.shape[1] // 8):
            raise UsageError(
                f"scales is {describe(scales)} with x {describe(x)}, legal: [tokens, hidden / 16] and "
                "[tokens, hidden / 2], hidden a multiple of 64"
            )
        check_ids(topk_idx)
        (rows, moved), *rest = self._dispatch_form(
            x,
            topk_idx,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            lambda: ready_fp4(x, scales),
            hidden=2 * x.shape[1],
            async_finish=async_finish,
            return_recv_hook=return_recv_hook,
        )
        return rows, moved, *rest

    def low_latency_combine_low_precision(
        self,
        precision: str,
        x: torch.Tensor,
        global_scales: torch.Tensor | None,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: tuple[Any, ...],
        **settings: Any,
    ) -> tuple[Any, ...]:
        """low_latency_combine(), for "fp8" and "nvfp4": rows travel as they are, which loses nothing."""
        if precision not in ("fp8", "nvfp4"):
            raise UsageError(f"precision is {precision!r}, legal: 'fp8', 'nvfp4'")
        return self.low_latency_combine(x, topk_idx, topk_weights, handle, **settings)
