"""Where the calls of a buffer run. On a GPU those with torch tensors are enqueued on torch's current stream; those with
other arrays run on the buffer's own stream, and return when they are done. A named stream is taken as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from operator import index
from typing import Any

from .errors import UsageError
from .frameworks import Array, is_torch


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


@contextmanager
def on_stream(gpu: int | None, stream: Any, *inputs: Array | None) -> Iterator[int | None]:
    """Makes the stream of a call torch's current one, so that what torch makes for the call belongs to it, and gives
    its number. The inputs may be freed, or written to in the stream, as soon as the call has returned."""
    if gpu is None:
        if stream is not None:
            raise UsageError(f"stream is {stream!r}, legal on the CPU: None")
        yield None
        return
    if not any(is_torch(one) for one in inputs):
        yield None if stream is None else handle_of(stream)
        return
    torch = sys.modules["torch"]
    current = torch.cuda.current_stream(gpu).cuda_stream
    wanted = current if stream is None else handle_of(stream)
    with ExitStack() as stack:
        if wanted != current:
            other = torch.cuda.ExternalStream(wanted, device=gpu)
            stack.enter_context(torch.cuda.stream(other))
            _use_in(other, inputs)
        elif torch.cuda.current_device() != gpu:
            stack.enter_context(torch.cuda.device(gpu))
        yield wanted


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
