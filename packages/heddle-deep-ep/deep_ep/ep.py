"""EPBuffer: the interface of release 2.5."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from heddle import UsageError

from .allocator import ALLOCATION_ALIGNMENT, BufferAllocator
from .checks import positive
from .elastic import ElasticBuffer
from .ep_handle import EPHandle
from .expert_buffer import ExpertBuffer, Request
from .load_balance import LoadBalance
from .sm_model import V25
from .streams import check_v2_flags
from .utils.event import EventHandle, EventOverlap


class BufferBase:
    """What buffers of 2.5 have in common."""

    runtime: Any

    @property
    def main_context(self) -> Any:
        return self.runtime

    def print_memory_usage(self) -> None:
        """Bytes that the buffer takes on this rank, to standard output."""
        print(f"{type(self).__name__}: {self.runtime.num_bytes} bytes")


class EPBuffer(BufferBase, LoadBalance, ExpertBuffer):
    """One rank's end of dispatch and combine, as DeepEP 2.5 has it. All ranks make the same calls in the same order.

    lb_allocation_plan_or_num_bytes  a BufferAllocator that is not materialized, whose tensors this makes real; or
                                     bytes, a multiple of 2 MiB
    sl_idx                           None = EP_DEFAULT_RDMA_SL of the environment; accepted
    the others                       as ElasticBuffer's
    """

    _model = V25
    get_buffer_size_hint = staticmethod(ElasticBuffer.get_buffer_size_hint)

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        lb_allocation_plan_or_num_bytes: BufferAllocator | int = 0,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int | None = None,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = 300,
        num_gpu_timeout_secs: int = 100,
        explicitly_destroy: bool = False,
    ) -> None:
        positive("num_cpu_timeout_secs", num_cpu_timeout_secs)
        self.sl_idx = os.environ.get("EP_OVERRIDE_RDMA_SL") or sl_idx or os.environ.get("EP_DEFAULT_RDMA_SL")
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
        self.deterministic = deterministic
        self.lb_storage = _lb_storage(lb_allocation_plan_or_num_bytes)

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
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = False,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """As ElasticBuffer.dispatch(), but for:

        do_handle_copy  must be False: handle.topk_idx is the caller's tensor
        defer_epilogue  with async_with_compute_stream: returns an EventOverlap alone, whose first current_stream_wait()
                        returns (recv_x, recv_topk_idx, recv_topk_weights, handle). Every rank waits in the same order
        """
        check_v2_flags(previous_event, allocate_on_comm_stream)
        positive("num_qps", num_qps, 0)
        _check_defer(defer_epilogue, async_with_compute_stream)
        if do_handle_copy:
            raise UsageError("do_handle_copy is True, legal: False")
        ask = Request(
            x,
            topk_idx,
            topk_weights,
            cumulative_local_expert_recv_stats,
            num_experts,
            num_max_tokens_per_rank,
            expert_alignment,
            -(-num_sms // 2) * 2,
            handle,
            False,
            do_cpu_sync,
            do_expand,
            do_zero_padding,
            use_tma_aligned_col_major_sf,
        )
        inputs = [x, topk_idx, topk_weights]
        return self._run(
            self._prepared_dispatch(ask), inputs, previous_event, async_with_compute_stream, defer_epilogue
        )

    def combine(
        self,
        x: torch.Tensor,
        handle: EPHandle,
        topk_weights: torch.Tensor | None = None,
        bias: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: EventHandle | None = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """As ElasticBuffer.combine(), but for:

        defer_epilogue  with async_with_compute_stream: returns an EventOverlap alone, whose first current_stream_wait()
                        returns (combined_x, combined_topk_weights); bias may be written until then
        """
        check_v2_flags(previous_event, allocate_on_comm_stream)
        positive("num_sms", num_sms, 0)
        positive("num_qps", num_qps, 0)
        _check_defer(defer_epilogue, async_with_compute_stream)
        call = self._prepared_combine(x, handle, topk_weights, bias)
        return self._run(call, [x, topk_weights, bias], previous_event, async_with_compute_stream, defer_epilogue)

    def _run(
        self, call: Callable[[], tuple[Any, ...]], inputs: list[Any], previous: Any, is_async: bool, defer: bool
    ) -> Any:
        """A deferred call runs whole at the wait: nothing of it is seen before, and `previous` comes before that."""
        if not defer:
            result, event = self._comm_stream.run(call, inputs, previous_event=previous, is_async=is_async)
            return (*result, event)
        event = EventOverlap(EventHandle())
        event.register_hook_after_wait(
            lambda: self._comm_stream.run(call, inputs, previous_event=previous, is_async=False)[0]
        )
        return event


def _check_defer(defer_epilogue: bool, is_async: bool) -> None:
    if defer_epilogue and not is_async:
        raise UsageError("defer_epilogue is True with async_with_compute_stream False, legal: both")


def _lb_storage(plan: BufferAllocator | int) -> torch.Tensor | None:
    device = torch.device("cuda" if torch.cuda.is_initialized() else "cpu")
    if isinstance(plan, BufferAllocator):
        storage = torch.zeros(plan.num_bytes, dtype=torch.uint8, device=device)
        plan.materialize(storage)
        return storage
    num_bytes = positive("lb_allocation_plan_or_num_bytes", plan, 0)
    if num_bytes % ALLOCATION_ALIGNMENT:
        raise UsageError(
            f"lb_allocation_plan_or_num_bytes = {num_bytes}, legal: a BufferAllocator, or a multiple of "
            f"{ALLOCATION_ALIGNMENT}"
        )
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device) if num_bytes else None
