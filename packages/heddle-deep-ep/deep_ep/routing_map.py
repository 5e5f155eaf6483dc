"""Routing maps [tokens, experts] and the ids that they stand for."""

from __future__ import annotations

import torch
from heddle import UsageError

from .checks import check_ids, check_weights

MOST_COLUMNS = 64  # experts that one token can name: heddle's


def indices_to_map(
    topk_idx: torch.Tensor, topk_weights: torch.Tensor | None, num_of_tokens: int, num_of_experts: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(routing map bool [N, E], probs float32 [N, E] or None) of ids [N, K], -1 = none, and float32 weights."""
    check_ids(topk_idx)
    if topk_idx.shape[0] != num_of_tokens:
        raise UsageError(f"topk_idx has {topk_idx.shape[0]} rows, legal: num_of_tokens = {num_of_tokens}")
    ids = topk_idx.to(torch.int64)
    bucket = torch.where(ids < 0, num_of_experts, ids)
    routing = torch.zeros(num_of_tokens, num_of_experts + 1, dtype=torch.bool, device=ids.device)
    routing.scatter_(1, bucket, True)
    if topk_weights is None:
        return routing[:, :num_of_experts].contiguous(), None
    check_weights(topk_weights, tuple(topk_idx.shape))
    probs = torch.zeros(num_of_tokens, num_of_experts + 1, dtype=torch.float32, device=ids.device)
    probs.scatter_(1, bucket, topk_weights)
    return routing[:, :num_of_experts].contiguous(), probs[:, :num_of_experts].contiguous()


def map_to_indices(routing_map: torch.Tensor, probs: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(ids [N, min(E, 64)] ascending, -1 after the last; weights or None) of a routing map."""
    experts = routing_map.shape[1]
    columns = min(experts, MOST_COLUMNS)
    numbers = torch.arange(experts, device=routing_map.device)
    ordered = torch.where(routing_map, numbers, experts).sort(dim=1).values
    if experts > columns and not routing_map.is_cuda and bool((ordered[:, columns] < experts).any()):
        most = int(routing_map.sum(dim=1).max())
        raise UsageError(f"routing_map has a token with {most} experts, legal: up to {MOST_COLUMNS}")
    ordered = ordered[:, :columns]
    ids = torch.where(ordered < experts, ordered, -1)
    if probs is None:
        return ids, None
    return ids, torch.where(ids < 0, 0.0, probs.gather(1, ids.clamp(min=0)))
