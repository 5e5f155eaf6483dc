"""The handle of HybridEPBuffer: what callers know of it, and the route that hangs on its configuration."""

from __future__ import annotations

from typing import Any, NamedTuple

import heddle
import torch
from heddle import UsageError

from .checks import describe
from .hybrid_config import HybridEpConfigInstance


class Route(NamedTuple):
    """What combine and cached calls need; travels in the handle's configuration."""

    buffer: heddle.Buffer
    handle: heddle.Handle
    experts: int
    fixed: bool
    rows: int


def make(received: heddle.Received, ranks: int, tokens: int, config: HybridEpConfigInstance) -> tuple[Any, ...]:
    """The 11 entries, of which callers open the last. 4 to 6 describe received tokens: empty where their number is not
    known on the host. `tokens` is N of this rank, one of `ranks`."""
    route = received.handle
    plan, device = route.plan, received.x.device
    in_rank = plan.is_token_in_rank
    place = torch.cumsum(in_rank.to(torch.int32), dim=0, dtype=torch.int32) - 1
    anywhere = torch.nn.functional.pad(in_rank.any(dim=1, keepdim=True), (0, 0, 0, -tokens % 16))
    elsewhere = torch.zeros(tokens, 0, dtype=torch.bool, device=device)
    total = route.recv_offset[-1:].clone()
    local = chunks = rows = None
    if not received.x.is_cuda:
        local, chunks, rows = _received_tables(route, ranks, tokens, received.num_per_expert.shape[0])
    overflow = (received.dropped > 0).to(torch.int32)
    return (
        torch.where(in_rank, place, -1),
        anywhere,
        elsewhere,
        total,
        local,
        chunks,
        rows,
        received.num_per_expert,
        tokens,
        config,
        overflow,
    )


def route_of(handle: Any, config_at: int) -> Route:
    legal = "legal: the handle of a dispatch of this package"
    if not isinstance(handle, (tuple, list)) or len(handle) <= config_at:
        raise UsageError(f"handle is {describe(handle)}, {legal}")
    route = getattr(handle[config_at], "_route", None)
    if not isinstance(route, Route):
        raise UsageError(f"handle[{config_at}] is {describe(handle[config_at])}, {legal}")
    return route


def _received_tables(
    route: heddle.Handle, ranks: int, tokens: int, local: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(Experts of received tokens bool [T, L]; running counts of 64-token source chunks; rows of each [T, L])."""
    ids, offset = route.recv_ids.to(torch.int64), route.recv_offset
    received = ids.shape[0]
    bucket = torch.where(ids < 0, local, ids)
    hits = torch.zeros(received, local + 1, dtype=torch.bool, device=ids.device).scatter_(1, bucket, True)
    rows = torch.full((received, local + 1), -1, dtype=torch.int32, device=ids.device)
    if route.row_of is not None:
        first = route.row_of.clamp(min=-1)
        rows.scatter_reduce_(1, bucket, first, "amax")
    source = torch.searchsorted(
        offset[1:].contiguous(), torch.arange(received, dtype=torch.int32, device=ids.device), right=True
    )
    per_rank = max(-(-max(int(route.source_tokens.max()), tokens) // 64), 1)
    chunk = source * per_rank + route.recv_token.to(torch.int64) // 64
    counts = torch.bincount(chunk, minlength=per_rank * ranks)
    return hits[:, :local], torch.cumsum(counts, 0).to(torch.int32), rows[:, :local]
