"""Tests written for NumPy, on GPUs: a Buffer that puts the arrays of each call on its GPU, and brings results back.

The call itself gets arrays of no framework, so it behaves as on a CPU: it returns, or raises, when it has ended.
HEDDLE_TEST_DEVICE=cuda pytest tests/python/test_cases_*.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import heddle
import numpy as np
import torch

VARIABLE = "HEDDLE_TEST_DEVICE"
_BITS = {
    torch.bfloat16: torch.uint16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}  # as NumPy has them


def install() -> None:
    """From now on heddle.Buffer of this process is on a GPU, if HEDDLE_TEST_DEVICE says so."""
    if os.environ.get(VARIABLE) == "cuda":
        heddle.Buffer = Buffer  # type: ignore[misc]


def _settle() -> None:
    """Until the current stream is done; torch would wait with locks held that other ranks' launches need."""
    while not torch.cuda.current_stream().query():
        time.sleep(0.0001)


class _Lent:
    """A tensor as an array of no framework."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __dlpack__(self, **_: Any) -> Any:
        return torch.utils.dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._tensor.device.index  # kDLCUDA


class _OnGpu:
    """Stands for an object of heddle: what goes in is put on the GPU, what comes out on the host."""

    def __init__(self, real: Any, gpu: int, stream: torch.cuda.Stream) -> None:
        self._real, self._gpu, self._stream = real, gpu, stream

    def __getattr__(self, name: str) -> Any:
        return self._out(getattr(self._real, name))

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self._real.destroy()

    def _in(self, value: Any) -> Any:
        if isinstance(value, _OnGpu):
            return value._real
        if isinstance(value, tuple):
            return tuple(self._in(one) for one in value)
        if not isinstance(value, np.ndarray):
            return value
        with torch.cuda.stream(self._stream):
            fits = value.flags.writeable and all(step >= 0 and step % value.itemsize == 0 for step in value.strides)
            tensor = torch.from_numpy(value if fits else np.array(value)).to(f"cuda:{self._gpu}")
            if tensor.is_floating_point() and tensor.dim() == 2 and tensor.stride(1) != 1:
                tensor = tensor.contiguous()  # heddle does so for frameworks that it knows
            _settle()
        return _Lent(tensor)

    def _out(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._out(one) for one in value]
        if isinstance(value, (heddle.Plan, heddle.Handle, heddle.Received, heddle.Combined, heddle.Split)):
            return _OnGpu(value, self._gpu, self._stream)
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            with torch.cuda.stream(self._stream):
                tensor = torch.from_dlpack(value)
                host = torch.empty_like(tensor, device="cpu")
                host.copy_(tensor)
            return host.view(_BITS.get(host.dtype, host.dtype)).numpy()
        return self._method(value) if callable(value) and not isinstance(value, type) else value

    def _method(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def on_gpu(*args: Any, **options: Any) -> Any:
            return self._out(call(*map(self._in, args), **{name: self._in(one) for name, one in options.items()}))

        return on_gpu


_RealBuffer = heddle.Buffer


class Buffer(_OnGpu):
    """A heddle.Buffer on a GPU; ranks are dealt over those there are. The real one if the test names a device."""

    def __new__(cls, group: Any, **settings: Any) -> Any:
        return _RealBuffer(group, **settings) if "device" in settings else super().__new__(cls)

    def __init__(self, group: Any, *, threads: int = 1, **settings: Any) -> None:
        gpu = group.rank % torch.cuda.device_count()
        torch.cuda.set_device(gpu)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # torch takes its memory now, while no other rank's kernel waits
            for size in (1 << 10, 8 << 20):
                torch.empty(size, dtype=torch.uint8, device=f"cuda:{gpu}")
        super().__init__(_RealBuffer(group, device=f"cuda:{gpu}", **settings), gpu, stream)

    def set_allocator(self, make: Callable[..., np.ndarray]) -> None:
        """`make` is for NumPy's types and arrays."""
        self._real.set_allocator(lambda dtype, shape: self._in(make(dtype, shape)))
