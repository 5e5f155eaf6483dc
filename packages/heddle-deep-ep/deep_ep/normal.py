"""The normal half of Buffer: layout, dispatch and combine of whole batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import heddle
import torch
from heddle import UsageError
from heddle.arguments import dispatch_options

from . import checks
from .checks import check_ids, check_weights, positive, rows_and_scales
from .config import NUM_LOCAL_RANKS, Config
from .engine import Engine, telling_others
from .handle import first_rows, pack, unpack, way_of
from .known_dispatches import KnownDispatches
from .routing import exchange_counts, layout_of
from .sizes import align
from .streams import CommStream, check_v1_flags
from .utils.event import EventOverlap

Handle = tuple[torch.Tensor, ...]
_LAYOUT = ("num_tokens_per_rank", "is_token_in_rank", "num_tokens_per_expert")


class NormalMode:
    """Mixed into Buffer. N tokens of this rank, n received, K columns, H hidden, E experts, L of this rank, R ranks."""

    rank: int
    group_size: int
    runtime: Engine
    _comm_stream: CommStream
    _known_dispatches: KnownDispatches

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor, EventOverlap]:
        """What dispatch must know of topk_idx [N, K], -1 = none. Local.

        Returns (num_tokens_per_rank [R] int32, num_tokens_per_rdma_rank [R / 8] int32 or None up to 8 ranks,
        num_tokens_per_expert [E] int32 of (token, column) pairs, is_token_in_rank [N, R] bool, event).
        """
        check_ids(topk_idx)
        check_v1_flags(previous_event, async_finish, allocate_on_comm_stream)
        experts = positive("num_experts", num_experts)
        layout, event = self._comm_stream.run(
            lambda: self._planned_layout(topk_idx, experts) or layout_of(topk_idx, experts, self.group_size),
            [topk_idx],
            previous_event=previous_event,
            is_async=async_finish,
        )
        per_rank, per_expert, in_rank = layout
        return per_rank, self._per_rdma_rank(in_rank), per_expert, in_rank, event

    def _planned_layout(self, topk_idx: torch.Tensor, experts: int) -> tuple[torch.Tensor, ...] | None:
        """layout_of() by heddle's plan, in an eighth of the time. None before there is a buffer, and for ids that are
        refused."""
        buffer = self.runtime.made_buffer(experts, topk_idx.device)
        if buffer is None or topk_idx.shape[1] == 0:
            return None
        try:
            return buffer.reach(topk_idx)
        except heddle.Error:
            return None

    def _per_rdma_rank(self, in_rank: torch.Tensor) -> torch.Tensor | None:
        if self.group_size <= NUM_LOCAL_RANKS:
            return None
        missing = -self.group_size % NUM_LOCAL_RANKS
        padded = torch.nn.functional.pad(in_rank, (0, missing))
        return padded.unflatten(1, (-1, NUM_LOCAL_RANKS)).any(dim=2).sum(dim=0, dtype=torch.int32)

    def dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        handle: Handle | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
        *,
        global_expert_id_offset: int | None = None,
    ) -> tuple[Any, torch.Tensor | None, torch.Tensor | None, list[int] | None, Handle | None, EventOverlap]:
        """Sends every token once to each rank that has one of its experts. Collective.

        x        [N, H] rows of a multiple of 16 bytes, or (rows of a 1-byte type, scales [N, S] of a 4-byte type, any
                 strides), or three tensors of 4-byte types (packed FP4, its scales, factors: branch hybrid-ep)
        handle   of an earlier dispatch, to go the same way again; then no layout, ids or weights
        num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert  of get_dispatch_layout, needed without a handle
        topk_idx, topk_weights  [N, K] ids and float32 weights, both or neither
        expert_alignment  counts of the returned list are rounded up to it
        num_worst_tokens  rows of the outputs, without waiting for counts; 0 = as many as come
        config   accepted; changes no result

        Returns (recv_x as x [n, H], recv_topk_idx [n, K] local ids or -1, recv_topk_weights [n, K], 0 where -1,
        num_recv_tokens_per_expert_list [L], handle, event); rows by source rank, then token. With a handle the four in
        the middle are None; with num_worst_tokens the list is empty, and ids past the last row are -1.

        Raises ValueError naming a wrong argument; the other ranks then raise, too, and the next call works.
        """
        check_v1_flags(previous_event, async_finish, allocate_on_comm_stream)
        inputs = [x, topk_idx, topk_weights, is_token_in_rank, num_tokens_per_expert, handle]
        if handle is not None:
            call: Callable[[], Any] = lambda: self._dispatch_again(x, handle, topk_idx, topk_weights)  # noqa: E731
        else:
            layout = (num_tokens_per_rank, is_token_in_rank, num_tokens_per_expert)
            routing = (topk_idx, topk_weights, expert_alignment, num_worst_tokens, global_expert_id_offset)
            known = self._known_dispatches.find(x, topk_idx, expert_alignment, num_worst_tokens)
            if known is not None and global_expert_id_offset is None and known.fits(layout, topk_weights):
                resets = self.runtime.resets
                call = lambda: known.dispatch(x, is_token_in_rank, topk_idx, topk_weights, resets)  # noqa: E731
            else:
                call = lambda: self._dispatch(x, layout, routing)  # noqa: E731
        result, event = self._comm_stream.run(call, inputs, previous_event=previous_event, is_async=async_finish)
        return (*result, event)

    def _dispatch(self, x: Any, layout: tuple[Any, ...], routing: tuple[Any, ...]) -> tuple[Any, ...]:
        topk_idx, topk_weights, alignment, worst, offset = routing
        buffer, in_rank = self._buffer_for(layout)
        with telling_others(buffer, "dispatch"):
            rows, scales = rows_and_scales(x)
            alignment = positive("expert_alignment", alignment)
            worst = positive("num_worst_tokens", worst, 0)
            self._check_routing(rows, in_rank, topk_idx, topk_weights, worst)
            fixed: dict[str, Any] = {"fixed_size": True, "capacity": worst, "max_tokens": worst} if worst else {}
            wide = topk_idx is not None and topk_idx.dtype is torch.int64
            options = dispatch_options(**fixed, wide_ids=wide)
            has_ids = topk_idx is not None and topk_idx.shape[1] > 0
            by = topk_idx if has_ids else buffer.plan_from_rank_map(in_rank)._core
        made = buffer.dispatch_tokens(by, rows, options, scales=scales, weights=topk_weights)
        recv_x, recv_scales, ids, weights, counts, *_ = made
        if topk_idx is None:
            counts, weights = exchange_counts(buffer, layout[2]), None
        else:
            if offset is not None:
                ids = torch.where(ids < 0, layout[2].numel(), ids + offset)
        per_expert = counts if alignment == 1 else [align(count, alignment) for count in counts]
        if has_ids and scales is None and offset is None:
            self._known_dispatches.keep(x, topk_idx, buffer, options, layout, topk_weights, (alignment, worst))
        handle = pack(buffer, made, in_rank, self.runtime.resets, bool(worst))
        return checks.parts_like(x, recv_x, recv_scales), ids, weights, per_expert, handle

    def _buffer_for(self, layout: tuple[Any, ...]) -> tuple[heddle.Buffer, torch.Tensor]:
        for name, tensor in zip(_LAYOUT, layout, strict=True):
            if not isinstance(tensor, torch.Tensor):
                raise UsageError(f"{name} is not a tensor, legal without a handle: what get_dispatch_layout returned")
        experts = positive("num_tokens_per_expert's length", layout[2].numel())
        return self.runtime.buffer(experts, layout[1].device), layout[1]

    def _check_routing(self, rows: Any, in_rank: Any, topk_idx: Any, topk_weights: Any, worst: int) -> None:
        if in_rank.shape != (rows.shape[0], self.group_size) or in_rank.dtype != torch.bool:
            raise UsageError(
                f"is_token_in_rank is {in_rank.dtype} {list(in_rank.shape)}, legal: bool "
                f"[{rows.shape[0]}, {self.group_size}]"
            )
        if (topk_idx is None) != (topk_weights is None):
            given = "topk_weights" if topk_idx is None else "topk_idx"
            raise UsageError(f"{given} is given alone, legal: topk_idx and topk_weights, or neither")
        if topk_idx is None:
            if worst:
                raise UsageError(f"num_worst_tokens = {worst} without topk_idx, legal: 0, or with topk_idx")
            return
        check_ids(topk_idx)
        if topk_idx.shape[0] != rows.shape[0]:
            raise UsageError(f"topk_idx has {topk_idx.shape[0]} rows, legal: {rows.shape[0]}, as x")
        check_weights(topk_weights, topk_idx.shape)

    def _dispatch_again(self, x: Any, handle: Any, topk_idx: Any, topk_weights: Any) -> tuple[Any, ...]:
        route = unpack(handle)
        buffer = self.runtime.buffer(route.experts, route.recv_src_idx.device)
        with telling_others(buffer, "dispatch"):
            if topk_idx is not None or topk_weights is not None:
                raise UsageError("topk_idx is given with a handle, legal: None, for topk_weights as well")
            rows, scales = rows_and_scales(x)
            way = way_of(buffer, route, self.runtime.resets)
        fixed: dict[str, Any] = {"fixed_size": True, "capacity": way.rows} if way.is_fixed else {}
        moved, moved_scales = buffer.dispatch_rows(way.handle, rows, dispatch_options(**fixed), scales=scales)
        again = checks.parts_like(x, moved, moved_scales)
        missing = route.rows - moved.shape[0]
        if missing > 0:
            again = _padded(again, missing)
        return again, None, None, None, None

    def combine(
        self,
        x: torch.Tensor,
        handle: Handle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        config: Config | None = None,
        previous_event: EventOverlap | None = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Sums what ranks return for each token, in FP32, without weights. Collective.

        x             [n, H] bfloat16 (float16 and float32 as well), rows in the order of the dispatch
        handle        of that dispatch
        topk_weights  [n, K] float32: come back in the columns that they belong to
        bias          one or two [N, H], added first

        Returns (combined_x [N, H], combined_topk_weights [N, K] or None, event).

        Raises ValueError naming a wrong argument; the other ranks then raise, too, and the next call works.
        """
        check_v1_flags(previous_event, async_finish, allocate_on_comm_stream)
        result, event = self._comm_stream.run(
            lambda: self._combine(x, handle, topk_weights, bias),
            [x, handle, topk_weights, bias],
            previous_event=previous_event,
            is_async=async_finish,
        )
        return (*result, event)

    def _combine(self, x: Any, handle: Any, topk_weights: Any, bias: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        route = unpack(handle)
        buffer = self.runtime.buffer(route.experts, route.recv_src_idx.device)
        with telling_others(buffer, "combine"):
            rows, scales = rows_and_scales(x)
            if scales is not None:
                raise UsageError("x is (rows, scales), legal in combine: a tensor")
            if rows.shape[0] not in (route.recv_src_idx.shape[0], route.rows):
                raise UsageError(f"x has {rows.shape[0]} rows, legal: {route.rows}, as dispatch returned")
            if topk_weights is not None:
                check_weights(topk_weights, (rows.shape[0], route.topk_idx.shape[1]))
            biases = checks.biases(bias)
            way = way_of(buffer, route, self.runtime.resets, rows.shape[0])
        weights = None if topk_weights is None else first_rows(topk_weights, way.rows)
        rows = first_rows(rows, way.rows)
        sums, _ = buffer.combine_rows(way.handle._core, rows, bias=biases or None, row_weights=weights)
        return sums

    internode_dispatch = dispatch
    internode_combine = combine


def _padded(x: Any, rows: int) -> Any:
    """The same with more rows, which hold nothing."""
    if isinstance(x, tuple):
        return tuple(_padded(one, rows) for one in x)
    return torch.cat([x.view(torch.uint8), x.view(torch.uint8).new_zeros(rows, x.view(torch.uint8).shape[1])]).view(
        x.dtype
    )
