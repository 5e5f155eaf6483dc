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


class Batch:
    """What handles of the same buffer and shapes share: ids [N, K], slabs [L, R M, H]."""

    __slots__ = ("_sizes", "buffer", "core", "ids", "result", "slab")

    def __init__(self, buffer: heddle.Buffer, ids: torch.Size, slab: torch.Size, sizes: tuple[int, int, int]) -> None:
        self.buffer = buffer
        self.core = buffer._core
        self.ids = ids
        self.slab = slab
        self.result = torch.Size((ids[0], slab[2]))
        self._sizes = sizes

    def handle(self, made: tuple[Any, ...]) -> tuple[torch.Tensor, Any, int, int, int]:
        """(src_info [L, R M], layout_range [L, R], M, H, E) of what heddle's dispatch_slab() made."""
        src_info = made[3]
        src_info._heddle_route = Route(self, made[7])
        return src_info, made[4], *self._sizes

    def fits(self, x: Any, ids: Any, weights: Any, out: Any) -> bool:
        """Whether a combine of the whole slab may go on without a closer look: what C++ looks at itself is left out."""
        return (
            isinstance(ids, torch.Tensor)
            and isinstance(x, torch.Tensor)
            and isinstance(weights, torch.Tensor)
            and ids.shape == self.ids == weights.shape
            and ids.dtype in _ID_TYPES
            and x.shape == self.slab
            and weights.dtype is torch.float32
            and x.is_contiguous()
            and (out is None or (isinstance(out, torch.Tensor) and out.shape == self.result and out.is_contiguous()))
        )

    def check_combine(self, ids: Any, weights: Any, out: Any, dtype: torch.dtype) -> None:
        """Raises UsageError for ids, weights and output that are not of this dispatch."""
        check_ids(ids)
        if ids.shape != self.ids:
            raise UsageError(f"topk_idx is {list(ids.shape)}, legal: {list(self.ids)}, as in the dispatch")
        check_weights(weights, self.ids)
        if out is None:
            return
        if not isinstance(out, torch.Tensor) or out.shape != self.result:
            raise UsageError(f"out is not {dtype} {list(self.result)}, legal: that, or None")
        if out.dtype != dtype:
            raise UsageError(f"out is {out.dtype}, legal: {dtype}, as x")


_ID_TYPES = (torch.int64, torch.int32)


class Route(NamedTuple):
    batch: Batch
    handle: Any
    """Core of heddle's."""


def route_of(handle: Any) -> Route:
    """Raises UsageError for anything but such a tuple."""
    if not isinstance(handle, (tuple, list)) or len(handle) != 5:
        raise UsageError(f"handle is {type(handle).__name__}, {_LEGAL}")
    route = getattr(handle[0], _ROUTE, None)
    if not isinstance(route, Route):
        raise UsageError(f"handle's src_info is of no dispatch of this package, {_LEGAL}")
    return route
