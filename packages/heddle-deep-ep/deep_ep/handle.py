"""The handle of a V1 dispatch: a flat tuple of tensors, so that autograd can save, copy and give it back.

0 rank_prefix_matrix [R, R] int32: [i, own rank] = tokens received from ranks 0 to i; other columns are as this one
1 source_tokens      [R] int32: tokens of each rank's batch
2 recv_ids           [n, K] int32: local expert ids of the received tokens, -1 = not of this rank
3 recv_src_idx       [n] int32: index of each received token in its rank's batch
4 is_token_in_rank   [N, R] bool
5 topk_idx           [N, K] int32; K = 0 for a dispatch without expert ids
6 numbers            [3] int64 on the CPU: format, experts, rows of the dispatch's output

On a GPU a dispatch with num_worst_tokens leaves that many rows in 2 and 3, as the host waits for no count: n is the
last number of 0.
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
    is_fixed: bool
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
    buffer: heddle.Buffer, made: tuple[Any, ...], is_token_in_rank: torch.Tensor, resets: int, is_fixed: bool
) -> tuple[torch.Tensor, ...]:
    """The tensors of a dispatch's handle, of what heddle's dispatch_tokens() made after as many `resets` of the buffer.
    `is_fixed`: its output has a worst-case size."""
    x, _, _, _, _, ends, recv_token, source_tokens, recv_ids, ids, core = made
    rows = held = x.shape[0]
    if is_fixed:
        held = min(recv_token.shape[0], rows)
        recv_token, recv_ids = first_rows(recv_token, held), first_rows(recv_ids, held)
    tensors = (
        source_tokens,
        ends.new_zeros(held, 0) if recv_ids is None else recv_ids,
        recv_token,
        is_token_in_rank,
        ends.new_zeros(is_token_in_rank.shape[0], 0) if ids is None else ids,
        _numbers(buffer.experts, rows),
    )
    route = heddle.Handle(core, True)
    setattr(ends, _KEPT, Kept(buffer, resets, route, buffer.experts, rows, is_fixed, tensors))
    return ends, *tensors


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


class Way(NamedTuple):
    """A route as heddle takes it."""

    handle: heddle.Handle
    rows: int
    """Of what is combined along it."""
    is_fixed: bool
    """A dispatch along it has these rows, whether they hold tokens or not."""


def way_of(buffer: heddle.Buffer, route: Route, resets: int, rows: int | None = None) -> Way:
    """The route again, after as many `resets` of the buffer, for `rows` to combine, if that many are given. Nothing
    waits for a GPU but where tensors of the handle were copied.

    Raises UsageError for tensors that are not of one dispatch of this buffer.
    """
    kept = route.kept
    if kept is not None and kept.buffer is buffer and kept.resets == resets and rows in (None, kept.rows):
        return Way(kept.handle, kept.rows, kept.is_fixed)
    prefix = route.rank_prefix_matrix
    if prefix.dim() != 2 or prefix.shape != (buffer.size, buffer.size):
        raise UsageError(
            f"handle's rank_prefix_matrix is {list(prefix.shape)}, legal: [{buffer.size}, {buffer.size}], of this group"
        )
    count = _count_of(route, buffer.rank)
    made = buffer.handle(
        plan_of(buffer, route.topk_idx, route.is_token_in_rank),
        recv_offset=torch.cat([prefix.new_zeros(1), prefix[:, buffer.rank]]),
        recv_token=first_rows(route.recv_src_idx, count),
        source_tokens=route.source_tokens,
        recv_ids=first_rows(route.recv_ids, count),
    )
    return Way(made, count, False)


def _count_of(route: Route, rank: int) -> int:
    """Tokens that were received."""
    held = route.recv_src_idx.shape[0]
    if not route.recv_src_idx.is_cuda or held != route.rows:
        return held
    count = int(route.rank_prefix_matrix[-1, rank])
    if count > held:
        raise UsageError(f"num_worst_tokens = {held} in the handle's dispatch, legal: {count} or more, which arrived")
    return count


def first_rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The same tensor where it has no more."""
    return tensor if tensor.shape[0] == count else tensor[:count]
