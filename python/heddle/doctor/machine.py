"""Processor and memory."""

from __future__ import annotations

import re

from .line import Line
from .probe import Probe

_WANTED = ("avx512f", "avx2", "f16c", "fma")
_LITTLE = 2 << 30  # bytes


def cpu(probe: Probe) -> Line:
    info = probe.text("/proc/cpuinfo") or ""
    name = re.search(r"^model name\s*:\s*(.+)$", info, re.M)
    features = re.search(r"^flags\s*:\s*(.+)$", info, re.M)
    flags = set(features[1].split()) if features else set()
    usable = len(probe.cores())
    all_cores = len(re.findall(r"^processor\s*:", info, re.M)) or usable
    share = f"{usable} cores" if usable == all_cores else f"{usable} of {all_cores} cores"
    vectors = [flag for flag in _WANTED if flag in flags]
    found = f"{name[1] if name else 'unknown processor'}, {share}, vectors: {', '.join(vectors) or 'none known'}"
    if flags and not {"avx2", "fma"} <= flags:
        return Line("CPU", found, "note", "no AVX2: rows are summed by the plain code, several times slower")
    return Line("CPU", found)


def memory(probe: Probe) -> Line:
    amounts = dict(re.findall(r"^(\w+):\s+(\d+) kB$", probe.text("/proc/meminfo") or "", re.M))
    if "MemTotal" not in amounts:
        return Line("memory", "unknown: /proc/meminfo cannot be read", "note", "sizes are not checked before use")
    total, free = (int(amounts.get(key, 0)) * 1024 for key in ("MemTotal", "MemAvailable"))
    found = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    limit = probe.text("/sys/fs/cgroup/memory.max")
    if limit and limit.strip().isdigit():
        found += f", at most {int(limit) / 2**30:.1f} GiB for this container"
        free = min(free, int(limit))
    if free < _LITTLE:
        return Line("memory", found, "note", "a buffer takes 256 MiB a rank; lower it with window_bytes")
    return Line("memory", found)


def shared_memory(probe: Probe) -> Line:
    """Windows are anonymous files, whose pages count as shared memory; /dev/shm and its size play no part."""
    release = (probe.text("/proc/sys/kernel/osrelease") or "0.0").strip()
    major, minor = (int(part) for part in re.findall(r"\d+", release + ".0")[:2])
    if (major, minor) < (3, 17):
        return Line(
            "shared memory", f"Linux {release}", "fail", "processes share windows by memfd: Linux 3.17 or newer"
        )
    return Line("shared memory", f"memfd on Linux {release}; /dev/shm is not used")
