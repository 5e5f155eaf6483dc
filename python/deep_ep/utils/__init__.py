"""Helpers of deep_ep's callers."""

from .event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
