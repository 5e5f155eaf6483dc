"""Where the calls of a buffer run. On a GPU those with torch tensors are enqueued on torch's current stream; those with
other arrays run on the buffer's own stream, and return when they are done. A named stream is taken as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import index
from typing import Any, TypeVar

from . import _core
from .errors import UsageError
from .frameworks import Array, is_torch

Result = TypeVar("Result")


def gpu_of(device: Any) -> int | None:
    """Number of the GPU that `device` names; None for the CPU."""
    text = "cpu" if device is None else str(device)
    if text == "cpu":
        return None
    if text.isdigit():
        return int(text)
    kind, _, number = text.partition(":")
    if kind != "cuda" or not (number.isdigit() or ":" not in text):
        raise UsageError(f"device is {device!r}, legal: 'cpu', 'cuda' (torch's current GPU, or GPU 0) or 'cuda:1'")
    if number:
        return int(number)
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None else 0


def handle_of(stream: Any) -> int:
    """The number that CUDA knows the stream by; takes streams of torch and CuPy, and numbers."""
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    return index(stream)


def place(
    gpu: int, stream: Any, inputs: tuple[Array | None, ...]
) -> tuple[int | None, AbstractContextManager[Any] | None]:
    """(the number of a call's stream, the scope to make the call in). In it that stream is torch's current one, so that
    what torch makes for the call belongs to it. The inputs may be freed, or written to in the stream, as soon as the
    call has returned. No scope where nothing is to be changed."""
    if not any(is_torch(one) for one in inputs):
        return None if stream is None else handle_of(stream), None
    torch = sys.modules["torch"]
    current = _core.torch_stream(gpu)
    wanted = current if stream is None else handle_of(stream)
    if wanted != current:
        return wanted, _in_stream(torch, gpu, wanted, inputs)
    if torch.cuda.current_device() != gpu:
        return wanted, torch.cuda.device(gpu)
    return wanted, None


def run_in(scope: AbstractContextManager[Any] | None, call: Callable[..., Result], *args: Any) -> Result:
    """call(*args) in the scope that place() gave."""
    if scope is None:
        return call(*args)
    with scope:
        return call(*args)


@contextmanager
def _in_stream(torch: Any, gpu: int, number: int, inputs: tuple[Array | None, ...]) -> Iterator[None]:
    stream = torch.cuda.ExternalStream(number, device=gpu)
    with torch.cuda.stream(stream):
        _use_in(stream, inputs)
        yield


def join(gpu: int | None, stream: int | None, results: Callable[[], Iterable[Array | None]]) -> None:
    """torch's current stream goes on after all that is on `stream` now, and may use what was made there."""
    torch = sys.modules.get("torch")
    if gpu is None or stream is None or torch is None:
        return
    current = torch.cuda.current_stream(gpu)
    if current.cuda_stream == stream:
        return
    current.wait_stream(torch.cuda.ExternalStream(stream, device=gpu))
    _use_in(current, results())


def _use_in(stream: Any, arrays: Iterable[Array | None]) -> None:
    for array in arrays:
        if is_torch(array) and array.is_cuda:
            array.record_stream(stream)
