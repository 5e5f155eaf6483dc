"""What low-latency calls of the same shapes and choices share, so that only the first is looked at closely."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from heddle._core import KnownCalls

from .engine import Engine
from .low_latency_handle import Batch
from .utils.event import EventHandle, EventOverlap

_NOTHING = (None,) * 6


class Prepared:
    """A dispatch of rows as they are, without statistics."""

    __slots__ = ("_batch", "_options", "_outputs", "epoch")

    def __init__(self, epoch: int, batch: Batch, options: Any, outputs: Callable[[torch.Tensor, Any], Any]) -> None:
        self.epoch = epoch
        self._batch = batch
        self._options = options
        self._outputs = outputs

    def dispatch(self, x: torch.Tensor, topk_idx: torch.Tensor, is_async: bool, splits: bool) -> tuple[Any, ...]:
        """What low_latency_dispatch() returns."""
        core = self._batch.core
        hook: Callable[[], None] | None = None
        if splits:
            made, sent = core.dispatch_slab_send(topk_idx, x, *_NOTHING, self._options)
            event, hook = EventOverlap(), partial(sent.receive, core)
        else:
            made = core.dispatch_slab(topk_idx, x, *_NOTHING, self._options)
            event = EventOverlap(EventHandle() if is_async else None)
        return self._outputs(made[0], made[1]), made[2], self._batch.handle(made), event, hook


class PreparedCalls:
    """Those of one buffer of deep_ep."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known = KnownCalls()

    def find(self, x: Any, topk_idx: Any, *choices: Any) -> Prepared | None:
        """`choices`: ints and bools."""
        known: Prepared | None = self._known.find(x, topk_idx, *choices)
        return known if known is not None and known.epoch == self._engine.epoch else None

    def keep(self, prepared: Prepared, x: Any, topk_idx: Any, *choices: Any) -> None:
        self._known.keep(prepared, x, topk_idx, *choices)
