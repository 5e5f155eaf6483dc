"""Buffer: the V1 interface, normal and low-latency mode in one object."""

from __future__ import annotations

import math
from typing import Any

import torch
from heddle import UsageError

from .checks import positive
from .combine_buffers import CombineBuffers
from .config import Config, recommended
from .engine import Engine
from .group import bootstrap_of, default_timeout
from .known_dispatches import KnownDispatches
from .low_latency import LowLatency
from .masks import Masks
from .normal import NormalMode
from .prepared import PreparedCalls
from .sizes import align, low_latency_window
from .streams import CommStream
from .utils.event import EventHandle, EventOverlap


class Buffer(NormalMode, LowLatency, Masks):
    """One rank's end of dispatch and combine, as DeepEP's V1 has it; R ranks, N tokens of this rank, n received, K
    columns (top-k), H hidden, E experts, L = E / R of this rank. All ranks make the same calls in the same order.

    group            a torch process group of any backend, or None with comm
    num_nvl_bytes, num_rdma_bytes  their sum is the memory that peers write to, 0 = 256 MiB. Too little makes more
                     rounds; too little for low latency becomes more at the first call
    low_latency_mode, allow_nvlink_for_low_latency_mode, allow_mnnvl, num_qps_per_rank  accepted; every mode works
    explicitly_destroy  destroy() gives memory back; else the end of the object does
    enable_shrink    ranks that miss the deadline are left out instead of failing the call; masks can be set
    comm             an mpi4py communicator, with group=None
    use_fabric, num_nvl_peers, allow_nvlink_for_normal_mode  of forks; accepted

    Raises ValueError naming a wrong argument.
    """

    num_sms: int = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int | float = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        use_fabric: bool = False,
        num_nvl_peers: int | None = None,
        allow_nvlink_for_normal_mode: bool = True,
    ) -> None:
        bootstrap = bootstrap_of(group, comm)
        self.group = group
        self.comm = comm
        self.rank = bootstrap.rank
        self.group_size = bootstrap.size
        self.num_nvl_bytes = positive("num_nvl_bytes", num_nvl_bytes, 0)
        self.num_rdma_bytes = positive("num_rdma_bytes", num_rdma_bytes, 0)
        self.low_latency_mode = low_latency_mode
        self.num_qps_per_rank = positive("num_qps_per_rank", math.ceil(num_qps_per_rank), 0)
        self.explicitly_destroy = explicitly_destroy
        self.enable_shrink = enable_shrink
        if num_nvl_peers is not None:
            positive("num_nvl_peers", num_nvl_peers)
        self.runtime = Engine(
            bootstrap,
            window_bytes=self.num_nvl_bytes + self.num_rdma_bytes,
            timeout=default_timeout(),
            mask_late_peers=enable_shrink,
        )
        self._comm_stream = CommStream()
        self._combine_buffers = CombineBuffers()
        self._prepared_calls = PreparedCalls(self.runtime)
        self._known_dispatches = KnownDispatches(self.runtime)
        self._local_buffers: dict[bool, torch.Tensor] = {}

    def destroy(self) -> None:
        """Gives the memory back. Local; idempotent."""
        if not self.explicitly_destroy:
            raise UsageError("explicitly_destroy is False, legal for destroy(): True, as the buffer was made")
        self.runtime.destroy()

    # --- what needs no buffer ---

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """For all buffers. Even, 0 or more; no number changes a result."""
        if positive("new_num_sms", new_num_sms, 0) % 2:
            raise UsageError(f"new_num_sms = {new_num_sms}, legal: even")
        Buffer.num_sms = int(new_num_sms)

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def capture() -> EventOverlap:
        """What the current stream has been given so far."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes that low-latency calls take with up to 8 experts a token; no less for a larger argument."""
        tokens = positive("num_max_dispatch_tokens_per_rank", num_max_dispatch_tokens_per_rank)
        ranks, experts = positive("num_ranks", num_ranks), positive("num_experts", num_experts)
        return align(low_latency_window(tokens, positive("hidden", hidden), ranks, experts), 128)

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """Any number of ranks has one."""
        return recommended("dispatch", num_ranks, Buffer.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """Any number of ranks has one."""
        return recommended("combine", num_ranks, Buffer.num_sms)

    def get_comm_stream(self) -> Any:
        """The stream of calls: a torch.cuda.Stream, or an object with its methods where CUDA is not in use."""
        return self._comm_stream.get()

    def get_local_buffer_tensor(
        self, dtype: torch.dtype, size: torch.Size | None = None, offset: int = 0, use_rdma_buffer: bool = False
    ) -> torch.Tensor:
        """Scratch memory of num_rdma_bytes or num_nvl_bytes, offset in bytes. Peers do not write here: Heddle's window
        is its own, and needs no cleaning."""
        if use_rdma_buffer not in self._local_buffers:
            num_bytes = self.num_rdma_bytes if use_rdma_buffer else self.num_nvl_bytes
            self._local_buffers[use_rdma_buffer] = torch.zeros(num_bytes, dtype=torch.uint8, device=self._device())
        whole = self._local_buffers[use_rdma_buffer]
        item = dtype.itemsize
        if not 0 <= offset <= whole.numel() or offset % item:
            raise UsageError(f"offset = {offset}, legal: bytes, a multiple of {item}, up to {whole.numel()}")
        tail = whole[offset:]
        view = tail[: tail.numel() // item * item].view(dtype)
        if size is None:
            return view
        wanted = torch.Size(size).numel()
        if wanted > view.numel():
            raise UsageError(f"size = {list(size)}, legal: up to {view.numel()} elements of {dtype}")
        return view[:wanted].view(size)

    @staticmethod
    def _device() -> torch.device:
        return torch.device("cuda" if torch.cuda.is_initialized() else "cpu")

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *error: object) -> None:
        self.runtime.destroy()
