"""Casts, comparisons and small tensor helpers of test programs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

FP8_MAX = 448.0
LEAST_AMAX = 1e-4
BLOCK = 128


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def align(value: int, to: int) -> int:
    """`value` rounded up to a multiple."""
    return ceil_div(value, to) * to


def calc_diff(x: torch.Tensor, y: torch.Tensor) -> float:
    """0 for equal tensors, about half the squared relative error of others; values near 0 count little."""
    a, b = x.double() + 1, y.double() + 1
    total = (a * a + b * b).sum()
    return float(1 - 2 * (a * b).sum() / total) if x.numel() else 0.0


def per_token_cast_to_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """([m, n] float8_e4m3fn, scales float32 [m, ceil(n / 128)]) of [m, n]: a block times its scale is the input."""
    m, n = x.shape
    blocks = torch.nn.functional.pad(x, (0, -n % BLOCK)).float().unflatten(1, (-1, BLOCK))
    largest = blocks.abs().amax(dim=2).clamp(min=LEAST_AMAX)
    q = (blocks * (FP8_MAX / largest)[:, :, None]).to(torch.float8_e4m3fn).flatten(1)[:, :n].contiguous()
    return q, largest / FP8_MAX


def per_token_cast_back(q: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[m, n] bfloat16 again; scales float32, or int32 of four exponent bytes."""
    if q.numel() == 0:
        return q.to(torch.bfloat16)
    if scales.dtype == torch.int32:
        dense = scales.clone(memory_format=torch.contiguous_format)
        scales = (dense.view(torch.uint8).to(torch.int32) << 23).view(torch.float32)
    n = q.shape[1]
    wide = torch.nn.functional.pad(q.float(), (0, -n % BLOCK)).unflatten(1, (-1, BLOCK))
    blocks = wide.shape[1]
    return (wide * scales[:, :blocks, None]).flatten(1)[:, :n].to(torch.bfloat16)


def inplace_unique(x: torch.Tensor, num_slots: int) -> None:
    """Each row keeps its distinct values of [0, num_slots), descending, then -1."""
    if x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dimensions, legal: 2")
    bucket = torch.where(x < 0, num_slots, x).to(torch.int64)
    has = torch.zeros(x.shape[0], num_slots + 1, dtype=torch.bool, device=x.device).scatter_(1, bucket, True)
    numbers = torch.arange(num_slots, device=x.device)
    ordered = torch.where(has[:, :num_slots], numbers, -1).sort(dim=1, descending=True).values
    kept = min(num_slots, x.shape[1])
    x.fill_(-1)
    x[:, :kept] = ordered[:, :kept].to(x.dtype)


def create_grouped_scores(scores: torch.Tensor, group_idx: torch.Tensor, num_groups: int) -> torch.Tensor:
    """[N, E] scores with 0 for experts outside the groups [N, any] that a token may use."""
    tokens, experts = scores.shape
    allowed = torch.zeros(tokens, num_groups, dtype=torch.bool, device=scores.device).scatter_(1, group_idx, True)
    return (scores.view(tokens, num_groups, experts // num_groups) * allowed[:, :, None]).view(tokens, experts)


def hash_tensor(t: torch.Tensor) -> int:
    """A number that equal bytes share."""
    flat = t.contiguous().flatten().view(torch.uint8)
    words = torch.nn.functional.pad(flat, (0, -flat.numel() % 8)).view(torch.int64)
    return int(words.sum())


def count_bytes(*tensors: Any) -> int:
    """Bytes of tensors in any nest of tuples and lists."""
    total = 0
    for one in tensors:
        if isinstance(one, torch.Tensor):
            total += one.numel() * one.element_size()
        elif isinstance(one, Iterable):
            total += count_bytes(*one)
    return total
