"""What ElasticBuffer (V2) and EPBuffer (2.5) share: settings, dispatch and combine, recommendations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import heddle
import torch
from heddle import UsageError

from .checks import biases, check_ids, check_int32, check_weights, device_of, positive, rows_and_scales
from .column_major import column_major
from .engine import Engine, telling_others
from .ep_handle import EPHandle, Settings
from .group import bootstrap_of, get_logical_domain_size, get_physical_domain_size
from .sizes import align
from .sm_model import Model, measured_nvlink_gbs, theoretical_num_sms
from .streams import CommStream
from .utils.event import EventHandle

ALIGNMENT = 2 << 20
_TOPK_IF_UNKNOWN = 32


class Request(NamedTuple):
    """Arguments of a dispatch but for events."""

    x: Any
    topk_idx: Any = None
    topk_weights: Any = None
    stats: Any = None
    num_experts: int | None = None
    max_tokens: int | None = None
    alignment: int | None = None
    num_sms: int = 0
    handle: Any = None
    copies_ids: bool = True
    do_cpu_sync: bool | None = None
    do_expand: bool = False
    zero_padding: bool = False
    tma_scales: bool = False


class ExpertBuffer:
    """One rank's end of dispatch and combine; M most tokens of a rank in a call."""

    _model: ClassVar[Model]

    def __init__(
        self,
        group: Any,
        *,
        num_bytes: int | None,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int,
        use_fp8_dispatch: bool,
        allow_hybrid_mode: bool,
        allow_multiple_reduction: bool,
        prefer_overlap_with_compute: bool,
        num_allocated_qps: int,
        timeout: float,
        explicitly_destroy: bool,
    ) -> None:
        bootstrap = bootstrap_of(group)
        self.group = group
        self.rank_idx = bootstrap.rank
        self.num_ranks = bootstrap.size
        self.num_max_tokens_per_rank = positive("num_max_tokens_per_rank", num_max_tokens_per_rank, 0)
        self.hidden = positive("hidden", hidden, 0)
        self.num_topk = positive("num_topk", num_topk, 0)
        if num_bytes is None:
            if not self.num_max_tokens_per_rank or not self.hidden:
                raise UsageError("num_bytes is None, legal: bytes, or num_max_tokens_per_rank and hidden of 1 or more")
            num_bytes = buffer_size_hint(
                self.num_ranks, self.num_max_tokens_per_rank, self.hidden, self.num_topk, use_fp8_dispatch
            )
        self.num_bytes = align(positive("num_bytes", num_bytes, 0), ALIGNMENT)
        self.use_fp8_dispatch = use_fp8_dispatch
        self.allow_hybrid_mode = allow_hybrid_mode
        self.allow_multiple_reduction = allow_multiple_reduction
        self.prefer_overlap_with_compute = prefer_overlap_with_compute
        qps = 129 if allow_hybrid_mode else 17
        self.num_allocated_qps = positive("num_allocated_qps", num_allocated_qps, 0) or qps
        self.explicitly_destroy = explicitly_destroy
        self.num_rdma_ranks, self.num_nvlink_ranks = 1, self.num_ranks
        self.num_scaleout_ranks, self.num_scaleup_ranks = 1, self.num_ranks
        self.scaleout_rank_idx, self.scaleup_rank_idx = 0, self.rank_idx
        self.runtime = Engine(bootstrap, window_bytes=self.num_bytes, timeout=timeout)
        self._comm_stream = CommStream()
        self._num_sms: dict[tuple[Any, ...], int] = {}

    def destroy(self) -> None:
        """Gives the memory back. Local; idempotent."""
        if not self.explicitly_destroy:
            raise UsageError("explicitly_destroy is False, legal for destroy(): True, as the buffer was made")
        self.runtime.destroy()

    def get_comm_stream(self) -> Any:
        return self._comm_stream.get()

    @staticmethod
    def capture() -> EventHandle:
        """What the current stream has been given so far."""
        return EventHandle()

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Returns once all ranks have called it."""
        self.runtime.barrier()

    def get_physical_domain_size(self) -> tuple[int, int]:
        return get_physical_domain_size(self.group)

    def get_logical_domain_size(self) -> tuple[int, int]:
        return get_logical_domain_size(self.group, self.allow_hybrid_mode)

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 0,
        sm_write_gbs: float = 0,
    ) -> int:
        """What DeepEP's model recommends: even, the same on all ranks. 0 = as measured. No number changes a result."""
        if num_scaleout_topk != 0:
            raise UsageError(f"num_scaleout_topk = {num_scaleout_topk}, legal: 0")
        experts, topk = positive("num_experts", num_experts), positive("num_topk", num_topk)
        key = (experts, topk, float(nvlink_gbs), float(sm_read_gbs), float(sm_write_gbs))
        if key not in self._num_sms:
            self._num_sms[key] = theoretical_num_sms(
                self.num_ranks,
                experts,
                topk,
                model=self._model,
                nvlink=key[2] or measured_nvlink_gbs(),
                read=key[3],
                write=key[4],
                overlaps=self.prefer_overlap_with_compute,
            )
        return self._num_sms[key]

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        sms = positive("num_sms", num_sms)
        return min(16 * sms + 1 if self.allow_hybrid_mode else min(sms, 9), self.num_allocated_qps)

    # --- dispatch ---

    def _prepared_dispatch(self, ask: Request) -> Callable[[], tuple[Any, ...]]:
        """Checks the arguments; the call itself returns (recv_x, recv_topk_idx, recv_topk_weights, handle)."""
        if ask.handle is not None:
            return self._prepared_again(ask)
        if ask.num_experts is None:
            raise UsageError("num_experts is None, legal without a handle: the number of experts of all ranks")
        experts = positive("num_experts", ask.num_experts)
        buffer = self.runtime.buffer(experts, device_of(ask.topk_idx, ask.x))
        with telling_others(buffer, "dispatch"):
            rows, scales = rows_and_scales(ask.x)
            check_ids(ask.topk_idx)
            if ask.topk_weights is not None:
                check_weights(ask.topk_weights, tuple(ask.topk_idx.shape))
            self._check_stats(buffer, ask.stats)
            settings = self._settings(ask)
            plan = buffer.plan(ask.topk_idx)
        options: dict[str, Any] = {"alignment": settings.alignment, "max_tokens": settings.max_tokens}
        layout = "expert_major" if settings.do_expand else "token_major"

        def call() -> tuple[Any, ...]:
            received = buffer.dispatch(
                plan,
                rows,
                scales=scales,
                weights=ask.topk_weights,
                layout=layout,
                fixed_size=settings.fixed,
                zero_padding=ask.zero_padding,
                wide_ids=ask.topk_idx.dtype is torch.int64,
                **options,
            )
            if ask.stats is not None:
                ask.stats.add_(received.num_per_expert)
            kept = ask.topk_idx.clone() if ask.copies_ids else ask.topk_idx
            handle = EPHandle(buffer, received, settings, kept)
            return _outputs(ask, received, handle)

        return call

    def _prepared_again(self, ask: Request) -> Callable[[], tuple[Any, ...]]:
        first = ask.handle
        if not isinstance(first, EPHandle):
            raise UsageError(f"handle is a {type(first).__name__}, legal: the EPHandle of a dispatch")
        buffer = first._buffer
        with telling_others(buffer, "dispatch"):
            rows, scales = rows_and_scales(ask.x)
            self._check_same(ask, first)
            if ask.topk_weights is not None:
                check_weights(ask.topk_weights, tuple(first.topk_idx.shape))
        if ask.do_expand and not first.do_expand:
            fresh = ask._replace(
                handle=None,
                topk_idx=first.topk_idx,
                num_experts=first.num_experts,
                max_tokens=first.num_max_tokens_per_rank,
                alignment=first.expert_alignment,
                do_cpu_sync=not first._fixed,
            )
            return self._prepared_dispatch(fresh)
        settings = Settings(
            first.do_expand,
            first.num_experts,
            first.expert_alignment,
            first.num_max_tokens_per_rank,
            positive("num_sms", ask.num_sms, 0) or first.num_sms,
            first._fixed,
        )

        def call() -> tuple[Any, ...]:
            received = buffer.dispatch(
                first._route,
                rows,
                scales=scales,
                weights=ask.topk_weights,
                fixed_size=first._fixed,
                zero_padding=ask.zero_padding,
                wide_ids=first.topk_idx.dtype is torch.int64,
            )
            handle = EPHandle(buffer, received, settings, first.topk_idx, first)
            return _outputs(ask._replace(topk_idx=first.topk_idx), received, handle)

        return call

    @staticmethod
    def _check_same(ask: Request, first: EPHandle) -> None:
        for name, value in (("topk_idx", ask.topk_idx), ("cumulative_local_expert_recv_stats", ask.stats)):
            if value is not None:
                raise UsageError(f"{name} is given with a handle, legal: None")
        for name, value, before in (
            ("num_experts", ask.num_experts, first.num_experts),
            ("expert_alignment", ask.alignment, first.expert_alignment),
            ("num_max_tokens_per_rank", ask.max_tokens, first.num_max_tokens_per_rank),
        ):
            if value is not None and value != before:
                raise UsageError(f"{name} = {value}, legal with this handle: {before}, or None")

    def _settings(self, ask: Request) -> Settings:
        experts = int(ask.num_experts or 0)
        limit = self.num_max_tokens_per_rank
        most = limit if ask.max_tokens is None else ask.max_tokens
        if most < 1 or (limit and most > limit):
            legal = f"1 to the buffer's {limit}" if limit else "1 or more, here or when the buffer is made"
            raise UsageError(f"num_max_tokens_per_rank = {most}, legal: {legal}")
        alignment = 1 if ask.alignment is None else positive("expert_alignment", ask.alignment)
        sms = positive("num_sms", ask.num_sms, 0)
        if not sms:
            sms = self.get_theoretical_num_sms(experts, min(ask.topk_idx.shape[1], experts) or 1)
        waits = True if ask.do_cpu_sync is None else bool(ask.do_cpu_sync)
        return Settings(bool(ask.do_expand), experts, alignment, int(most), sms, not waits)

    @staticmethod
    def _check_stats(buffer: heddle.Buffer, stats: Any) -> None:
        if stats is not None:
            check_int32(stats, (len(buffer.local_experts),), "cumulative_local_expert_recv_stats")

    # --- combine ---

    def _prepared_combine(self, x: Any, handle: Any, topk_weights: Any, bias: Any) -> Callable[[], tuple[Any, Any]]:
        """Checks the arguments; the call itself returns (combined_x, combined_topk_weights)."""
        if not isinstance(handle, EPHandle):
            raise UsageError(f"handle is a {type(handle).__name__}, legal: the EPHandle of a dispatch")
        buffer = handle._buffer
        with telling_others(buffer, "combine"):
            rows, scales = rows_and_scales(x)
            if scales is not None:
                raise UsageError("x is (rows, scales), legal in combine: a tensor")
            if topk_weights is not None:
                shape = (handle._rows,) if handle.do_expand else (handle._rows, handle.topk_idx.shape[1])
                check_weights(topk_weights, shape)
            both = biases(bias)

        def call() -> tuple[Any, Any]:
            combined = buffer.combine(
                handle._route,
                rows,
                bias=both or None,
                row_weights=topk_weights,
                wire="usual" if self.allow_multiple_reduction else "float32",
            )
            return combined.x, combined.weights

        return call


