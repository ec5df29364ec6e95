"""``instar mcp``: the tool servers that agents may use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.files import read_json
from instar.cli.output import Json, emit, in_words, say, table

__all__ = ["app"]

app = typer.Typer(help="Tool servers: list, show, set, remove.", no_args_is_help=True)
_Name = Annotated[str, typer.Argument(help="Name of the tool server.")]


@app.command(name="list")
def list_(json: Json = False) -> None:
    """List the tool servers of the project; values of their environment are never shown."""
    rows = Client().get(path_of("mcp-servers"))
    emit(rows, json, table([_row(one) for one in rows], _COLUMNS))


@app.command()
def show(name: _Name, json: Json = False) -> None:
    """Show one tool server, without the values of its environment."""
    found = Client().get(path_of("mcp-servers", name))
    lines = [f"{key.replace('_', ' ')}: {in_words(value)}" for key, value in found.items()]
    emit(found, json, "\n".join(lines))


@app.command(name="set")
def set_(
    name: _Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON file: command, args, env …")],
    json: Json = False,
) -> None:
    """Register a tool server or replace its registration; nothing is started."""
    client, path = Client(), path_of("mcp-servers", name)
    found = client.put(path, {"name": name, **read_json(file)}, match=client.etag(path))
    for one in found["moved"]:
        say(f"note: {one['place']} looks like a secret and is kept as {one['name']} now")
    for notice in found["notices"]:
        say(f"note: {notice}")
    emit(found, json, f"tool server {name} is registered; it starts when an agent needs it")


@app.command()
def remove(name: _Name, json: Json = False) -> None:
    """Take a tool server out of use."""
    Client().delete(path_of("mcp-servers", name))
    emit({"removed": name}, json, f"tool server {name} is out of use")


_COLUMNS = ("name", "kind", "runs", "secrets", "test_bindings", "effect_free")


def _row(server: dict[str, Any]) -> dict[str, Any]:
    runs = [server["command"], *server["args"]] if server["command"] else server["functions"]
    return {
        **server,
        "runs": " ".join(runs),
        "secrets": len(server["secret_ids"]),
    }
