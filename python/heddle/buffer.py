"""Buffer: one rank's end of dispatch and combine."""

from __future__ import annotations

import atexit
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from . import _core
from .arguments import (
    argument_named_by,
    check_handle,
    check_plan,
    combine_input,
    combine_options,
    dispatch_input,
    dispatch_options,
    is_handle,
    sms,
)
from .bootstrap import as_bootstrap, patiently
from .errors import UsageError
from .frameworks import Array, dense, is_torch, readable, torch_allocator
from .heap import TorchHeap
from .results import Combined, Received, Split
from .route import Handle, Plan
from .streams import gpu_of, join, on_stream

_alive: weakref.WeakSet[Buffer] = weakref.WeakSet()
_by_key: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
_keys = itertools.count(1)


def buffer_of(key: int) -> Buffer:
    """The buffer of this process whose `key` it is."""
    buffer = _by_key.get(int(key))  # where torch.compile makes a symbol of it, for this buffer only
    if buffer is None:
        raise UsageError(f"key = {key} is no buffer that is alive")
    return buffer


class Buffer:
    """One rank's end of the pair of operations dispatch and combine.

    All ranks make the same calls in the same order. Any thread may call, one at a time. Arrays are NumPy arrays or
    torch tensors, on a GPU also others with __dlpack__; results are of the framework of `x`. T tokens of this rank, K
    columns (top-k), H hidden, E experts, R ranks, L experts of this rank; rank r owns experts
    [r * E // R, (r + 1) * E // R).

    group            a heddle.Bootstrap, or a torch.distributed process group of any backend
    experts          E, of all ranks together
    max_tokens       most tokens a rank brings to a call; 0 = no limit, and then fixed-size, slab and split calls name
                     their own
    window_bytes     memory that peers write to, bytes; batches that exceed it go in rounds; 0 = 256 MiB
    timeout          how long a call waits for a peer, seconds
    mask_late_peers  a peer that misses the deadline is masked (its part is zero, and the result says so); else the call
                     fails
    threads          CPU threads that work on one call
    device           "cpu" (also None), or where the buffer works: "cuda" (torch's current GPU, else GPU 0), "cuda:1", a
                     torch.device. Ranks may share a GPU
    pinned_windows   on GPUs: put rows into host memory, also where GPUs reach one another's
    heap_bytes       most memory of results that other ranks write rows into themselves, bytes, taken as results need
                     it; rows of results that do not fit come through the window, as all do with 0
    num_sms          on a GPU: most multiprocessors that a call takes; None = all, or a share of a GPU that ranks share

    On a GPU a call with torch tensors is enqueued on torch's current stream, as torch's own operations are. Exact sizes
    make the host wait for the other ranks' headers; with fixed_size it waits for nothing, so that a graph can hold the
    call. What happens to a call that nobody waits for is raised by the next one.

    Collective: every rank must build it, with the same settings but for timeout, threads, num_sms and the GPU's number.
    Raises MismatchError on every rank if they differ, TimeoutError_ if a rank does not come, UsageError for a wrong
    argument, SystemError_ where a GPU cannot be used.
    """

    def __init__(
        self,
        group: Any,
        *,
        experts: int,
        max_tokens: int = 0,
        window_bytes: int = 0,
        timeout: float = 100.0,
        mask_late_peers: bool = False,
        threads: int = 1,
        device: Any = None,
        pinned_windows: bool = False,
        heap_bytes: int = 0,
        num_sms: int | None = None,
    ) -> None:
        bootstrap = as_bootstrap(group)
        self._gpu = gpu_of(device)
        config = _core.Config(
            experts=experts,
            max_tokens=max_tokens,
            window_bytes=window_bytes,
            timeout=timeout,
            mask_late_peers=mask_late_peers,
            threads=threads,
            gpu=self._gpu,
            pinned_windows=pinned_windows,
            heap_bytes=heap_bytes,
            num_sms=sms(num_sms),
        )
        self._core: _core.Buffer = patiently(bootstrap, lambda: _core.Buffer(bootstrap, config))
        self._config = config
        self._has_allocator = False
        self.key: int = next(_keys)
        """A number that stands for this buffer in this process, where only numbers can go."""
        _alive.add(self)
        _by_key[self.key] = self

    @property
    def rank(self) -> int:
        return self._core.rank

    @property
    def size(self) -> int:
        """R."""
        return self._core.size

    @property
    def device(self) -> str:
        """ "cpu", or "cuda:0"."""
        return "cpu" if self._gpu is None else f"cuda:{self._gpu}"

    @property
    def windows(self) -> str:
        """How peers reach this rank's window: "heap", "shared memory"; on GPUs "fabric", "descriptor", "pinned"."""
        return self._core.windows

    @property
    def num_sms(self) -> int:
        """Most multiprocessors of the GPU that a call takes."""
        return self._core.num_sms

    @property
    def local_experts(self) -> range:
        """Global ids of the experts that this rank owns."""
        return self.experts_of(self.rank)

    def experts_of(self, rank: int) -> range:
        """Global ids of the experts that `rank` owns."""
        if not 0 <= rank < self.size:
            raise UsageError(f"experts_of: rank = {rank}, legal: 0 to {self.size - 1}")
        return range(self._core.first_expert(rank), self._core.first_expert(rank + 1))

    def plan(self, ids: Array, *, stream: Any = None, num_sms: int | None = None) -> Plan:
        """The route of a batch from its expert ids. Local: no peer hears of it.

        ids      [T, K] int32 or int64 global expert ids, any strides; -1 = none
        stream, num_sms  see dispatch()

        Raises UsageError for an id outside [-1, E), naming token and column. On a GPU's stream nobody waits for that:
        such an id counts as none, and the first dispatch that can know of it raises.
        """
        with on_stream(self._gpu, stream, ids) as handle:
            return Plan(self._core.plan(readable(ids), handle, sms(num_sms)), is_torch(ids))

    def plan_from_rank_map(self, is_token_in_rank: Array, *, stream: Any = None, num_sms: int | None = None) -> Plan:
        """The route of a batch from the ranks that its tokens go to, without expert ids: for token-major dispatches.

        is_token_in_rank  [T, R] bool or uint8, any strides
        stream, num_sms   see dispatch()
        """
        with on_stream(self._gpu, stream, is_token_in_rank) as handle:
            core = self._core.plan_from_rank_map(readable(is_token_in_rank), handle, sms(num_sms))
            return Plan(core, is_torch(is_token_in_rank))

    def handle(
        self, plan: Plan, *, recv_offset: Array, recv_token: Array, source_tokens: Array, recv_ids: Array | None = None
    ) -> Handle:
        """The handle of a token-major dispatch of exact size along `plan`, again, from copies of its tensors. Local.

        recv_offset    [R + 1] int32, Handle.recv_offset
        recv_token     [n] int32, Handle.recv_token
        source_tokens  [R] int32, Handle.source_tokens
        recv_ids       [n, K] int32, Handle.recv_ids; None for a plan from a rank map

        Raises UsageError for tensors that no such dispatch can have had.
        """
        if recv_ids is None:
            recv_ids = recv_token[:, None][:, :0]
        if is_handle(plan):
            raise UsageError("plan is a Handle, legal: a Plan")
        with on_stream(self._gpu, None, recv_offset) as handle:
            tensors = [dense(one) for one in (recv_offset, recv_token, source_tokens, recv_ids)]
            return Handle(self._core.handle(plan._core, *tensors, stream=handle), is_torch(recv_offset))

    def dispatch(
        self,
        route: Plan | Handle,
        x: Array,
        *,
        scales: Array | None = None,
        weights: Array | None = None,
        global_scale: Array | None = None,
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
        stream: Any = None,
        num_sms: int | None = None,
    ) -> Received:
        """Sends every token once to each rank that owns one of its experts. Collective.

        route          a Plan; or the Handle of an earlier dispatch to go the same way again: layout, alignment and
                       max_tokens are then those of that dispatch
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
        scale_layout   "usual", or "tiles" of 128 rows x 4 scales, for scales of a byte; see Received.scales
        fixed_size     outputs have their worst-case size, and the host waits for no count; a slab always is so. On a
                       GPU's stream it waits for nothing: masked is then empty, num_rows all rows, num_dropped 0
        capacity       rows of fixed-size outputs; None = worst case. Rows past it are dropped
        max_tokens     most tokens of any rank in this call; None = the buffer's
        zero_padding   clear rows that hold nothing
        drop_overflow  count rows past the capacity in Received.num_dropped; else OverflowError_ after the call
        stream         on a GPU: a stream of torch or CuPy, or its number; None = torch's current one for torch tensors,
                       else none: the call returns when its outputs are valid
        num_sms        on a GPU: most multiprocessors that the call takes; None = the buffer's

        Raises UsageError for a wrong argument: the other ranks then raise RefusedError, and the next call works.
        """
        with self._on(self._core.refuse_dispatch, stream, x, scales, weights, global_scale) as handle:
            return self._dispatch(
                route,
                x,
                scales,
                weights,
                global_scale,
                dtype,
                layout=layout,
                alignment=alignment,
                quantise=quantise,
                scale_layout=scale_layout,
                fixed_size=fixed_size,
                capacity=capacity,
                max_tokens=max_tokens,
                zero_padding=zero_padding,
                drop_overflow=drop_overflow,
                stream=handle,
                num_sms=num_sms,
            )

    def _dispatch(
        self,
        route: Plan | Handle,
        x: Array,
        scales: Array | None,
        weights: Array | None,
        global_scale: Array | None,
        dtype: Any,
        **options: Any,
    ) -> Received:
        with self._refusing(self._core.refuse_dispatch):
            inputs = dispatch_input(x, scales=scales, weights=weights, global_scale=global_scale, dtype=dtype)
            chosen = dispatch_options(**options)
            call: Any = self._core.dispatch_again if is_handle(route) else self._core.dispatch
        return Received(call(route._core, inputs, chosen), is_torch(x))

    def dispatch_send(
        self,
        route: Plan,
        x: Array,
        *,
        scales: Array | None = None,
        weights: Array | None = None,
        global_scale: Array | None = None,
        dtype: Any = None,
        stream: Any = None,
        **options: Any,
    ) -> Split[Received]:
        """The first half of a dispatch(): sends and returns. Outputs are fixed-size. At most two may wait for their
        receive(); a third send runs that of the first. Arguments and errors are dispatch()'s."""
        with self._on(self._core.refuse_dispatch, stream, x, scales, weights, global_scale) as handle:
            with self._refusing(self._core.refuse_dispatch):
                inputs = dispatch_input(x, scales=scales, weights=weights, global_scale=global_scale, dtype=dtype)
                chosen = dispatch_options(**{**options, "fixed_size": True, "stream": handle})
                check_plan(route)
            core = self._core.dispatch_send(route._core, inputs, chosen)
        torch = is_torch(x)
        return Split(core, lambda received: Received(received, torch), self._core, inputs, self._join(handle, torch))

    def combine(
        self,
        handle: Handle,
        x: Array,
        *,
        bias: Array | Sequence[Array] | None = None,
        row_weights: Array | None = None,
        weights: Array | None = None,
        weighted: bool = False,
        float32_wire: bool = False,
        dtype: Any = None,
        out_dtype: Any = None,
        out: Array | None = None,
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
        float32_wire  partial sums cross the wire in FP32, not in the output's type
        dtype         what x's elements are, where the array cannot say it: "bfloat16" for uint16
        out_dtype     of the result; None = x's
        out           [T, H] to write to
        stream, num_sms  see dispatch()

        Raises UsageError for a wrong argument: the other ranks then raise RefusedError, and the next call works.
        """
        arrays = {"bias": bias, "row_weights": row_weights, "weights": weights, "out": out}
        with self._on(self._core.refuse_combine, stream, x, *_flat(arrays)) as number:
            with self._refusing(self._core.refuse_combine):
                inputs = combine_input(x, dtype=dtype, out_dtype=out_dtype, **arrays)
                options = combine_options(
                    weighted=weighted,
                    float32_wire=float32_wire,
                    out_dtype=out_dtype,
                    stream=number,
                    num_sms=num_sms,
                )
                check_handle(handle)
            return Combined(self._core.combine(handle._core, inputs, options), is_torch(x), out)

    def combine_send(
        self,
        handle: Handle,
        x: Array,
        *,
        weighted: bool = False,
        float32_wire: bool = False,
        out_dtype: Any = None,
        out: Array | None = None,
        stream: Any = None,
        num_sms: int | None = None,
        **arrays: Any,
    ) -> Split[Combined]:
        """The first half of a combine(): sends and returns. Arguments and errors are combine()'s."""
        with self._on(self._core.refuse_combine, stream, x, out, *_flat(arrays)) as number:
            with self._refusing(self._core.refuse_combine):
                inputs = combine_input(x, out_dtype=out_dtype, out=out, **arrays)
                options = combine_options(
                    weighted=weighted,
                    float32_wire=float32_wire,
                    out_dtype=out_dtype,
                    stream=number,
                    num_sms=num_sms,
                )
                check_handle(handle)
            core = self._core.combine_send(handle._core, inputs, options)
        torch = is_torch(x)
        join_it = self._join(number, torch)
        return Split(core, lambda combined: Combined(combined, torch, out), self._core, inputs, join_it)

    def mask(self, rank: int) -> None:
        """Stops exchanging anything with `rank`, both ways, until a reset(): its part of every result is zero."""
        self._core.mask(rank)

    def masked(self) -> list[int]:
        """Ranks that are masked now."""
        return self._core.masked()

    def reset(self, members: Sequence[int] = ()) -> None:
        """Repairs the buffer after a fault, for `members` (default: all ranks). Every member must call it; the others
        are removed. Handles do not survive it; plans do. Raises TimeoutError_ naming the members that did not come."""
        self._core.reset(list(members))

    def destroy(self) -> None:
        """Gives the memory back. Local: peers that still wait for this rank get an error that says so. Idempotent."""
        self._core.destroy()

    @property
    def is_destroyed(self) -> bool:
        return self._core.is_destroyed

    def metrics(self) -> _core.Metrics:
        """What this buffer has done since it was made."""
        return self._core.metrics()

    def set_allocator(self, make: Callable[[str, list[int]], Array]) -> None:
        """Results lie in memory from `make(dtype, shape)`, which returns a contiguous array of that type and shape."""
        self._has_allocator = True
        self._core.set_allocator(make)

    @property
    def predicted_bytes(self) -> int:
        """Bytes of memory that this buffer takes on this rank."""
        return _core.predicted_bytes(self._config, self.size)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.destroy()

    def __reduce__(self) -> Any:
        raise UsageError("a Buffer cannot be pickled: its windows belong to this process; build one on each rank")

    @contextmanager
    def _on(self, refuse: Callable[[str], None], stream: Any, *arrays: Array | None) -> Iterator[int | None]:
        """The stream of a call with these arrays. torch's results lie in torch's memory."""
        if self._gpu is not None and not self._has_allocator and is_torch(arrays[0]):
            self._has_allocator = True
            in_heap = TorchHeap(self._core, self._gpu).empty if self._core.has_heap else None
            self._core.set_torch_allocator(torch_allocator(self._gpu, in_heap))
        with ExitStack() as stack:
            with self._refusing(refuse):
                handle = stack.enter_context(on_stream(self._gpu, stream, *arrays))
            yield handle

    def _join(self, stream: int | None, torch: bool) -> Callable[[Any], None] | None:
        """What a split call does after its receive."""
        if self._gpu is None or not torch:
            return None
        return lambda result: join(self._gpu, stream, result.tensors)

    @contextmanager
    def _refusing(self, refuse: Callable[[str], None]) -> Iterator[None]:
        """Arguments that C++ cannot even read: the other ranks make the call, so this one tells them."""
        try:
            yield
        except Exception as error:
            refuse(argument_named_by(error))
            raise


def _flat(arrays: dict[str, Any]) -> list[Array | None]:
    """The arrays of a combine; a bias may be two."""
    flat: list[Array | None] = []
    for one in arrays.values():
        flat.extend(one if isinstance(one, (tuple, list)) else [one])
    return flat


@atexit.register
def _destroy_all() -> None:
    """Peers of a program that ends hear of it at once, and it does not wait for calls of its other threads."""
    for buffer in list(_alive):
        buffer._core.interrupt()
        buffer.destroy()
