"""``instar tasks``: task sets in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from instar.cli.client import Client, path_of
from instar.cli.files import read_text
from instar.cli.output import Json, emit, in_words, table

__all__ = ["app"]

app = typer.Typer(help="Task sets: import, list, export.", no_args_is_help=True)


@app.command(name="import")
def import_(
    name: Annotated[str, typer.Argument(help="Name of the task set.")],
    file: Annotated[Path, typer.Argument(help="JSONL file, one task per line.")],
    json: Json = False,
) -> None:
    """Import a task set. A broken file is refused whole, with line number and cause."""
    found = Client().post(path_of("task-sets"), {"name": name, "jsonl": read_text(file)})
    emit(
        found, json, f"task set {name} has version {found['version']}: {in_words(found['counts'])}"
    )


@app.command(name="list")
def list_(json: Json = False) -> None:
    """List the task sets of the project."""
    rows = list(Client().pages(path_of("task-sets")))
    emit(rows, json, table(rows, ("name", "version", "counts", "created_at")))
