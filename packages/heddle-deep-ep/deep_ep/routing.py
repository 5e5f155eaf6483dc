"""Which ranks and experts a batch of expert ids names."""

from __future__ import annotations

import heddle
import torch
from heddle import UsageError


def layout_of(topk_idx: torch.Tensor, experts: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(tokens for each rank [R] int32, pairs of each expert [E] int32, is_token_in_rank [N, R] bool).

    Raises UsageError for an id outside [-1, E) on the CPU; elsewhere such ids are left out.
    """
    ids = topk_idx.to(torch.int64)
    legal = (ids >= 0) & (ids < experts)
    if not ids.is_cuda and bool((~legal & (ids != -1)).any()):
        token, column = (~legal & (ids != -1)).nonzero()[0].tolist()
        raise UsageError(
            f"topk_idx[{token}][{column}] = {int(ids[token, column])}, legal: 0 to {experts - 1}, or -1 for none"
        )
    bucket = torch.where(legal, ids, experts)
    per_expert = ids.new_zeros(experts + 1).scatter_add_(0, bucket.flatten(), torch.ones_like(bucket).flatten())
    owner = torch.where(legal, ((bucket + 1) * ranks - 1) // experts, ranks)
    in_rank = torch.zeros(ids.shape[0], ranks + 1, dtype=torch.bool, device=ids.device)
    in_rank.scatter_(1, owner, True)
    in_rank = in_rank[:, :ranks].contiguous()
    return in_rank.sum(dim=0, dtype=torch.int32), per_expert[:experts].to(torch.int32), in_rank


def exchange_counts(buffer: heddle.Buffer, per_expert: torch.Tensor) -> list[int]:
    """Each local expert's sum over ranks of [E] counts. Collective: one row of counts goes to each rank."""
    ranks = buffer.size
    first = [buffer.experts_of(rank).start for rank in range(ranks)] + [per_expert.numel()]
    width = max(4, -(-max(b - a for a, b in zip(first, first[1:], strict=False)) // 4) * 4)
    rows = torch.zeros(ranks, width, dtype=torch.int32, device=per_expert.device)
    for rank in range(ranks):
        rows[rank, : first[rank + 1] - first[rank]] = per_expert[first[rank] : first[rank + 1]]
    one_each = torch.eye(ranks, dtype=torch.bool, device=per_expert.device)
    received = buffer.dispatch(buffer.plan_from_rank_map(one_each), rows)
    return received.x.sum(dim=0)[: len(buffer.local_experts)].tolist()
