"""ElasticBuffer: the V2 interface."""

from __future__ import annotations

from typing import Any

import torch

from .checks import positive
from .ep_handle import EPHandle
from .experimental import Experimental
from .expert_buffer import ExpertBuffer, Request, buffer_size_hint
from .sm_model import V2
from .streams import check_v2_flags
from .utils.event import EventHandle, EventOverlap


class ElasticBuffer(Experimental, ExpertBuffer):
    """One rank's end of dispatch and combine, as DeepEP's V2 has it. All ranks make the same calls in the same order.

    group                    a torch process group of any backend
    num_bytes                memory that peers write to; None = get_buffer_size_hint() of the settings after it
    num_max_tokens_per_rank  M, most tokens of a rank in a call; calls may name fewer, or any if it is 0
    deterministic            accepted: rows are always by source rank, then token
    allow_multiple_reduction False: partial sums cross the wire in FP32, and are rounded once
    num_gpu_timeout_secs     how long a call waits for a peer
    explicitly_destroy       destroy() gives memory back; else the end of the object does
    the others               accepted; change no result

    Raises ValueError naming a wrong argument.
    """

    _model = V2

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        positive("num_cpu_timeout_secs", num_cpu_timeout_secs)
        super().__init__(
            group,
            num_bytes=num_bytes,
            num_max_tokens_per_rank=num_max_tokens_per_rank,
            hidden=hidden,
            num_topk=num_topk,
            use_fp8_dispatch=use_fp8_dispatch,
            allow_hybrid_mode=allow_hybrid_mode,
            allow_multiple_reduction=allow_multiple_reduction,
            prefer_overlap_with_compute=prefer_overlap_with_compute,
            num_allocated_qps=num_allocated_qps,
            timeout=positive("num_gpu_timeout_secs", num_gpu_timeout_secs),
            explicitly_destroy=explicitly_destroy,
        )
        self.num_cpu_bytes = positive("num_cpu_bytes", num_cpu_bytes, 0)
        self.deterministic = deterministic

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Bytes for num_bytes, a multiple of 2 MiB."""
        return buffer_size_hint(
            group.size(),
            positive("num_max_tokens_per_rank", num_max_tokens_per_rank),
            positive("hidden", hidden),
            positive("num_topk", num_topk, 0),
            use_fp8_dispatch,
            allow_multiple_reduction,
        )

    def dispatch(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Any, torch.Tensor | None, torch.Tensor | None, EPHandle, EventOverlap]:
        """Sends every token once to each rank that has one of its experts. Collective.

        x            [N, H] rows of a multiple of 16 bytes, or (rows, scales [N, P] of a 4-byte type, any strides)
        topk_idx, topk_weights  [N, K] ids, -1 = none; float32
        cumulative_local_expert_recv_stats  [L] int32, gets what each expert received added
        num_experts  E; needed without a handle
        num_max_tokens_per_rank  M of this call, the same on all ranks; None = the buffer's
        expert_alignment  counts, and with do_expand each expert's first row, are rounded up to it; None = 1
        handle       of an earlier dispatch, to go the same way again: then no topk_idx, and weights only if wanted
        do_cpu_sync  False: outputs have their largest size, the list of counts is empty; None = True without a handle,
                     with one as in the dispatch that made it
        do_expand    a row for each (token, local expert), by expert, then source rank, then token; recv_topk_idx is
                     None
        do_zero_padding  with do_expand: rows between experts are zero, in x, weights and scales
        use_tma_aligned_col_major_sf  scales come with strides (1, rows rounded up to 4)

        Returns (recv_x as x, recv_topk_idx [n, K] local or -1, recv_topk_weights [n, K] or with do_expand [rows],
        handle, event). Rows past the last one received hold nothing.

        Raises ValueError naming a wrong argument; the other ranks then raise, too, and the next call works.
        """
        check_v2_flags(previous_event, allocate_on_comm_stream)
        positive("num_qps", num_qps, 0)
        ask = Request(
            x,
            topk_idx,
            topk_weights,
            cumulative_local_expert_recv_stats,
            num_experts,
            num_max_tokens_per_rank,
            expert_alignment,
            num_sms,
            handle,
            do_handle_copy,
            do_cpu_sync,
            do_expand,
            do_zero_padding,
            use_tma_aligned_col_major_sf,
        )
        if previous_event_before_epilogue is not None:
            previous_event_before_epilogue.current_stream_wait()
        result, event = self._comm_stream.run(
            self._prepared_dispatch(ask),
            [x, topk_idx, topk_weights],
            previous_event=previous_event,
            is_async=async_with_compute_stream,
        )
        return (*result, event)

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        previous_event_before_epilogue: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, EventOverlap]:
        """Sums what ranks return for each token, in FP32, without weights. Collective.

        x             [rows, H] bfloat16 in the layout of the dispatch; rows that hold nothing are not read
        topk_weights  float32 [rows, K], with do_expand [rows]: come back in the columns that they belong to
        bias          none, one or two [N, H], added first

        Returns (combined_x [N, H], combined_topk_weights [N, K] or None, event).
        """
        check_v2_flags(previous_event, allocate_on_comm_stream)
        positive("num_sms", num_sms, 0)
        positive("num_qps", num_qps, 0)
        if previous_event_before_epilogue is not None:
            previous_event_before_epilogue.current_stream_wait()
        result, event = self._comm_stream.run(
            self._prepared_combine(x, handle, topk_weights, bias),
            [x, topk_weights, bias],
            previous_event=previous_event,
            is_async=async_with_compute_stream,
        )
        return (*result, event)
