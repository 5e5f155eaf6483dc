"""Which way each pair of ranks takes, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .line import Line


@dataclass(frozen=True)
class Place:
    """Where a rank lives."""

    host: str
    process: int
    network: str = ""  # network namespace: windows are handed over by sockets that end there


@dataclass(frozen=True)
class Path:
    name: str  # "" = none
    why: str


def path_between(one: Place, other: Place, features: Mapping[str, bool]) -> Path:
    if one.host != other.host:
        if features["fabric"]:
            return Path("network", "different hosts")
        return Path("", "different hosts, and this build has no network transport")
    if one.process == other.process:
        return Path("heap", "threads of one process")
    if one.network != other.network:
        return Path(
            "", "containers of one host with networks of their own: windows cannot be handed over; share the network"
        )
    return Path("shared memory", "processes of one host; the window's descriptor is handed over a socket")


def paths(places: list[Place], features: Mapping[str, bool]) -> list[Line]:
    """One line for each kind of path, with the pairs that take it."""
    pairs: dict[Path, list[str]] = {}
    for a in range(len(places)):
        for b in range(a + 1, len(places)):
            pairs.setdefault(path_between(places[a], places[b], features), []).append(f"{a}-{b}")
    if not pairs:
        return [Line("path", "one rank: its own memory")]
    return [
        Line(
            f"path {some(which)}",
            f"{path.name or 'none'}: {path.why}",
            "ok" if path.name else "fail",
            "" if path.name else "put the ranks on one host",
        )
        for path, which in pairs.items()
    ]


def some(pairs: list[str]) -> str:
    shown = ", ".join(pairs[:6])
    return shown if len(pairs) <= 6 else f"{shown} and {len(pairs) - 6} more"
