"""What the robustness cases of GPUs share: batches, and the way to the experts and back."""

from __future__ import annotations

from typing import Any

import heddle
import pytest

torch = pytest.importorskip("torch")


def ranks_reached(ids: Any, size: int, experts: int) -> Any:
    """[T, 1] how many ranks each token goes to."""
    bounds = [rank * experts // size for rank in range(size + 1)]
    hits = [((ids >= a) & (ids < b)).any(-1) for a, b in zip(bounds, bounds[1:], strict=False)]
    return torch.stack(hits).sum(0)[:, None]


def trip(buffer: heddle.Buffer, ids: Any, x: Any, **options: Any) -> Any:
    """There and back without experts, and without the host."""
    received = buffer.dispatch(buffer.plan(ids), x, fixed_size=True, **options)
    return buffer.combine(received.handle, received.x).x


def spread_ids(tokens: int, topk: int, experts: int, seed: int) -> Any:
    dice = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(experts, generator=dice)[:topk] for _ in range(tokens)]).int().cuda()


def masked_ids(tokens: int, kind: str, seed: int) -> Any:
    ids = spread_ids(tokens, 2, 8, seed)
    if kind == "none":
        return torch.full_like(ids, -1)
    if kind == "skew":
        return torch.tensor([7, -1], device="cuda").int().expand(tokens, 2).contiguous()
    return ids
