"""Weights of pairs in HybridEPBuffer's forms: by expert of the whole group, of a domain, or of a batch's columns."""

from __future__ import annotations

from typing import Any

import heddle
import torch

from .checks import check_weights
from .hybrid_handle import Route


def weights_again(route: Route, probs: Any) -> torch.Tensor | None:
    """[N, K] of [N, E], for the same batch once more."""
    if probs is None:
        return None
    ids = route.handle.plan.ids.to(torch.int64)
    check_weights(probs, (ids.shape[0], route.experts), "probs")
    return torch.where(ids < 0, 0.0, probs.gather(1, ids.clamp(min=0)))


def of_domain(received: heddle.Received, given: Any, first: int, columns: int) -> torch.Tensor | None:
    """[T, columns]: the received weights at [first, first + L), 0 elsewhere. None if none were given."""
    if given is None:
        return None
    local = received.num_per_expert.shape[0]
    ids = received.ids.to(torch.int64)
    wide = torch.zeros(ids.shape[0], local + 1, dtype=torch.float32, device=ids.device)
    wide.scatter_(1, torch.where(ids < 0, local, ids), received.weights)
    out = torch.zeros(ids.shape[0], columns, dtype=torch.float32, device=ids.device)
    out[:, first : first + local] = wide[:, :local]
    return out


def of_own_experts(route: Route, probs: torch.Tensor, first: int, columns: int) -> torch.Tensor:
    """[T, K] of [T, columns], whose own experts begin at `first`."""
    check_weights(probs, (route.rows, columns), "probs")
    ids = route.handle.recv_ids
    return torch.where(ids < 0, 0.0, probs[:, first:].gather(1, ids.clamp(min=0).to(torch.int64)))


def dense(route: Route, weights: torch.Tensor | None) -> torch.Tensor | None:
    """[N, E] of [N, K]."""
    if weights is None:
        return None
    ids = route.handle.plan.ids.to(torch.int64)
    wide = torch.zeros(ids.shape[0], route.experts + 1, dtype=torch.float32, device=weights.device)
    wide.scatter_(1, torch.where(ids < 0, route.experts, ids), weights)
    return wide[:, : route.experts].contiguous()


def zeroed(received: heddle.Received, values: Any) -> torch.Tensor:
    """0 in rows that hold nothing."""
    empty = received.row_token < 0
    return torch.where(empty if values.dim() == 1 else empty[:, None], torch.zeros_like(values), values)
