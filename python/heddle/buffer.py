"""Buffer: one rank's end of dispatch and combine."""

from __future__ import annotations

import atexit
import itertools
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from . import _core
from .arguments import is_handle, sms
from .bootstrap import as_bootstrap, patiently
from .errors import UsageError
from .frameworks import Array, is_torch
from .once import once
from .quick_calls import QuickCalls
from .route import Handle, Plan
from .streams import gpu_of, run_in

_alive: weakref.WeakSet[Buffer] = weakref.WeakSet()
_by_key: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
_keys = itertools.count(1)


def buffer_of(key: int) -> Buffer:
    """The buffer of this process whose `key` it is."""
    buffer = _by_key.get(int(key))  # where torch.compile makes a symbol of it, for this buffer only
    if buffer is None:
        raise UsageError(f"key = {key} is no buffer that is alive")
    return buffer


class Buffer(QuickCalls):
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
                     torch.device. Ranks may share a GPU; threads of a process that do make their buffers before the
                     first call, as CUDA lets some of that wait for kernels that run
    pinned_windows   on GPUs: put rows into host memory, also where GPUs reach one another's
    pinned_pairs     the same between these pairs of ranks only; those whose GPUs do not reach each other need no name
                     here
    heap_bytes       most memory of results that other ranks write rows into themselves, bytes, taken as results need
                     it; rows of results that do not fit come through the window, as all do with 0
    num_sms          on a GPU: most multiprocessors that a call takes; None = as many as gain something, of all or of a
                     share of a GPU that ranks share

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
        pinned_pairs: Sequence[tuple[int, int]] = (),
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
            pinned_pairs=[tuple(pair) for pair in pinned_pairs],
            heap_bytes=heap_bytes,
            num_sms=sms(num_sms),
        )
        self._core: _core.Buffer = patiently(bootstrap, lambda: _core.Buffer(bootstrap, config))
        self._config = config
        self.experts = experts
        """E."""
        self._has_allocator = False
        self.key: int = next(_keys)
        """A number that stands for this buffer in this process, where only numbers can go."""
        _alive.add(self)
        _by_key[self.key] = self

    @once
    def rank(self) -> int:
        return self._core.rank

    @once
    def size(self) -> int:
        """R."""
        return self._core.size

    @property
    def device(self) -> str:
        """ "cpu", or "cuda:0"."""
        return "cpu" if self._gpu is None else f"cuda:{self._gpu}"

    @property
    def windows(self) -> str:
        """How peers reach this rank's window: "heap", "shared memory"; on GPUs "fabric", "descriptor", "pinned" or
        "mixed"."""
        return self._core.windows

    @property
    def paths(self) -> list[str]:
        """The same for each rank; "descriptor" or "pinned" where `windows` is "mixed"."""
        return self._core.paths

    @property
    def num_sms(self) -> int:
        """Most multiprocessors of the GPU that a call takes."""
        return self._core.num_sms

    @once
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
        number, scope = self._place(stream, ids)
        return Plan(run_in(scope, self._core.plan, ids, number, sms(num_sms)), is_torch(ids))

    def plan_from_rank_map(self, is_token_in_rank: Array, *, stream: Any = None, num_sms: int | None = None) -> Plan:
        """The route of a batch from the ranks that its tokens go to, without expert ids: for token-major dispatches.

        is_token_in_rank  [T, R] bool or uint8, any strides
        stream, num_sms   see dispatch()
        """
        number, scope = self._place(stream, is_token_in_rank)
        core = run_in(scope, self._core.plan_from_rank_map, is_token_in_rank, number, sms(num_sms))
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
        number, scope = self._place(None, recv_offset)
        tensors = (recv_offset, recv_token, source_tokens, recv_ids)
        return Handle(run_in(scope, self._core.handle, plan._core, *tensors, number), is_torch(recv_offset))

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


@atexit.register
def _destroy_all() -> None:
    """Peers of a program that ends hear of it at once, and it does not wait for calls of its other threads."""
    for buffer in list(_alive):
        buffer._core.interrupt()
        buffer.destroy()
