"""The handle of a V1 dispatch: a flat tuple of tensors, so that autograd can save, copy and give it back.

0 rank_prefix_matrix [R, R] int32: [i, own rank] = tokens received from ranks 0 to i; other columns are 0
1 source_tokens      [R] int32: tokens of each rank's batch
2 recv_ids           [n, K] int32: local expert ids of the received tokens, -1 = not of this rank
3 recv_src_idx       [n] int32: index of each received token in its rank's batch
4 is_token_in_rank   [N, R] bool
5 topk_idx           [N, K] int32; K = 0 for a dispatch without expert ids
6 numbers            [3] int64 on the CPU: format, experts, rows of the dispatch's output
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import heddle
import torch
from heddle import UsageError

FORMAT = 0x48454431  # tells our handles from others' tuples
NAMES = (
    "rank_prefix_matrix",
    "source_tokens",
    "recv_ids",
    "recv_src_idx",
    "is_token_in_rank",
    "topk_idx",
    "numbers",
)


# Of the first tensor: what the tuple stands for, as long as nothing of it was copied. Saves making it anew.
_KEPT = "_heddle_kept"


class Kept(NamedTuple):
    """heddle's own handle beside the tensors that say the same."""

    buffer: heddle.Buffer
    resets: int
    handle: heddle.Handle
    experts: int
    rows: int
    tensors: tuple[torch.Tensor, ...]


class Route(NamedTuple):
    """What a handle says."""

    experts: int
    rows: int
    rank_prefix_matrix: torch.Tensor
    source_tokens: torch.Tensor
    recv_ids: torch.Tensor
    recv_src_idx: torch.Tensor
    is_token_in_rank: torch.Tensor
    topk_idx: torch.Tensor
    kept: Kept | None


def pack(
    buffer: heddle.Buffer,
    received: heddle.Received,
    plan: heddle.Plan,
    is_token_in_rank: torch.Tensor,
    resets: int | None,
) -> tuple[torch.Tensor, ...]:
    """The tensors of a dispatch's handle. Their sizes are exact: where the host does not know them, it waits. `plan` is
    of that dispatch, after as many `resets` of the buffer; None: its output has a worst-case size.

    Raises OverflowError_ if more tokens arrived than the output has rows.
    """
    route = received.handle
    offset, recv_token, source_tokens, recv_ids = route.tensors()
    ranks, rows, is_fixed = buffer.size, received.x.shape[0], resets is None
    count = int(offset[-1]) if is_fixed and offset.is_cuda else len(recv_token)
    if count > rows:
        raise heddle.OverflowError_(f"num_worst_tokens = {rows}, legal: {count} or more")
    column = offset.as_strided((ranks, 1), (1, 1), offset.storage_offset() + 1)
    matrix = column * _own_column(ranks, buffer.rank, offset.device)
    topk = plan.topk
    tensors = (
        source_tokens,
        _first(recv_ids, count) if topk else offset.new_zeros(count, 0),
        _first(recv_token, count),
        is_token_in_rank,
        plan.ids if topk else offset.new_zeros(is_token_in_rank.shape[0], 0),
        _numbers(buffer.experts, rows),
    )
    if resets is not None:  # heddle's handle of a worst-case output is of all its rows
        setattr(matrix, _KEPT, Kept(buffer, resets, route, buffer.experts, rows, tensors))
    return matrix, *tensors


def _first(tensor: torch.Tensor, count: int) -> torch.Tensor:
    return tensor if len(tensor) == count else tensor[:count]


@lru_cache(maxsize=256)
def _own_column(ranks: int, rank: int, device: torch.device) -> torch.Tensor:
    """[R] int32: 1 at the own rank."""
    column = torch.zeros(ranks, dtype=torch.int32, device=device)
    column[rank] = 1
    return column


@lru_cache(maxsize=256)
def _numbers(experts: int, rows: int) -> torch.Tensor:
    return torch.tensor([FORMAT, experts, rows], dtype=torch.int64, device="cpu")


def _kept_of(handle: tuple[torch.Tensor, ...] | list[torch.Tensor]) -> Kept | None:
    kept = getattr(handle[0], _KEPT, None)
    if kept is None or not all(mine is theirs for mine, theirs in zip(handle[1:], kept.tensors, strict=True)):
        return None
    return kept


def unpack(handle: Any) -> Route:
    """Raises UsageError for anything but such a tuple, or a list of the same."""
    if not isinstance(handle, (tuple, list)):
        raise UsageError(f"handle is a {type(handle).__name__}, legal: the tuple of tensors that dispatch returned")
    if len(handle) != len(NAMES):
        raise UsageError(f"handle has {len(handle)} entries, legal: {len(NAMES)} ({', '.join(NAMES)})")
    if kept := _kept_of(handle):
        return Route(kept.experts, kept.rows, *handle[:-1], kept)
    for name, tensor in zip(NAMES, handle, strict=True):
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"handle's {name} is a {type(tensor).__name__}, legal: a tensor")
    numbers = handle[-1].tolist() if handle[-1].dim() == 1 else []
    if len(numbers) != 3 or numbers[0] != FORMAT:
        raise UsageError(f"handle's numbers are {numbers}, legal: those of a dispatch of this package")
    return Route(numbers[1], numbers[2], *handle[:-1], None)


def plan_of(buffer: heddle.Buffer, topk_idx: torch.Tensor | None, is_token_in_rank: torch.Tensor | None) -> heddle.Plan:
    """The route of a batch: by its expert ids if there are any, else by the ranks that its tokens go to."""
    if topk_idx is not None and topk_idx.shape[1] > 0:
        return buffer.plan(topk_idx)
    return buffer.plan_from_rank_map(is_token_in_rank)


def heddle_handle(buffer: heddle.Buffer, route: Route, resets: int) -> heddle.Handle:
    """The same route for heddle, after as many `resets` of the buffer.

    Raises UsageError for tensors that are not of one dispatch of this buffer.
    """
    kept = route.kept
    if kept is not None and kept.buffer is buffer and kept.resets == resets:
        return kept.handle
    prefix = route.rank_prefix_matrix
    if prefix.dim() != 2 or prefix.shape != (buffer.size, buffer.size):
        raise UsageError(
            f"handle's rank_prefix_matrix is {list(prefix.shape)}, legal: [{buffer.size}, {buffer.size}], of this group"
        )
    offset = torch.cat([prefix.new_zeros(1), prefix[:, buffer.rank]])
    return buffer.handle(
        plan_of(buffer, route.topk_idx, route.is_token_in_rank),
        recv_offset=offset,
        recv_token=route.recv_src_idx,
        source_tokens=route.source_tokens,
        recv_ids=route.recv_ids,
    )
