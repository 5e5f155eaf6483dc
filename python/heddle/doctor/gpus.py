"""GPUs and how they reach one another, as nvidia-smi tells it."""

from __future__ import annotations

from collections.abc import Mapping

from .line import Line
from .probe import Probe

_QUERY = ("nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader,nounits")


def gpus(probe: Probe, features: Mapping[str, bool]) -> list[Line]:
    listed = probe.run(*_QUERY)
    rows = [[cell.strip() for cell in row.split(",")] for row in (listed or "").splitlines() if row.count(",") >= 3]
    if not rows:
        return [Line("GPUs", "none found (no nvidia-smi, or no GPU behind it): ranks run on the CPU")]
    lines = []
    for index, name, mebibytes, driver in (row[:4] for row in rows):
        lines.append(Line(f"GPU {index}", f"{name}, {int(float(mebibytes)) / 1024:.0f} GiB, driver {driver}"))
    if not features["cuda"]:
        lines.append(
            Line("GPUs", "not used", "note", "this build has no CUDA kernels; build it with HEDDLE_CUDA=ON to use them")
        )
    if len(rows) > 1:
        lines.append(peers(probe, len(rows)))
    return lines


def peers(probe: Probe, count: int) -> Line:
    """Which pairs of GPUs may read and write each other's memory."""
    matrix = _matrix(probe.run("nvidia-smi", "topo", "-p2p", "rw"), count)
    if matrix is None:
        return Line(
            "GPU peers", "unknown: nvidia-smi topo tells nothing", "note", "paths are found when a buffer is built"
        )
    bad = [f"{a}-{b}" for a in range(count) for b in range(a + 1, count) if not (matrix[a][b] and matrix[b][a])]
    if not bad:
        return Line("GPU peers", f"all {count * (count - 1) // 2} pairs have peer access")
    return Line(
        "GPU peers",
        f"no peer access between {', '.join(bad)}",
        "note",
        "these pairs go through pinned host memory, slower",
    )


def _matrix(text: str | None, count: int) -> list[list[bool]] | None:
    rows = [line.split()[1:] for line in (text or "").splitlines() if line.strip().startswith("GPU") and "\t" in line]
    rows = [row for row in rows if row and row[0] in ("X", "OK", "NS", "CNS", "GNS", "TNS", "DR", "U")]
    if len(rows) != count or any(len(row) < count for row in rows):
        return None
    return [[cell in ("X", "OK") for cell in row[:count]] for row in rows]