def _outputs(ask: Request, received: Any, handle: EPHandle) -> tuple[Any, Any, Any, EPHandle]:
    recv_x: Any = received.x
    if isinstance(ask.x, (tuple, list)):
        recv_x = (received.x, column_major(received.scales) if ask.tma_scales else received.scales)
    ids = None if handle.do_expand else received.ids.to(ask.topk_idx.dtype)
    weights = None if ask.topk_weights is None else received.weights
    if weights is not None and handle.do_expand and ask.zero_padding:
        weights = torch.where(received.row_token < 0, 0.0, weights)
        if isinstance(recv_x, tuple):
            recv_x[1].view(torch.int32)[received.row_token < 0] = 0
    elif handle.do_expand and ask.zero_padding and isinstance(recv_x, tuple):
        recv_x[1].view(torch.int32)[received.row_token < 0] = 0
    return recv_x, ids, weights, handle


def buffer_size_hint(ranks: int, tokens: int, hidden: int, topk: int, fp8: bool, several: bool = True) -> int:
    """Bytes of DeepEP's formula for one NVLink domain, in 64 bits. Heddle works in whatever it is given, in rounds."""
    topk = topk or _TOPK_IF_UNKNOWN
    metadata = align(topk * 8 + (1 + topk) * 4, 32)
    scales = align(4 * -(-hidden // 32), 32) if fp8 else 0
    sent = align(hidden * (1 if fp8 else 2), 32) + scales + metadata
    dispatch = ranks * tokens * sent
    returned = align(hidden * 2, 32) + align(topk * 8, 32)
    combine = (min(ranks, topk) if several else topk) * tokens * returned
    return align(max(dispatch, combine), ALIGNMENT)
