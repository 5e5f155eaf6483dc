"""V1 dispatches that are the same but for what their tensors hold: only the first is looked at closely."""

from __future__ import annotations

from typing import Any

import heddle
import torch
from heddle._core import KnownCalls

from .engine import Engine
from .handle import pack
from .sizes import align


class KnownDispatch:
    """A dispatch of a tensor by expert ids, with weights."""

    __slots__ = ("_alignment", "_buffer", "_in_rank", "_is_fixed", "_options", "_per_expert", "_weights", "epoch")

    def __init__(
        self,
        epoch: int,
        buffer: heddle.Buffer,
        options: Any,
        layout: tuple[Any, ...],
        weights: Any,
        how: tuple[int, bool],
    ) -> None:
        self.epoch = epoch
        self._buffer = buffer
        self._options = options
        self._in_rank = layout[1].shape
        self._per_expert = layout[2].shape
        self._weights = weights.shape
        self._alignment, self._is_fixed = how

    def fits(self, layout: tuple[Any, ...], weights: Any) -> bool:
        per_rank, in_rank, per_expert = layout
        return (
            type(per_rank) is type(in_rank) is type(per_expert) is type(weights) is torch.Tensor
            and in_rank.shape == self._in_rank
            and in_rank.dtype is torch.bool
            and per_expert.shape == self._per_expert
            and weights.shape == self._weights
            and weights.dtype is torch.float32
        )

    def dispatch(self, x: Any, in_rank: Any, topk_idx: Any, weights: Any, resets: int) -> tuple[Any, ...]:
        """What Buffer.dispatch() returns, but for the event."""
        made = self._buffer._core.dispatch_tokens(topk_idx, x, None, weights, self._options)
        counts = made[4] if self._alignment == 1 else [align(count, self._alignment) for count in made[4]]
        return made[0], made[2], made[3], counts, pack(self._buffer, made, in_rank, resets, self._is_fixed)


class KnownDispatches:
    """Those of one buffer of deep_ep."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known = KnownCalls()

    def find(self, x: Any, topk_idx: Any, alignment: Any, worst: Any) -> KnownDispatch | None:
        known: KnownDispatch | None = self._known.find(x, topk_idx, alignment, worst)
        return known if known is not None and known.epoch == self._engine.epoch else None

    def keep(
        self,
        x: Any,
        topk_idx: Any,
        buffer: heddle.Buffer,
        options: Any,
        layout: tuple[Any, ...],
        weights: Any,
        how: Any,
    ) -> None:
        alignment, worst = how
        known = KnownDispatch(self._engine.epoch, buffer, options, layout, weights, (alignment, bool(worst)))
        self._known.keep(known, x, topk_idx, alignment, worst)
