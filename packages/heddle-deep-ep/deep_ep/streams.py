"""Where calls run. CUDA tensors: on the caller's stream, or on one of the buffer's own that the caller's does not wait
for. CPU: at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from heddle import UsageError

from .utils.event import EventHandle, EventOverlap, event_of

Result = TypeVar("Result")


class CpuStream:
    """Stands for a stream where all work is done when a call returns: has a CUDA stream's methods, which do nothing."""

    cuda_stream = 0
    device = torch.device("cpu")

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return EventHandle() if event is None else event

    def query(self) -> bool:
        return True

    def __enter__(self) -> CpuStream:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def tensors_in(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    """The tensors of a nest of tuples and lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)


class CommStream:
    """Runs calls of one buffer in their order: on a CUDA stream made at the first CUDA tensor, or at once."""

    def __init__(self) -> None:
        self._cuda: torch.cuda.Stream | None = None

    def get(self, device: torch.device | None = None) -> Any:
        """`device`: of the tensors; else the current one. It stays that of the first call."""
        if self._cuda is None and torch.cuda.is_initialized():
            self._cuda = torch.cuda.Stream(device, priority=-1)
        return self._cuda if self._cuda is not None else CpuStream()

    def run(
        self,
        body: Callable[[], Result],
        inputs: Iterable[Any],
        *,
        previous_event: EventOverlap | EventHandle | None = None,
        is_async: bool = False,
    ) -> tuple[Result, EventOverlap]:
        """body() after `previous_event`, or after the current stream's work if there is none. The current stream waits
        for it unless `is_async`; then the event, which is else EventOverlap(None), does so.

        What comes after the current stream's work and before what it gets next may as well run there: two events, two
        changes of the stream and the guards of all tensors cost more than the rest of a call."""
        before = event_of(previous_event)
        if before is None and not is_async:
            return body(), EventOverlap(None)
        tensors = list(tensors_in(inputs)) if torch.cuda.is_initialized() else []
        if not any(tensor.is_cuda for tensor in tensors):
            return body(), EventOverlap(EventHandle() if is_async else None)
        device = next(tensor.device for tensor in tensors if tensor.is_cuda)
        compute, comm = torch.cuda.current_stream(device), self.get(device)
        with torch.cuda.stream(comm):
            if before is None:
                comm.wait_stream(compute)
            else:
                before.current_stream_wait()
            result = body()
            event = EventHandle() if is_async else None
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(comm)
        for tensor in tensors_in([result]):
            if tensor.is_cuda:
                tensor.record_stream(compute)
        if not is_async:
            compute.wait_stream(comm)
        return result, EventOverlap(event)


def on(stream: Any) -> AbstractContextManager[Any]:
    """`stream` as the current one."""
    return nullcontext() if isinstance(stream, CpuStream) else torch.cuda.stream(stream)


def check_v1_flags(previous_event: Any, async_finish: bool, allocate_on_comm_stream: bool) -> None:
    """Raises UsageError where memory of the comm stream would be used without anything that orders its use."""
    if previous_event is None and not allocate_on_comm_stream:
        return
    event_of(previous_event)
    if allocate_on_comm_stream and (previous_event is None or not async_finish):
        raise UsageError(
            f"allocate_on_comm_stream is True with previous_event {'None' if previous_event is None else 'given'} and "
            f"async_finish {async_finish}, legal: with a previous_event and async_finish=True"
        )


def check_v2_flags(previous_event: Any, allocate_on_comm_stream: bool) -> None:
    """Raises UsageError for a previous_event whose outputs would be allocated on a stream that does not wait for it."""
    if event_of(previous_event) is not None and not allocate_on_comm_stream:
        raise UsageError("previous_event is given with allocate_on_comm_stream False, legal: with True")
