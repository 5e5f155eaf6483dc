"""torch tensors in a buffer's heap: rows come into them without a copy, and torch's rules of streams and reuse hold."""

from __future__ import annotations

import math
import sys
from typing import Any

from . import _core

_SMALLEST = 1 << 16
"""Bytes. A tensor of a pool takes torch longer to make, and only rows come in place."""


class TorchHeap:
    """A torch.cuda.MemPool whose memory is that of the heap. Kept as long as tensors may be made of it."""

    def __init__(self, core: _core.Buffer, gpu: int) -> None:
        torch = sys.modules["torch"]
        self._core = core
        self._device = torch.device("cuda", gpu)
        self._hooks = torch.cuda.memory.CUDAPluggableAllocator(
            _core.__file__, "heddle_torch_malloc", "heddle_torch_free"
        )
        self._pool = torch.cuda.MemPool(self._hooks.allocator())

    def empty(self, dtype: Any, shape: list[int]) -> Any:
        """On torch's current stream; in other memory of the GPU if it is small, or if the heap is full."""
        torch = sys.modules["torch"]
        if math.prod(shape) * dtype.itemsize >= _SMALLEST:
            try:
                with self._core.use_heap(), torch.cuda.use_mem_pool(self._pool, self._device):
                    return torch.empty(shape, dtype=dtype, device=self._device)
            except torch.OutOfMemoryError:
                pass
        return torch.empty(shape, dtype=dtype, device=self._device)
