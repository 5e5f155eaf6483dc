"""Points in a stream's work that other streams wait for. On a CPU all work is done when a call returns, so waiting is
free."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch


class EventHandle:
    """What the current CUDA stream has been given so far; nothing where CUDA is not in use.

    tensors_to_record  kept alive until the handle is dropped
    """

    def __init__(self) -> None:
        self.event: Any = None
        self.tensors_to_record: tuple[torch.Tensor, ...] = ()
        if torch.cuda.is_initialized():
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream())

    @classmethod
    def of(cls, stream: torch.cuda.Stream) -> EventHandle:
        """What that stream has been given so far."""
        made = cls.__new__(cls)
        made.tensors_to_record = ()
        made.event = torch.cuda.Event()
        made.event.record(stream)
        return made

    def current_stream_wait(self) -> None:
        """The current stream waits for that work."""
        if self.event is not None:
            torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """The end of a call that may still run. `event` is None for a call that was waited for; it may be read and set.

    extra_tensors  kept alive as long as this object: what record_stream is for, under CUDA graphs

    As a context, work inside runs beside the call, and the current stream waits at the end:

        with event:
            compute()
    """

    # Of most objects: made for each call, they set what differs.
    event: EventHandle | None = None
    extra_tensors: tuple[torch.Tensor, ...] | None = None
    hook_after_wait: Callable[[], Any] | None = None
    _release_handle = False

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple[torch.Tensor, ...] | None = None) -> None:
        if event is not None:
            self.event = event
        if extra_tensors is not None:
            self.extra_tensors = extra_tensors

    def register_hook_after_wait(self, hook: Callable[[], Any]) -> None:
        """`hook` runs once, after the first wait, whose result is then the hook's. One hook only."""
        if self.hook_after_wait is not None:
            raise RuntimeError("register_hook_after_wait: hook is registered already, legal: one")
        self.hook_after_wait = hook

    def current_stream_wait(self, release_handle: bool = False) -> Any:
        """The current stream waits. Returns what a registered hook returns, else None.

        release_handle  drop the event, and the tensors that it keeps

        Raises AssertionError if `event` is None: the call was waited for already.
        """
        if self.event is None:
            raise AssertionError(
                "current_stream_wait: event is None, legal: the event of a call with async_finish=True "
                "(async_with_compute_stream=True in ElasticBuffer)"
            )
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        result = hook() if hook is not None else None
        if release_handle:
            self.event = None
        return result

    wait = current_stream_wait

    def __call__(self, release_handle: bool = False) -> EventOverlap:
        """`with event(release_handle=True):`"""
        self._release_handle = release_handle
        return self

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        release, self._release_handle = self._release_handle, False
        if self.event is not None:
            self.current_stream_wait(release)


def event_of(previous: EventOverlap | EventHandle | None) -> EventHandle | None:
    """The handle in what callers pass as `previous_event`: either class, or EventOverlap(None) for none."""
    if isinstance(previous, EventOverlap):
        return previous.event
    if previous is None or isinstance(previous, EventHandle):
        return previous
    raise ValueError(f"previous_event is a {type(previous).__name__}, legal: an EventOverlap, an EventHandle or None")
