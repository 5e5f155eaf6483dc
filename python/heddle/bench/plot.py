"""A picture of a report: each iteration of each operation, and the floor."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UsageError


def draw(report: dict[str, Any], path: str) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("plot needs matplotlib: pip install 'heddle[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    moves = {name: one for name, one in report["operations"].items() if "wire_bytes" in one}
    figure, axes = pyplot.subplots(1, len(moves), figsize=(5 * len(moves), 4), squeeze=False, layout="constrained")
    for axis, (name, operation) in zip(axes[0], moves.items(), strict=True):
        times = np.array(operation["nanoseconds"]) / 1e6
        axis.plot(times.T, color="0.75", linewidth=0.8)
        axis.plot(times.max(axis=0), color="C0", label="slowest rank")
        if "floor_ns" in operation:
            axis.axhline(operation["floor_ns"] / 1e6, color="C3", linestyle="--", label="floor")
        axis.set(title=name, xlabel="iteration", ylabel="ms", ylim=(0, None))
        axis.legend()
    options = report["options"]
    figure.suptitle(f"{options['ranks']} ranks x {options['tokens']} tokens x {options['hidden']}, {options['dtype']}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
