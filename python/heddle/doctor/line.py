"""One thing that the doctor found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    topic: str
    found: str
    state: str = "ok"  # ok; note: works, but read the advice; fail: does not work
    advice: str = ""
