"""What comes after a low-latency call was sent: its event, and the hook that receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .streams import CpuStream, on
from .utils.event import EventHandle, EventOverlap


def end_of_call(
    receive: Callable[[], Any] | None,
    is_async: bool,
    finish: Callable[[], None] | None,
    device: torch.device,
) -> tuple[EventOverlap, Callable[[], None] | None]:
    """(event, hook or None) of a call with tensors of `device`: None as `receive` if it has received. finish() runs
    after that, on the stream of the send, where receive() works."""
    if receive is None:
        if finish is not None:
            finish()
        return EventOverlap(EventHandle() if is_async else None), None
    if finish is None:
        return EventOverlap(None), receive  # whose second call does nothing
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else CpuStream()
    waiting = [receive]

    def hook() -> None:
        if not waiting:
            return
        rest = waiting.pop()
        with on(stream):
            rest()
            finish()

    return EventOverlap(None), hook
