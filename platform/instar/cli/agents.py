"""``instar agent``: list, create and run agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.files import read_json
from instar.cli.output import Json, emit, table

__all__ = ["app"]

app = typer.Typer(help="Agents: list, create, run.", no_args_is_help=True)


@app.command(name="list")
def list_(json: Json = False) -> None:
    """List the agents of the project."""
    rows = list(Client().pages(path_of("agents")))
    emit(rows, json, table(rows, ("name", "last_version", "labels", "created_at")))


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the agent.")],
    file: Annotated[Path, typer.Option("--file", help="JSON file: components and harness.")],
    label: Annotated[str, typer.Option(help="Label to point to the new version.")] = "",
    json: Json = False,
) -> None:
    """Save an agent, or a new version of one, from a file."""
    body = {**read_json(file), "name": name}
    if label:
        body["label"] = label
    found = Client().post(path_of("agents"), body)
    emit(found, json, f"agent {name} has version {found.get('version')}")


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="Agent, or agent@label, or agent@version.")],
    text: Annotated[str, typer.Argument(help="What to ask it.")],
    json: Json = False,
) -> None:
    """Run an agent once and print its answer."""
    agent, _, ref = name.partition("@")
    body: dict[str, Any] = {"input": text}
    if ref:
        body["version"] = ref
    found = Client().post(path_of("agents", agent, "runs"), body)
    emit(found, json, _run_words(found))


def _run_words(run: dict[str, Any]) -> str:
    lines = []
    for step in run["steps"]:
        for call in step["message"].get("tool_calls") or ():
            lines.append(f"calls {call['name']} {call['arguments']}")
    lines.append(run["answer"] or run["error"] or "(no text)")
    ending = run["stop"] or run["state"]
    lines.append(f"[{run['agent']} version {run['version']}, run {run['id']}: {ending}]")
    return "\n".join(lines)
