"""Versions of what Heddle is made of and works with."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from .line import Line
from .probe import Probe

OLDEST = {"numpy": (1, 26), "torch": (2, 4)}
NEEDED = ("numpy",)


def heddle(version: str, features: Mapping[str, bool]) -> Line:
    built = ", ".join(f"{name} {'yes' if on else 'no'}" for name, on in features.items())
    return Line("heddle", f"{version} on Python {platform.python_version()}; built with {built}")


def packages(probe: Probe) -> list[Line]:
    return [_package(probe, name) for name in (*NEEDED, "torch", "matplotlib")]


def _package(probe: Probe, name: str) -> Line:
    version = probe.version(name)
    if version is None:
        if name in NEEDED:
            return Line(name, "not installed", "fail", f"pip install {name}")
        return Line(name, f"not installed; pip install 'heddle[{'plot' if name == 'matplotlib' else name}]' to use it")
    oldest = OLDEST.get(name)
    if oldest and _numbers(version) < oldest:
        wanted = ".".join(map(str, oldest))
        return Line(name, f"{version}, needed {wanted} or newer", "fail", f"pip install --upgrade '{name}>={wanted}'")
    return Line(name, version)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
