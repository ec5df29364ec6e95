"""Commands that start, stop and show the service on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from instar.cli.output import Json, emit, say, table

if TYPE_CHECKING:
    from instar.embedded.status import Status

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds ``up``, ``down`` and ``status``."""
    app.command()(up)
    app.command()(down)
    app.command()(status)


def up(
    detach: Annotated[
        bool, typer.Option("--detach", help="Come back when it is ready; it runs on.")
    ] = False,
    json: Json = False,
) -> None:
    """Start the service on this machine."""
    from instar.settings import load_settings

    if detach:
        from instar.embedded.detach import start_detached

        found, key = start_detached(load_settings())
        _announce(found, key, json)
        say("Stop it with: instar down") if not json else None
        return
    from instar.embedded.up import up as run

    settings = load_settings()
    say(f"starting Instar in {settings.data_dir} (Ctrl-C stops it)")
    run(settings, on_ready=lambda found, key: _announce(found, key, json))


def _announce(found: Status, key: str | None, as_json: bool) -> None:
    data = found.model_dump(mode="json")
    lines = [f"Instar is ready at {found.api}"]
    if key is not None:
        data["api_key"] = key
        lines.append(f"API key (shown this once; this machine's commands use it): {key}")
    for item in found.services:
        if item.state != "running":
            trouble = (item.state.replace("_", " "), item.last_error)
            lines.append(f"{item.name}: {', '.join(filter(None, trouble))}")
    emit(data, as_json, "\n".join(lines))


def down(json: Json = False) -> None:
    """Stop the service on this machine."""
    from instar.embedded.detach import stop_running
    from instar.settings import load_settings

    stopped = stop_running(load_settings())
    emit({"stopped": stopped}, json, "stopped" if stopped else "it was not running")


def status(json: Json = False) -> None:
    """Show what runs; exit code 0 when it is all healthy."""
    from instar.embedded.detach import read_running
    from instar.settings import load_settings

    settings = load_settings()
    found = read_running(settings)
    if found is None:
        words = f"Instar does not run in {settings.data_dir}. Start it with: instar up"
        emit({"state": "stopped", "services": []}, json, words)
        raise typer.Exit(3)
    rows = [item.model_dump(mode="json") for item in found.services]
    columns = ("name", "state", "pid", "address", "restarts", "last_error")
    words = f"{found.state}: {found.api} (supervisor pid {found.pid})\n" + table(rows, columns)
    emit(found.model_dump(mode="json"), json, words)
    if found.state != "ready":
        raise typer.Exit(4)
