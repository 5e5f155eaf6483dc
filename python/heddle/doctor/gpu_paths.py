"""Which way each pair of GPUs takes: a buffer between processes that have a GPU each, or share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core
from ..bench.fleet import Fleet, RankFailed
from ..bootstrap import Bootstrap
from ..buffer import Buffer
from ..errors import Error
from .line import Line
from .paths import some

_TIMEOUT = 20.0  # seconds
_WHY = {
    "fabric": "GPU memory shared by fabric handle",
    "descriptor": "GPU memory shared by file descriptor",
    "pinned": "pinned host memory, slower: these GPUs cannot write each other's memory (HEDDLE_LOG=info says why)",
}


def gpu_paths(ranks: int) -> list[Line]:
    try:
        reports = Fleet(ranks, _TIMEOUT, meet_on_gpus, _TIMEOUT).run(lambda text: None)
    except (RankFailed, Error) as error:
        return [
            Line("GPU path", f"{type(error).__name__}: {error}", "fail", "docs/errors.md says what each error means")
        ]
    problems = [report["problem"] for report in reports if report["problem"]]
    if problems:
        return [Line("GPU path", f"none: {problems[0]}", "note", "buffers work on the CPU")]
    return lines_of([report["gpu"] for report in reports], [report["paths"] for report in reports])


def lines_of(gpus: list[int], paths: list[list[str]]) -> list[Line]:
    """One line for each kind of path, with the pairs of GPUs that take it. `gpus` and `paths` by rank."""
    pairs: dict[str, list[str]] = {}
    for a in range(len(gpus)):
        for b in range(a + 1, len(gpus)):
            pairs.setdefault(paths[a][b], []).append(f"{gpus[a]}-{gpus[b]}")
    if not pairs:
        pairs[paths[0][0]] = [str(gpus[0])]
    return [
        Line(
            f"GPU path {some(list(dict.fromkeys(which)))}",
            f"{path}: {_WHY.get(path, '')}",
            "note" if path == "pinned" else "ok",
        )
        for path, which in pairs.items()
    ]


def meet_on_gpus(bootstrap: Bootstrap, say: Callable[[str], None], timeout: float) -> dict[str, Any]:
    """What each rank does. Nobody builds a buffer that another cannot."""
    problem = _core.cuda_problem()
    others = [one.decode() for one in bootstrap.all_gather(problem.encode(), "asking for GPUs")]
    if any(others):
        return {"problem": next(one for one in others if one)}
    gpu = bootstrap.rank % _core.num_gpus()
    with Buffer(bootstrap, experts=bootstrap.size, device=f"cuda:{gpu}", timeout=timeout) as buffer:
        bootstrap.barrier("built")
        return {"problem": "", "gpu": gpu, "paths": buffer.paths}
