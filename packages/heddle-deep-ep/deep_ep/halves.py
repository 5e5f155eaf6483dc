"""What comes after a low-latency call was sent: its event, and the hook that receives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .streams import CpuStream, on
from .utils.event import EventHandle, EventOverlap
from .wait_stats import WaitStats


def end_of_call(
    made: Any,
    is_split: bool,
    is_async: bool,
    finish: Callable[[], None],
    stats: WaitStats | None,
    device: torch.device,
) -> tuple[EventOverlap, Callable[[], None] | None]:
    """(event, hook or None) of a call with tensors of `device`. finish() runs after the receive. `made` is the call's
    result, or what receives it."""
    if not is_split:
        if stats is not None:
            stats.add()
        finish()
        return EventOverlap(EventHandle() if is_async else None), None
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else CpuStream()
    waiting: list[Any] = [made]

    def hook() -> None:
        if not waiting:
            return
        split = waiting.pop()
        with on(stream):
            if stats is not None:
                stats.begin()
            split.receive()
            if stats is not None:
                stats.add()
            finish()

    return EventOverlap(None), hook
