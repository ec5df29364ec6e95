"""The command ``instar``: parses words, calls functions, prints. Heavy parts load when needed."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from instar.cli import (
    access,
    agents,
    artifacts,
    audit,
    backup,
    db,
    evolve,
    history,
    mcp,
    models,
    secrets,
    service,
    tasks,
    transfer,
)
from instar.redaction import redact_text
from instar.settings import prepare_process
from instar_core.errors import InstarError, UserError

__all__ = ["app", "main"]

app = typer.Typer(
    name="instar",
    help="Agents that get better from their own work.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    # A wide terminal shows each command's whole sentence; the default cuts it at 80 columns.
    context_settings={"max_content_width": 120},
)
service.register(app)
backup.register(app)
app.add_typer(db.app, name="db")
app.add_typer(evolve.app, name="evolve")
app.add_typer(agents.app, name="agent")
app.add_typer(tasks.app, name="tasks")
transfer.register(artifacts.app, tasks.app)
history.register(artifacts.app, evolve.app)
app.add_typer(artifacts.app, name="artifact")
app.add_typer(audit.app, name="audit")
app.add_typer(mcp.app, name="mcp")
app.add_typer(models.app, name="model")
app.add_typer(secrets.app, name="secret")
app.add_typer(access.users, name="user")
app.add_typer(access.keys, name="key")
app.add_typer(access.projects, name="project")

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from instar import __version__

        print(__version__)
        raise typer.Exit


@app.command(context_settings=_PASS_ON)
def demo(context: typer.Context) -> None:
    """Evolve the sample agent and promote a real gain."""
    _run_module("instar.cli.demo", context.args)


@app.command(context_settings=_PASS_ON)
def selfcheck(context: typer.Context) -> None:
    """Check the promises on worlds with known answers."""
    _run_module("instar.cli.selfcheck", context.args)


def _run_module(name: str, arguments: list[str]) -> None:
    """Runs another module's ``main(arguments)``, which parses its own options."""
    status = import_module(name).main(arguments)
    raise typer.Exit(int(status or 0))


def main() -> None:
    """Runs the command line. Exit codes: 2 for a person's mistake, 1 for other trouble."""
    prepare_process()
    try:
        app()
    except InstarError as error:
        print(redact_text(f"error: {error}"), file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except Exception as error:  # noqa: BLE001 - the last place that can turn it into words
        if os.environ.get("INSTAR_DEBUG"):
            raise
        print(
            redact_text(f"error: {type(error).__name__}: {error}")
            + "\nThis should not happen. Repeat it with INSTAR_DEBUG=1 for the details, and "
            "report it.",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
