"""Handles of low-latency dispatches: plain tuples, as callers know them. What a combine needs beyond them hangs on the
first tensor."""

from __future__ import annotations

from typing import Any, NamedTuple

import heddle
import torch
from heddle import UsageError

from .checks import check_ids, check_weights

_ROUTE = "_heddle_route"
_LEGAL = "legal: the handle of a low_latency_dispatch, with its own first tensor"


class Route(NamedTuple):
    buffer: heddle.Buffer
    handle: heddle.Handle
    tokens: int
    topk: int

    def check_combine(self, ids: Any, weights: Any, out: Any, hidden: int, dtype: torch.dtype) -> None:
        """Raises UsageError for ids, weights and output that are not of this dispatch."""
        check_ids(ids)
        if ids.shape != (self.tokens, self.topk):
            raise UsageError(f"topk_idx is {list(ids.shape)}, legal: {[self.tokens, self.topk]}, as in the dispatch")
        check_weights(weights, (self.tokens, self.topk))
        if out is None:
            return
        if not isinstance(out, torch.Tensor) or out.shape != (self.tokens, hidden):
            raise UsageError(f"out is not {dtype} {[self.tokens, hidden]}, legal: that, or None")
        if out.dtype != dtype:
            raise UsageError(f"out is {out.dtype}, legal: {dtype}, as x")


def make(
    buffer: heddle.Buffer, made: tuple[Any, ...], batch: torch.Size, sizes: tuple[int, int, int]
) -> tuple[torch.Tensor, Any, int, int, int]:
    """(src_info [L, R M], layout_range [L, R], M, H, E) of what heddle's dispatch_slab() made, `sizes` being the last
    three, `batch` (N, K)."""
    _, _, _, src_info, layout_range, _, _, handle = made
    setattr(src_info, _ROUTE, Route(buffer, heddle.Handle(handle, True), *batch))
    return src_info, layout_range, *sizes


def route_of(handle: Any) -> Route:
    """Raises UsageError for anything but such a tuple."""
    if not isinstance(handle, (tuple, list)) or len(handle) != 5:
        raise UsageError(f"handle is {type(handle).__name__}, {_LEGAL}")
    route = getattr(handle[0], _ROUTE, None)
    if not isinstance(route, Route):
        raise UsageError(f"handle's src_info is of no dispatch of this package, {_LEGAL}")
    return route
