"""`heddle doctor`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..doctor.line import Line

_MARKS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "fail": "[red]fail[/red]"}


def command(
    ranks: Annotated[int, typer.Option(min=1, max=16, help="Processes of the self-test.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Says what this machine offers, which way ranks reach one another, and whether a small exchange works.

    Exits 1 if anything fails.
    """
    from ..doctor.examination import examine
    from ..doctor.probe import Probe

    lines = list(examine(Probe(), ranks))
    if as_json:
        for line in lines:
            print(json.dumps(asdict(line)))
    else:
        Console().print(_table(lines))
    raise typer.Exit(any(line.state == "fail" for line in lines))


def _table(lines: list[Line]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for line in lines:
        advice = f"\n[dim]{line.advice}[/dim]" if line.advice else ""
        table.add_row(_MARKS[line.state], line.topic, line.found + advice)
    return table
