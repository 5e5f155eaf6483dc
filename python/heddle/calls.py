"""The calls of a Buffer that move rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from . import _core
from .arguments import (
    argument_named_by,
    check_handle,
    combine_options,
    dispatch_options,
    ids_in,
    plan_or_ids,
    route_or_ids,
    sms,
)
from .errors import UsageError
from .frameworks import Array, dtype_name, is_torch
from .heap import TorchHeap
from .results import Combined, Received, Split
from .route import Handle, Plan
from .streams import join, place, run_in


class Calls:
    """Mixed into Buffer.

    What Python finds wrong with an argument is told to the other ranks here, by refuse_...(): they make the call. What
    C++ finds wrong it tells by itself.
    """

    _core: _core.Buffer
    _gpu: int | None
    _has_allocator: bool

    def dispatch(
        self,
        route: Plan | Handle | Array,
        x: Array,
        *,
        scales: Array | None = None,
        weights: Array | None = None,
        global_scale: Array | None = None,
        counts_total: Array | None = None,
        waits_total: Array | None = None,
        expert_ready: Array | None = None,
        dtype: Any = None,
        layout: str = "token_major",
        alignment: int = 1,
        quantise: str = "none",
        scale_layout: str = "usual",
        fixed_size: bool = False,
        capacity: int | None = None,
        max_tokens: int | None = None,
        zero_padding: bool = False,
        drop_overflow: bool = False,
        wide_ids: bool = False,
        stream: Any = None,
        num_sms: int | None = None,
    ) -> Received:
        """Sends every token once to each rank that owns one of its experts. Collective.

        route          a Plan; or ids [T, K] as plan() takes them, whose plan the dispatch then makes, on a GPU's stream
                       mostly in its own launch (an id that is no expert counts as none there); or the Handle of an
                       earlier dispatch to go the same way again: layout, alignment and max_tokens are then those of
                       that dispatch
        x              [T, H] rows of a multiple of 16 bytes, any element type of 1, 2 or 4 bytes
        scales         [T, P] of a 4-byte type, any strides; travels with x untouched
        weights        [T, K] float32
        dtype          what x's elements are, where the array cannot say it: "bfloat16" for uint16, "float8_e4m3fn" for
                       uint8
        layout         "token_major": one row a token, by source rank, then token order, local expert ids beside it
                       "expert_major": one row a (token, expert), grouped by expert
                       "slab": the same in [L, R x max_tokens, H]
        alignment      expert-major: each expert's group begins at a multiple of it, in rows
        quantise       "none", or what bfloat16 rows become on the way, with their scales in Received.scales. float8:
                       "fp8" (a float32 scale for each 128 elements), "fp8_pow2" (powers of two), "fp8_ue8m0" (the same
                       as exponent bytes), "fp8_row" (one float32 scale a row), "mxfp8" (an exponent byte for each 32).
                       "nvfp4": 4-bit elements, two to a byte, and a float8 scale for each 16. Bytes lie four to an
                       int32
        global_scale   float32 G of one element, with "nvfp4": a row stands for q * scale / G; None = 1
        counts_total   [L] int32: gets what each expert received added where the call runs, so that graphs count, too
        waits_total    [R] int64: gets the nanoseconds added that this rank waited for each rank's counts
        expert_ready   [L] int64, not token-major: element e has reached n x 2**32 when all that the n-th call with this
                       tensor puts out for expert e may be read (by acquire loads, on the device where it lies), while
                       rows of other experts may still be on their way. It only grows, so graphs are replayed without
                       clearing it; begin with zeros, and again after a reset()
        scale_layout   "usual", or "tiles" of 128 rows x 4 scales, for scales of a byte; see Received.scales
        fixed_size     outputs have their worst-case size, and the host waits for no count; a slab always is so. On a
                       GPU's stream it waits for nothing: masked is then empty, num_rows all rows, num_dropped 0
        capacity       rows of fixed-size outputs; None = worst case. Rows past it are dropped
        max_tokens     most tokens of any rank in this call; None = the buffer's
        zero_padding   clear rows that hold nothing
        drop_overflow  count rows past the capacity in Received.num_dropped; else OverflowError_ after the call
        wide_ids       token-major: Received.ids are int64
        stream         on a GPU: a stream of torch or CuPy, or its number; None = torch's current one for torch tensors,
                       else none: the call returns when its outputs are valid
        num_sms        on a GPU: most multiprocessors that the call takes; None = the buffer's

        Raises UsageError for a wrong argument: the other ranks then raise RefusedError, and the next call works.
        """
        core = self._core
        try:
            given = route_or_ids(route)
            sizes = (fixed_size, capacity, max_tokens)
            options = dispatch_options(
                layout, alignment, quantise, scale_layout, *sizes, zero_padding, drop_overflow, wide_ids
            )
            arrays = (scales, weights, global_scale, counts_total, waits_total, expert_ready)
            number, scope = self._place(stream, x, *arrays, *ids_in(route))
            name, most = dtype_name(dtype), sms(num_sms)
        except Exception as error:
            core.refuse_dispatch(argument_named_by(error))
            raise
        made = run_in(scope, core.dispatch, given, x, *arrays, name, options, number, most)
        return Received(made, is_torch(x))

    def dispatch_send(
        self,
        route: Plan | Array,
        x: Array,
        *,
        scales: Array | None = None,
        weights: Array | None = None,
        global_scale: Array | None = None,
        counts_total: Array | None = None,
        waits_total: Array | None = None,
        expert_ready: Array | None = None,
        dtype: Any = None,
        stream: Any = None,
        num_sms: int | None = None,
        **options: Any,
    ) -> Split[Received]:
        """The first half of a dispatch(): sends and returns. Outputs are fixed-size. At most two may wait for their
        receive(); a third send runs that of the first. Arguments and errors are dispatch()'s."""
        core = self._core
        try:
            given = plan_or_ids(route)
            chosen = dispatch_options(**{**options, "fixed_size": True})
            arrays = (scales, weights, global_scale, counts_total, waits_total, expert_ready)
            number, scope = self._place(stream, x, *arrays, *ids_in(route))
            name, most = dtype_name(dtype), sms(num_sms)
        except Exception as error:
            core.refuse_dispatch(argument_named_by(error))
            raise
        sent = run_in(scope, core.dispatch_send, given, x, *arrays, name, chosen, number, most)
        return Split(sent, Received(sent.result, is_torch(x)), core, self._join(number, x))

    def combine(
        self,
        handle: Handle,
        x: Array,
        *,
        bias: Array | Sequence[Array] | None = None,
        row_weights: Array | None = None,
        weights: Array | None = None,
        weighted: bool = False,
        wire: str = "usual",
        dtype: Any = None,
        out_dtype: Any = None,
        out: Array | None = None,
        waits_total: Array | None = None,
        stream: Any = None,
        num_sms: int | None = None,
    ) -> Combined:
        """Brings the experts' rows back and sums them in FP32: first a rank's, then over ranks ascending. Collective.

        handle        of the dispatch whose rows these are
        x             the experts' rows in the layout of that dispatch, [rows, H] or [L, R x M, H]; bfloat16, float16 or
                      float32
        bias          one or two [T, H] of the output's type, added first
        row_weights   token-major [rows, K], others [rows] float32; come back as Combined.weights (the weights'
                      gradient)
        weights       [T, K] float32 weights that the dispatch was not given; not token-major
        weighted      multiply with the weights given to the dispatch; not token-major
        wire          what crosses the wire for a row of H, "usual" (the output's type, or x's where rows travel alone),
                      "float32", "fp8" (e4m3 with a scale for each 128 columns; a value is off by 6.3 % at most, or by
                      2^-18 of the largest of its 128) or "logfmt10" (10 bits; 1.7 %, or 2^-17); narrow ones are made of
                      FP32 sums, and a NaN or Inf makes all 128 NaN (in "logfmt10" all but zeros)
        dtype         what x's elements are, where the array cannot say it: "bfloat16" for uint16
        out_dtype     of the result; None = x's
        out           [T, H] to write to
        waits_total, stream, num_sms  see dispatch()

        Raises UsageError for a wrong argument: the other ranks then raise RefusedError, and the next call works.
        """
        choices = (dtype, out_dtype, weighted, wire, num_sms, stream)
        scope, args = self._combine_arguments(handle, x, bias, row_weights, weights, (out, waits_total), choices)
        return Combined(run_in(scope, self._core.combine, *args), is_torch(x), out)

    def combine_send(
        self,
        handle: Handle,
        x: Array,
        *,
        bias: Array | Sequence[Array] | None = None,
        row_weights: Array | None = None,
        weights: Array | None = None,
        weighted: bool = False,
        wire: str = "usual",
        dtype: Any = None,
        out_dtype: Any = None,
        out: Array | None = None,
        waits_total: Array | None = None,
        stream: Any = None,
        num_sms: int | None = None,
    ) -> Split[Combined]:
        """The first half of a combine(): sends and returns. Arguments and errors are combine()'s."""
        choices = (dtype, out_dtype, weighted, wire, num_sms, stream)
        scope, args = self._combine_arguments(handle, x, bias, row_weights, weights, (out, waits_total), choices)
        sent = run_in(scope, self._core.combine_send, *args)
        return Split(sent, Combined(sent.result, is_torch(x), out), self._core, self._join(args[-2], x))

    def _combine_arguments(
        self,
        handle: Handle,
        x: Array,
        bias: Any,
        row_weights: Any,
        weights: Any,
        written: tuple[Any, Any],
        choices: tuple[Any, ...],
    ) -> tuple[AbstractContextManager[Any] | None, tuple[Any, ...]]:
        """What C++ takes; the scope to call it in first."""
        dtype, out_dtype, weighted, wire, num_sms, stream = choices
        try:
            check_handle(handle)
            options = combine_options(weighted, wire, dtype_name(out_dtype))
            biases = bias if isinstance(bias, (tuple, list)) else (bias,)
            number, scope = self._place(stream, x, *biases, row_weights, weights, *written)
            name, most = dtype_name(dtype), sms(num_sms)
        except Exception as error:
            self._core.refuse_combine(argument_named_by(error))
            raise
        return scope, (handle._core, x, bias, row_weights, weights, *written, name, options, number, most)

    def _place(self, stream: Any, *arrays: Array | None) -> tuple[int | None, AbstractContextManager[Any] | None]:
        """The stream of a call with these arrays, and the scope to make it in. Results lie in torch's memory."""
        if self._gpu is None:
            if stream is not None:
                raise UsageError(f"stream is {stream!r}, legal on the CPU: None")
            return None, None
        if not self._has_allocator and is_torch(arrays[0]):
            self._allocate_by_torch()
        return place(self._gpu, stream, arrays)

    def _allocate_by_torch(self) -> None:
        """Results lie in torch's memory from now on."""
        self._has_allocator = True
        in_heap = TorchHeap(self._core, self._gpu).empty if self._gpu is not None and self._core.has_heap else None
        self._core.set_torch_allocator(in_heap)

    def _join(self, stream: int | None, x: Array) -> Callable[[Any], None] | None:
        """What a split call does after its receive."""
        if self._gpu is None or not is_torch(x):
            return None
        return lambda result: join(self._gpu, stream, result.tensors)
