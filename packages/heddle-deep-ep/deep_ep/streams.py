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
        self._turn: torch.cuda.Event | None = (
            None  # of whichever stream the other waits for; a wait takes what it finds
        )

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
            return body(), EventOverlap()
        given = [one for one in tensors_in(inputs) if one.is_cuda] if torch.cuda.is_initialized() else []
        if not given:
            return body(), EventOverlap(EventHandle() if is_async else None)
        compute, comm = torch.cuda.current_stream(given[0].device), self.get(given[0].device)
        if before is None:
            self._wait(comm, compute)
        elif before.event is not None:
            comm.wait_event(before.event)
        with as_current(comm, compute):
            result = body()
        for tensor in given:
            tensor.record_stream(comm)
        for tensor in tensors_in([result]):
            if tensor.is_cuda:
                tensor.record_stream(compute)
        if is_async:
            return result, EventOverlap(EventHandle.of(comm))
        self._wait(compute, comm)
        return result, EventOverlap()

    def _wait(self, waiting: torch.cuda.Stream, running: torch.cuda.Stream) -> None:
        """As wait_stream(), with one event for all calls."""
        if self._turn is None:
            self._turn = torch.cuda.Event()
        self._turn.record(running)
        waiting.wait_event(self._turn)


class as_current:  # noqa: N801 - reads as a statement
    """`stream` as the current one, then `before`, which is its device's now. torch.cuda.stream() takes longer to find
    out what was current (9 us, H200's host); it does where another device is."""

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: torch.cuda.Stream, before: torch.cuda.Stream) -> None:
        self._before: Any = before
        self._stream: Any = stream
        if torch.cuda.current_device() != stream.device_index:
            self._stream, self._before = torch.cuda.stream(stream), None

    def __enter__(self) -> None:
        if self._before is None:
            self._stream.__enter__()
        else:
            torch.cuda.set_stream(self._stream)

    def __exit__(self, *error: Any) -> None:
        if self._before is None:
            self._stream.__exit__(*error)
        else:
            torch.cuda.set_stream(self._before)


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
