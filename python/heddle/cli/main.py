"""`heddle`: benchmark, and find out what this machine offers."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from ..errors import Error
from . import bench, doctor

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Dispatch and combine for mixtures of experts.")
app.command("bench")(bench.command)
app.command("doctor")(doctor.command)


@app.command()
def version() -> None:
    """The version of the installed package."""
    from .. import __version__

    print(__version__)


def main() -> None:
    try:
        app()
    except Error as error:
        Console(stderr=True).print(f"[red]{type(error).__name__}[/red]: {error}", highlight=False)
        sys.exit(2 if isinstance(error, ValueError) else 1)
