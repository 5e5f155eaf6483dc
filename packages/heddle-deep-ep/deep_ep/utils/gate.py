"""Routings with a wanted imbalance."""

from __future__ import annotations

import torch


def get_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float, precise: bool = False
) -> torch.Tensor:
    """[N, E] float32 scores whose top-k sends the busiest rank about `ratio` times the pairs of an average one.

    precise  rank 0 gets that many pairs, rounded, rather than on average
    """
    if not 1 <= ratio <= num_ranks:
        raise ValueError(f"ratio = {ratio}, legal: 1 to num_ranks = {num_ranks}")
    local = num_experts // num_ranks
    scores = torch.rand(num_tokens, num_experts, dtype=torch.float32)
    wanted = min(ratio * num_tokens * num_topk / num_ranks, float(num_tokens * min(num_topk, local)))
    if precise:
        each = torch.full((num_tokens,), int(wanted) // max(num_tokens, 1))
        each[: int(wanted) - int(each.sum())] += 1
    else:
        mean = wanted / max(num_tokens, 1)
        each = (mean + torch.rand(num_tokens)).floor().to(torch.int64)
    rank_of_score = scores[:, :local].argsort(dim=1, descending=True).argsort(dim=1)
    chosen = rank_of_score < each.clamp(max=min(num_topk, local))[:, None]
    scores[:, :local] = torch.where(chosen, scores[:, :local] + 2, scores[:, :local] - 2)
    return scores


def get_inequality(per_rank: torch.Tensor) -> float:
    """The busiest rank's share over the average one's."""
    counts = per_rank.float()
    return float(counts.max() / counts.mean().clamp(min=1e-9))
