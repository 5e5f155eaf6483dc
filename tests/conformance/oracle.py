"""What dispatch and combine mean, in plain torch, for all ranks at once. Whole numbers, so that equality is exact."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass
class Batch:
    x: torch.Tensor  # [N, H] bfloat16
    ids: torch.Tensor  # [N, K] int64
    weights: torch.Tensor  # [N, K] float32


def make_batch(rank: int, tokens: int, hidden: int = 256, topk: int = 3, experts: int = 12, seed: int = 0) -> Batch:
    """No expert twice in a token; one id in six is -1, with a NaN weight that nobody may use."""
    made = torch.Generator(device="cpu").manual_seed(1000 * seed + rank)
    with torch.device("cpu"):
        x = torch.randint(-8, 9, (tokens, hidden), generator=made).to(torch.bfloat16)
        ids = torch.rand(tokens, experts, generator=made).topk(topk, dim=1).indices
        weights = torch.randint(1, 5, (tokens, topk), generator=made).to(torch.float32) / 4
        absent = torch.rand(tokens, topk, generator=made) < 1 / 6
        ids[absent] = -1
        weights[absent] = float("nan")
    device = torch.get_default_device()
    return Batch(x.to(device), ids.to(device), weights.to(device))


def batches(sizes: tuple[int, ...], **shape: int) -> list[Batch]:
    return [make_batch(rank, tokens, **shape) for rank, tokens in enumerate(sizes)]


def first_expert(rank: int, ranks: int, experts: int) -> int:
    return rank * experts // ranks


def owned(rank: int, ranks: int, experts: int) -> range:
    return range(first_expert(rank, ranks, experts), first_expert(rank + 1, ranks, experts))


def hits(ids: torch.Tensor, experts: range) -> torch.Tensor:
    """[N, K] bool: the column names one of these experts."""
    return (ids >= experts.start) & (ids < experts.stop)


def in_rank(ids: torch.Tensor, ranks: int, experts: int) -> torch.Tensor:
    """[N, R] bool."""
    return torch.stack([hits(ids, owned(r, ranks, experts)).any(dim=1) for r in range(ranks)], dim=1)


def weights_of(batch: Batch) -> torch.Tensor:
    """0 where there is no id."""
    return torch.where(batch.ids < 0, 0.0, batch.weights)


@dataclasses.dataclass
class Arrival:
    """What a rank receives, by source rank, then token."""

    x: torch.Tensor
    ids: torch.Tensor  # local or -1
    weights: torch.Tensor
    source: list[int]
    token: list[int]
    per_expert: list[int]


def arrivals(all_batches: list[Batch], rank: int, experts: int) -> Arrival:
    mine = owned(rank, len(all_batches), experts)
    parts, source, token = [], [], []
    for src, batch in enumerate(all_batches):
        here = hits(batch.ids, mine)
        chosen = here.any(dim=1).nonzero().flatten()
        local = torch.where(here, batch.ids - mine.start, -1)[chosen]
        parts.append((batch.x[chosen], local, torch.where(here, batch.weights, 0.0)[chosen]))
        source += [src] * len(chosen)
        token += chosen.tolist()
    x, ids, weights = (torch.cat(column) for column in zip(*parts, strict=True))
    return Arrival(x, ids, weights, source, token, [int((ids == e).sum()) for e in range(len(mine))])


def expert_rows(all_batches: list[Batch], expert: int) -> list[tuple[int, int, float]]:
    """(source, token, weight) of each hit of a global expert, by source, then token."""
    rows = []
    for src, batch in enumerate(all_batches):
        for token, column in (batch.ids == expert).nonzero().tolist():
            rows.append((src, token, float(batch.weights[token, column])))
    return rows


def ranks_reached(batch: Batch, ranks: int, experts: int) -> torch.Tensor:
    """[N, 1] how many ranks a token goes to."""
    return in_rank(batch.ids, ranks, experts).sum(dim=1, keepdim=True)


def align(value: int, to: int) -> int:
    return -(-value // to) * to


def same(seen: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    """Equal dtype, shape and every bit of the values."""
    assert seen.dtype == wanted.dtype, f"{what}: dtype {seen.dtype}, wanted {wanted.dtype}"
    assert tuple(seen.shape) == tuple(wanted.shape), f"{what}: {list(seen.shape)}, wanted {list(wanted.shape)}"
    if seen.numel() and not torch.equal(seen, wanted.to(seen.device)):
        different = (seen != wanted.to(seen.device)).nonzero()
        at = tuple(different[0].tolist()) if len(different) else "a NaN"
        raise AssertionError(f"{what}: {len(different)} elements differ, the first at {at}")
