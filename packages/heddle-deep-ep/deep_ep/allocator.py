"""BufferAllocator: memory of a buffer, laid out before the buffer exists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from heddle import UsageError

from .checks import describe
from .sizes import align

ALLOCATION_ALIGNMENT = 2 << 20
TMA_ALIGNMENT = 32


def get_num_allocation_alignment() -> int:
    """Bytes: where BufferAllocator's tensors begin."""
    return ALLOCATION_ALIGNMENT


def get_num_rdma_alignment() -> int:
    """Bytes."""
    return ALLOCATION_ALIGNMENT


def get_num_tma_alignment() -> int:
    """Bytes."""
    return TMA_ALIGNMENT


class BufferAllocator:
    """Tensors that become views of one region when a buffer takes the allocator: meta tensors until then.

    Every rank allocates the same shapes in the same order.
    """

    def __init__(self) -> None:
        self.alignment = ALLOCATION_ALIGNMENT
        self.num_bytes = 0
        self.allocations: list[tuple[torch.Tensor, int]] = []
        self.materialized = False

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A meta tensor; the same object is real memory after materialize()."""
        self._check_open("allocate")
        tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
        self.allocations.append((tensor, self.num_bytes))
        self.num_bytes = align(self.num_bytes + tensor.numel() * tensor.element_size(), self.alignment)
        return tensor

    def materialize(self, storage: torch.Tensor) -> None:
        """Makes the tensors views of `storage`, uint8 contiguous with num_bytes elements. Once."""
        self._check_open("materialize")
        fits = isinstance(storage, torch.Tensor) and storage.dtype == torch.uint8 and storage.is_contiguous()
        if not fits or storage.numel() != self.num_bytes:
            raise UsageError(f"storage is {describe(storage)}, legal: contiguous uint8 [{self.num_bytes}]")
        flat = storage.flatten()
        for tensor, offset in self.allocations:
            part = flat[offset : offset + tensor.numel() * tensor.element_size()]
            torch.utils.swap_tensors(tensor, part.view(tensor.dtype).view(tensor.shape))
        self.materialized = True

    def _check_open(self, method: str) -> None:
        if self.materialized:
            raise UsageError(f"{method}: the allocator is materialized already, legal: before a buffer has taken it")
