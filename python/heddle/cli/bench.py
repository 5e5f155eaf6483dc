"""`heddle bench`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..bench.options import Options

_DEFAULT_TOKENS = {"throughput": 4096, "latency": 128}


def command(
    ranks: Annotated[int, typer.Option(help="Processes.")] = 8,
    tokens: Annotated[int, typer.Option(help="Of each rank; 0 = 4096, or 128 for latency.")] = 0,
    hidden: Annotated[int, typer.Option(help="Elements of a row.")] = 7168,
    topk: Annotated[int, typer.Option(help="Experts of a token.")] = 8,
    experts: Annotated[int, typer.Option(help="Of all ranks together.")] = 256,
    mode: Annotated[str, typer.Option(help="throughput: token-major; latency: slab, weighted.")] = "throughput",
    routing: Annotated[str, typer.Option(help="uniform, zipf:A, hot:N, or file.npz with ids.")] = "uniform",
    dtype: Annotated[str, typer.Option(help="bf16 or fp8.")] = "bf16",
    verify: Annotated[bool, typer.Option(help="Check every element of the first and the last call.")] = True,
    iterations: Annotated[int, typer.Option(help="Timed calls.")] = 5,
    warmup: Annotated[int, typer.Option(help="Calls before them.")] = 1,
    seed: Annotated[int, typer.Option(help="Of routing and contents.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds that a call waits for a rank.")] = 100.0,
    threads: Annotated[int, typer.Option(help="CPU threads of a rank.")] = 1,
    window_bytes: Annotated[int, typer.Option(help="Memory that peers write to; 0 = 256 MiB a rank.")] = 0,
    heap_bytes: Annotated[int, typer.Option(help="Of results that rows come into in place; 0 = none.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write all numbers there.")] = None,
    plot_path: Annotated[Path | None, typer.Option("--plot", help="Draw iterations and floor there.")] = None,
) -> None:
    """Moves tokens between processes of this machine, checks what arrives, and says how long it took."""
    from ..bench.expect import World
    from ..bench.fleet import run_ranks
    from ..bench.memory import check_fits
    from ..bench.report import assemble, show
    from ..bench.routing import resolve

    options = Options(
        ranks=ranks, tokens=tokens or _DEFAULT_TOKENS.get(mode, 1), hidden=hidden, topk=topk, experts=experts,
        mode=mode, routing=routing, dtype=dtype, verify=verify, iterations=iterations, warmup=warmup, seed=seed,
        timeout=timeout, threads=threads, window_bytes=window_bytes, heap_bytes=heap_bytes,
    )  # fmt: skip
    options.check()
    options = resolve(options)
    check_fits(options, World(options))
    begin = time.monotonic()
    with _progress(Console(stderr=True)) as say:
        reports = run_ranks(options, say)
    report = assemble(options, reports, time.monotonic() - begin)
    show(Console(), report)
    if json_path:
        json_path.write_text(json.dumps(report, indent=1) + "\n")
    if plot_path:
        from ..bench.plot import draw

        draw(report, str(plot_path))


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    """A line on the terminal that says what rank 0 is at."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("start the ranks", total=None)
        yield lambda text: progress.update(task, description=text)
