"""The experts of a batch of HybridEPBuffer, from a map or from ids."""

from __future__ import annotations

from typing import Any, NamedTuple

import heddle
import torch
from heddle import UsageError

from .checks import check_ids, check_weights, describe, device_of, positive
from .engine import Engine, telling_others
from .hybrid_config import Configurer
from .routing_map import map_to_indices


class Routing(NamedTuple):
    """The experts of a batch."""

    ids: torch.Tensor
    weights: torch.Tensor | None
    experts: int


class Routed:
    """Mixed into HybridEPBuffer."""

    group_size: int
    configurer: Configurer
    runtime: Engine

    def _routed(
        self,
        hidden: Any,
        topk_idx: Any,
        topk_weights: Any,
        num_of_experts: int | None,
        routing_map: Any,
        probs: Any,
        per_rank: int | None = None,
    ) -> tuple[heddle.Buffer, Routing]:
        """The buffer for E experts, and the batch's experts. A wrong argument reaches the others once E is known."""
        experts = num_of_experts
        if isinstance(routing_map, torch.Tensor) and routing_map.dim() == 2:
            experts = routing_map.shape[1]
        if experts is None:
            local = per_rank or self.configurer.buffer_config.num_of_experts_per_rank
            experts = local * self.group_size
        buffer = self.runtime.buffer(positive("num_of_experts", experts), device_of(hidden))
        with telling_others(buffer, "dispatch"):
            check_hidden(hidden)
            if experts % self.group_size:
                raise UsageError(f"num_of_experts = {experts}, legal: a multiple of the group's size {self.group_size}")
            if routing_map is not None:
                ids, weights = _from_map(hidden, routing_map, probs, experts)
            else:
                check_ids(topk_idx)
                if topk_weights is not None:
                    check_weights(topk_weights, tuple(topk_idx.shape))
                ids, weights = topk_idx, topk_weights
            if ids.shape[0] != hidden.shape[0]:
                raise UsageError(f"topk_idx has {ids.shape[0]} rows, legal: {hidden.shape[0]}, as hidden")
        self.configurer.buffer_config.grow(hidden.shape[1], hidden.shape[0], experts // self.group_size)
        return buffer, Routing(ids, weights, experts)


def _from_map(hidden: torch.Tensor, routing_map: Any, probs: Any, experts: int) -> Any:
    shape = (hidden.shape[0], experts)
    if not isinstance(routing_map, torch.Tensor) or routing_map.dtype != torch.bool or routing_map.shape != shape:
        raise UsageError(f"routing_map is {describe(routing_map)}, legal: bool {list(shape)}")
    if probs is not None:
        check_weights(probs, shape, "probs")
    return map_to_indices(routing_map, probs)


def check_hidden(hidden: Any) -> None:
    if not isinstance(hidden, torch.Tensor) or hidden.dim() != 2:
        raise UsageError(f"hidden is {describe(hidden)}, legal: [tokens, hidden]")
