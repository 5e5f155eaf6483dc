"""A buffer between real processes: does it work, what does it take, and where does each rank live?"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from .. import _core
from ..bench.fleet import Fleet, RankFailed
from ..bench.options import Options
from ..bench.rank import Rank
from ..bench.spec_check import check_against_spec
from ..bootstrap import Bootstrap
from ..buffer import Buffer
from ..errors import Error
from .line import Line
from .paths import Place

_TIMEOUT = 20.0  # seconds


def options(ranks: int) -> Options:
    return Options(ranks=ranks, tokens=64, hidden=1024, topk=4, experts=4 * ranks, iterations=1, timeout=_TIMEOUT)


def run(ranks: int) -> tuple[list[Line], list[Place]]:
    """The test's result, memory of a buffer, and where the ranks were. A failure is a line too."""
    try:
        reports = Fleet(ranks, _TIMEOUT, test_rank, options(ranks)).run(lambda text: None)
    except (RankFailed, Error) as error:
        return [failed(error)], []
    return [passed(ranks, reports), memory(reports)], [Place(*report["place"]) for report in reports]


def test_rank(bootstrap: Bootstrap, say: Callable[[str], None], chosen: Options) -> dict[str, Any]:
    """What each rank of the test does."""
    before = window_bytes(_maps())
    buffer = Buffer(bootstrap, experts=chosen.experts, timeout=chosen.timeout)
    mapped = window_bytes(_maps()) - before
    predicted = buffer.predicted_bytes
    bootstrap.barrier("measured")
    buffer.destroy()
    compared = check_against_spec(bootstrap, chosen)
    checked = Rank(chosen, bootstrap, say).run()["checked"]
    network = os.readlink("/proc/self/ns/net") if os.path.exists("/proc/self/ns/net") else ""
    return {
        "place": (os.uname().nodename, os.getpid(), network),
        "own_bytes": mapped // bootstrap.size,  # every rank maps the windows of all
        "predicted_bytes": predicted,
        "compared": compared + sum(checked.values()),
    }


def passed(ranks: int, reports: list[dict[str, Any]]) -> Line:
    compared = sum(report["compared"] for report in reports)
    return Line("self-test", f"{ranks} processes exchanged tokens, {compared:,} values compared, all right")


def failed(error: Exception) -> Line:
    return Line("self-test", f"{type(error).__name__}: {error}", "fail", "docs/errors.md says what each error means")


def memory(reports: list[dict[str, Any]]) -> Line:
    predicted = max(report["predicted_bytes"] for report in reports)
    actual = max(report["own_bytes"] for report in reports)
    found = f"{predicted / 2**20:.1f} MiB predicted, {actual / 2**20:.1f} MiB taken by each rank (default window)"
    if actual > 1.05 * predicted or predicted > 1.05 * actual + (1 << 20):
        return Line("buffer", found, "note", "prediction and use differ; please report it")
    return Line("buffer", found)


def window_bytes(maps: str) -> int:
    """Bytes of the shared windows in the text of /proc/self/maps."""
    ranges = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \S+\s+/memfd:heddle", maps, re.M)
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


def _maps() -> str:
    with open("/proc/self/maps") as file:
        return file.read()


def features() -> dict[str, bool]:
    """What this build has."""
    return dict(_core.features)
