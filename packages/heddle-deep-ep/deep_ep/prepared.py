"""What low-latency dispatches of the same shapes and choices share, so that only the first is looked at closely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import heddle
import torch

from . import low_latency_handle
from .engine import Engine
from .halves import end_of_call

_MOST = 1024  # batches of decoding have few sizes; whoever has more looks at each


class Prepared(NamedTuple):
    """A dispatch of rows as they are, without statistics."""

    epoch: int
    buffer: heddle.Buffer
    options: Any
    outputs: Callable[[torch.Tensor, Any], Any]
    batch: torch.Size
    sizes: tuple[int, int, int]

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, is_async: bool, splits: bool) -> tuple[Any, ...]:
        """What low_latency_dispatch() returns."""
        made, receive = self.buffer.dispatch_slab(topk_idx, x, self.options, splits=splits)
        handle = low_latency_handle.make(self.buffer, made, self.batch, self.sizes)
        event, hook = end_of_call(receive, is_async, None, x.device)
        return self.outputs(made[0], made[1]), made[2], handle, event, hook


def key_of(x: Any, topk_idx: Any, *choices: Any) -> tuple[Any, ...] | None:
    """None for what are no tensors."""
    if not isinstance(x, torch.Tensor) or not isinstance(topk_idx, torch.Tensor):
        return None
    return (x.shape, x.dtype, x.device, topk_idx.shape, topk_idx.dtype, *choices)


class PreparedCalls:
    """Those of one buffer of deep_ep."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[Any, Prepared] = {}

    def find(self, key: Any) -> Prepared | None:
        known = self._known.get(key)
        return known if known is not None and known.epoch == self._engine.epoch else None

    def keep(self, key: Any, prepared: Prepared) -> None:
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[key] = prepared
