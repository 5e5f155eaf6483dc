"""The low-latency half of Buffer: slabs of tokens by local expert, calls that can be split into send and receive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from heddle import UsageError
from heddle.arguments import dispatch_options

from .checks import check_ids, check_weights, positive
from .combine_buffers import CombineBuffers
from .engine import Engine, telling_others
from .forms import Choices, Form, form_of
from .halves import end_of_call
from .low_latency_handle import Batch, route_of
from .prepared import Prepared, PreparedCalls
from .signals import of_experts, of_row_blocks
from .sizes import low_latency_window
from .trtllm import ReadyFp4
from .utils.event import EventOverlap
from .wait_stats import check_counts, row_of_waits


class LowLatency(ReadyFp4):
    """Mixed into Buffer. M most tokens of a rank in a call, the same on all."""

    rank: int
    group_size: int
    runtime: Engine
    _combine_buffers: CombineBuffers
    _prepared_calls: PreparedCalls

    def clean_low_latency_buffer(self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int) -> None:
        """Nothing to do: modes share no memory."""
        positive("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank)
        positive("hidden", hidden)
        positive("num_experts", num_experts)
        self.runtime.check_alive()

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        topk_weights: torch.Tensor | None = None,
        use_nvfp4: bool = False,
        x_global_scale: torch.Tensor | None = None,
        use_ue8m0_for_sf: bool = False,
        pertoken_quant: bool = False,
    ) -> tuple[Any, ...]:
        """Sends tokens to their experts' slabs. Collective; every rank names the same M and E.

        x         [N, H] bfloat16
        topk_idx  [N, K], -1 = none
        cumulative_local_expert_recv_stats  [L] int32, gets the received rows added
        dispatch_wait_recv_cost_stats       [R] or [R, R] int64, gets the nanoseconds added that this rank waited for
                                            each to speak
        use_fp8      rows become float8_e4m3fn with a scale for each 128 channels; round_scale: powers of two;
                     use_ue8m0: as exponent bytes, four to an int32
        use_nvfp4    with use_fp8=False: rows become 4-bit with x_global_scale (branch hybrid-ep), in the kernel
        use_ue8m0_for_sf  the same with powers of two as scales, uint8, without x_global_scale; by torch
        pertoken_quant  one float32 scale a token (rtp-llm)
        topk_weights [N, K] float32: travel as well, and the result has two more tensors (branch hybrid-ep)
        return_recv_hook  sends only; hook() receives. At most two such calls may be open; a third receives the first

        Returns (recv_x [L, R M, H], or (rows, scales); recv_count [L] int32; handle (src_info [L, R M] int32,
        layout_range [L, R] int64, M, H, E); event; hook or None). Only the first recv_count[e] rows of a slab are
        valid; a rank's rows lie together. With topk_weights after recv_count: weights [L, R M] float32, source ranks
        [L, R M] int32.
        """
        plain = not (use_nvfp4 or use_ue8m0_for_sf or pertoken_quant or (async_finish and return_recv_hook))
        choices = (num_max_dispatch_tokens_per_rank, num_experts, use_fp8, round_scale, use_ue8m0)
        if plain and topk_weights is cumulative_local_expert_recv_stats is dispatch_wait_recv_cost_stats is None:
            if prepared := self._prepared_calls.find(x, topk_idx, *choices):
                return prepared.dispatch(x, topk_idx, async_finish, return_recv_hook)
        check_ids(topk_idx)
        if not isinstance(x, torch.Tensor) or x.dim() != 2:
            raise UsageError(f"x is {type(x).__name__}, legal: bfloat16 [tokens, hidden]")

        def form() -> Form:
            return form_of(
                x,
                Choices(use_fp8, round_scale, use_ue8m0, use_nvfp4, use_ue8m0_for_sf, x_global_scale, pertoken_quant),
            )

        return self._dispatch_form(
            x,
            topk_idx,
            num_max_dispatch_tokens_per_rank,
            num_experts,
            form,
            hidden=x.shape[1],
            async_finish=async_finish,
            return_recv_hook=return_recv_hook,
            topk_weights=topk_weights,
            counts=cumulative_local_expert_recv_stats,
            waits=dispatch_wait_recv_cost_stats,
            choices=choices if plain else None,
        )

    def _dispatch_form(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        max_tokens: int,
        num_experts: int,
        make_form: Callable[[], Form],
        *,
        hidden: int,
        async_finish: bool,
        return_recv_hook: bool,
        topk_weights: torch.Tensor | None = None,
        counts: torch.Tensor | None = None,
        waits: torch.Tensor | None = None,
        choices: tuple[Any, ...] | None = None,
    ) -> tuple[Any, ...]:
        """A dispatch of what `make_form` makes of x, whose errors reach the other ranks. `choices`: of calls that are
        the same but for what the tensors hold, if they can be."""
        tokens = positive("num_max_dispatch_tokens_per_rank", max_tokens)
        experts = positive("num_experts", num_experts)
        window = low_latency_window(tokens, hidden, self.group_size, experts, topk_idx.shape[1])
        buffer = self.runtime.buffer(experts, x.device, window)
        with telling_others(buffer, "dispatch"):
            _check_modes(async_finish, return_recv_hook)
            form = make_form()
            if topk_weights is not None:
                check_weights(topk_weights, topk_idx.shape)
            check_counts(counts, len(buffer.local_experts))
            own_waits = row_of_waits("dispatch_wait_recv_cost_stats", waits, self.rank, self.group_size)
            if topk_idx.shape[0] != x.shape[0]:
                raise UsageError(f"topk_idx has {topk_idx.shape[0]} rows, legal: {x.shape[0]}, as x")
            options = dispatch_options(layout="slab", max_tokens=tokens, **form.options)
        made, receive = buffer.dispatch_slab(
            topk_idx,
            form.rows,
            options,
            scales=form.scales,
            weights=topk_weights,
            global_scale=form.global_scale,
            counts_total=counts,
            waits_total=own_waits,
            splits=return_recv_hook,
        )
        rows, scales, count, _, _, weights, sources, _ = made
        outputs = form.outputs(rows, scales)

        def finish() -> None:
            assert form.finish is not None
            form.finish(scales, outputs)

        slab = torch.Size((*made[3].shape, hidden))
        batch = Batch(buffer, topk_idx.shape, slab, (tokens, hidden, experts))
        if choices is not None:
            prepared = Prepared(self.runtime.epoch, batch, options, form.outputs)
            self._prepared_calls.keep(prepared, x, topk_idx, *choices)
        handle = batch.handle(made)
        rest = finish if form.finish is not None else None  # it keeps the outputs alive
        event, hook = end_of_call(receive, async_finish, rest, x.device)
        if topk_weights is None:
            return outputs, count, handle, event, hook
        return outputs, count, weights, sources, handle, event, hook

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: tuple[Any, ...],
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
        *,
        overlap: bool = False,
        packed_recv_count: torch.Tensor | None = None,
        comp_signal: torch.Tensor | None = None,
        block_m: int = 64,
        threshold: int = 0,
        num_sms: int = 3,
        src_signals: torch.Tensor | None = None,
        src_signal_expect_value: int = 0,
        opt_level: int = 0,
    ) -> tuple[torch.Tensor, EventOverlap, Callable[[], None] | None]:
        """Brings the experts' rows back: [N, H], each token's weighted sum. Collective.

        x             [L, R M, H] bfloat16; with zero_copy what get_next_low_latency_combine_buffer() returned is read
        topk_idx, topk_weights  [N, K] as in the dispatch; float32
        handle        of the dispatch
        use_logfmt    accepted: rows travel as they are, which loses nothing
        out           [N, H] to write to
        combine_wait_recv_cost_stats  [R] or [R, R] int64, gets the nanoseconds added that this rank waited for each to
                                       speak
        overlap       rows are read once their signals say so: comp_signal [L ceil(R M / 64)] int32 with
                      packed_recv_count, block_m, threshold; or src_signals [L] uint32 with src_signal_expect_value. On
                      a GPU one multiprocessor waits for all of them, then the combine starts

        Returns (combined [N, H], event, hook or None).
        """
        batch, core = route_of(handle)
        buffer = batch.buffer
        special = (
            zero_copy or overlap or combine_wait_recv_cost_stats is not None or (async_finish and return_recv_hook)
        )
        if not special and batch.fits(x, topk_idx, topk_weights, out):
            (combined, _), receive = buffer.combine_rows(
                core, x, weights=topk_weights, out=out, splits=return_recv_hook
            )
            return combined, *end_of_call(receive, async_finish, None, x.device)
        with telling_others(buffer, "combine"):
            _check_modes(async_finish, return_recv_hook)
            rows = self._rows_to_send(x, batch.slab, zero_copy, use_logfmt)
            batch.check_combine(topk_idx, topk_weights, out, x.dtype)
            own_waits = row_of_waits(
                "combine_wait_recv_cost_stats", combine_wait_recv_cost_stats, self.rank, self.group_size
            )
            ready = None
            if overlap and comp_signal is not None:
                if not return_recv_hook:
                    raise UsageError("return_recv_hook is False, legal with overlap and comp_signal: True")
                ready = of_row_blocks(comp_signal, packed_recv_count, rows.shape[1], block_m, threshold, num_sms)
            elif overlap:
                ready = of_experts(src_signals, len(buffer.local_experts), src_signal_expect_value)
        target = (
            out if out is None or out.stride(1) == 1 else torch.empty_like(out, memory_format=torch.contiguous_format)
        )
        sent = rows if rows.is_contiguous() else _as_rows(rows)
        (combined, _), receive = buffer.combine_rows(
            core,
            sent,
            weights=topk_weights,
            out=target,
            waits_total=own_waits,
            ready=ready,
            splits=return_recv_hook,
        )

        def finish() -> None:
            assert out is not None and target is not None  # memory of the caller's that heddle cannot write to
            out.copy_(target)

        event, hook = end_of_call(receive, async_finish, None if target is out else finish, x.device)
        return combined if out is None else out, event, hook

    def get_next_low_latency_combine_buffer(self, handle: tuple[Any, ...]) -> torch.Tensor:
        """[L, R M, H] bfloat16 with rows H + H / 64 apart: written to, then combined by zero_copy=True."""
        return self._combine_buffers.of(route_of(handle).batch.slab, handle[0].device)

    def _rows_to_send(self, x: Any, shape: torch.Size, zero_copy: bool, use_logfmt: bool) -> torch.Tensor:
        if not isinstance(x, torch.Tensor) or x.shape != shape:
            seen = list(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
            raise UsageError(f"x is {seen}, legal: {list(shape)}, as the dispatch's slabs")
        if zero_copy and use_logfmt:
            raise UsageError("use_logfmt is True with zero_copy, legal: one of them")
        if not zero_copy:
            return x
        if shape not in self._combine_buffers:
            raise UsageError("zero_copy is True, legal after get_next_low_latency_combine_buffer(handle)")
        return self._combine_buffers.of(shape, x.device)


def _check_modes(async_finish: bool, return_recv_hook: bool) -> None:
    if async_finish and return_recv_hook:
        raise UsageError("async_finish is True with return_recv_hook, legal: one of them")


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    """[L, R M, H] whose rows lie evenly apart, as [L R M, H]; else a copy."""
    if x.stride(2) == 1 and x.stride(0) == x.shape[1] * x.stride(1):
        return x.flatten(0, 1)
    return x.contiguous()
