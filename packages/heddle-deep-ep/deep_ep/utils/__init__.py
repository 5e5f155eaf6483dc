"""Helpers of deep_ep's callers: events, and what test programs import."""

from typing import Any

from . import comm, envs, gate, math, refs, testing
from .event import EventHandle, EventOverlap


def check_nvlink_connections(group: Any) -> None:
    """Nothing to check: ranks need no NVLink."""


__all__ = [
    "EventHandle",
    "EventOverlap",
    "check_nvlink_connections",
    "comm",
    "envs",
    "gate",
    "math",
    "refs",
    "testing",
]
