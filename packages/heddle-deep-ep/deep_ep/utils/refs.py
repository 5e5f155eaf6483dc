"""Dispatch and combine once more, by a plain exchange of objects. Slow; for tests."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def dispatch(
    x: torch.Tensor, topk_idx: torch.Tensor, topk_weights: torch.Tensor | None, num_experts: int, group: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """(rows by source rank, then token; local ids or -1; weights, 0 where -1; [n, 2] source rank and token)."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    first, last = rank * num_experts // ranks, (rank + 1) * num_experts // ranks
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(
        everyone, (x.cpu(), topk_idx.cpu(), None if topk_weights is None else topk_weights.cpu()), group
    )
    rows, ids, weights, sources = [], [], [], []
    for source, (their_x, their_ids, their_weights) in enumerate(everyone):
        here = (their_ids >= first) & (their_ids < last)
        chosen = here.any(dim=1).nonzero().flatten()
        rows.append(their_x[chosen])
        ids.append(torch.where(here, their_ids - first, -1)[chosen])
        if their_weights is not None:
            weights.append(torch.where(here, their_weights, 0)[chosen])
        sources.append(torch.stack([torch.full_like(chosen, source), chosen], dim=1))
    at = x.device
    return (
        torch.cat(rows).to(at),
        torch.cat(ids).to(at),
        torch.cat(weights).to(at) if weights else None,
        torch.cat(sources).to(at),
    )


def combine(y: torch.Tensor, sources: torch.Tensor, num_tokens: int, group: Any) -> torch.Tensor:
    """[N, H]: the FP32 sum of the rows that ranks hold for each token, by rank, in y's type."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    everyone: list[Any] = [None] * ranks
    dist.all_gather_object(everyone, (y.cpu(), sources.cpu()), group)
    total = torch.zeros(num_tokens, y.shape[1], dtype=torch.float32, device="cpu")
    for rows, places in everyone:
        mine = places[:, 0] == rank
        total.index_add_(0, places[mine, 1], rows[mine].float())
    return total.to(y.dtype).to(y.device)
