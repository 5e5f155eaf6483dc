"""Numbers of all ranks put together: a JSON object, and a table for a person."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from .. import _core
from .floor import WAYS
from .options import Options

OPERATIONS = ("plan", "dispatch", "combine")


def assemble(options: Options, ranks: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Everything that was measured, for --json."""
    operations = {name: _operation(options, name, ranks) for name in OPERATIONS}
    checked = {key: sum(rank["checked"][key] for rank in ranks) for key in ranks[0]["checked"]}
    return {
        "heddle": _core.version,
        "machine": {"cpu": _cpu_name(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()},
        "options": options.to_json(),
        "operations": operations,
        "checked": checked,
        "rows_sent": [rank["rows_sent"] for rank in ranks],
        "rows_received": [rank["rows_received"] for rank in ranks],
        "peak_bytes": [rank["peak_bytes"] for rank in ranks],
        "held_bytes": [rank["held_bytes"] for rank in ranks],
        "seconds": seconds,
    }


def _operation(options: Options, name: str, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    times = np.array([rank["times"][name] for rank in ranks])  # [ranks, iterations] ns
    slowest = times.max(axis=0)
    result: dict[str, Any] = {
        "nanoseconds": times.tolist(),
        "median_ns": int(np.median(slowest)),
        "p99_ns": int(np.percentile(slowest, 99)),
    }
    if name == "plan":
        return result
    row_bytes = options.wire_row_bytes if name == "dispatch" else options.result_row_bytes
    moved = "rows_sent" if name == "dispatch" else "rows_received"
    result["wire_bytes"] = [rank["wire_bytes"][name] for rank in ranks]
    result["logical_bytes"] = [rank[moved] * row_bytes for rank in ranks]
    ways = {way: _slowest(way, name, ranks) for way in WAYS if all(rank["floors"] for rank in ranks)}
    if ways:
        result["floor_ways_ns"] = ways
        result["floor_ns"] = min(ways.values())
        result["share_of_floor"] = result["floor_ns"] / max(1, result["median_ns"])
    return result


def _slowest(way: str, name: str, ranks: list[dict[str, Any]]) -> int:
    """Median over repeats of the slowest rank."""
    return int(np.median(np.array([rank["floors"][name][way] for rank in ranks]).max(axis=0)))


def show(console: Console, report: dict[str, Any]) -> None:
    options = report["options"]
    table = Table(
        title=f"{options['ranks']} ranks x {options['tokens']} tokens x {options['hidden']}, top-{options['topk']} of "
        f"{options['experts']}, {options['mode']}, {options['dtype']}, {options['routing']}",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption=f"slowest rank of {options['iterations']} iterations on {report['machine']['cores']} cores",
    )
    for heading in ("call", "median ms", "p99 ms", "wire MB", "logical MB", "GB/s", "floor ms", "of floor"):
        table.add_column(heading, justify="left" if heading == "call" else "right", no_wrap=True)
    for name, operation in report["operations"].items():
        table.add_row(name, *_cells(operation))
    console.print(table)
    console.print("wire: rows to other ranks as they travel, logical: payload of all rows; of the busiest rank")
    for what, count in report["checked"].items():
        console.print(f"[green]right[/green]: {count:,} {what}")
    peak = sum(report["peak_bytes"])
    seconds = f"{report['seconds']:.1f} s"
    console.print(f"{seconds}, at most {peak / 2**30:.1f} GiB in all ranks (shared memory counts in each)")
    if all(report["held_bytes"]):
        console.print(f"at the end the ranks held {sum(report['held_bytes']) / 2**30:.1f} GiB together")


def _cells(operation: dict[str, Any]) -> list[str]:
    cells = [_ms(operation["median_ns"]), _ms(operation["p99_ns"])]
    if "wire_bytes" not in operation:
        return cells + [""] * 5
    wire, logical = max(operation["wire_bytes"]), max(operation["logical_bytes"])
    cells += [_mb(wire), _mb(logical), f"{logical / max(1, operation['median_ns']):.2f}"]
    if "floor_ns" not in operation:
        return cells + ["", ""]
    return cells + [_ms(operation["floor_ns"]), f"{100 * operation['share_of_floor']:.0f} %"]


def _ms(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e6:.3f}" if nanoseconds < 1e7 else f"{nanoseconds / 1e6:.0f}"


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f}"


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or "unknown"
