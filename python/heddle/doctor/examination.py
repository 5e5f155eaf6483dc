"""All lines, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .. import _core
from . import gpu_paths, gpus, machine, nics, paths, self_test, versions
from .line import Line
from .probe import Probe


def examine(probe: Probe, ranks: int, features: Mapping[str, bool] | None = None) -> Iterator[Line]:
    features = self_test.features() if features is None else features
    yield versions.heddle(_core.version, features)
    yield from versions.packages(probe)
    yield machine.cpu(probe)
    yield machine.memory(probe)
    yield machine.shared_memory(probe)
    yield from gpus.gpus(probe, features)
    yield from nics.nics(probe, features)
    tested, places = self_test.run(ranks)
    if places:
        yield from paths.paths(places, features)
    if features["cuda"]:
        yield from gpu_paths.gpu_paths(ranks)
    yield from tested
