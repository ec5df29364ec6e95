"""``instar artifact``: look at versions, compare them, move labels, go back."""

from __future__ import annotations

import json as _json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.output import Json, emit, table
from instar_core.errors import NotFoundError, UserError

__all__ = ["app", "diff_words"]

app = typer.Typer(help="Artifacts: list, show, diff, label, rollback.", no_args_is_help=True)

_Kind = Annotated[str, typer.Argument(help="Kind of artifact, such as agent.")]
_Name = Annotated[str, typer.Argument(help="Its name.")]


@app.command(name="list")
def list_(
    kind: Annotated[str, typer.Option(help="Only this kind.")] = "", json: Json = False
) -> None:
    """List the artifacts of the project."""
    rows = list(Client().pages(path_of("artifacts"), kind=kind or None))
    emit(rows, json, table(rows, ("kind", "name", "last_version", "labels", "created_at")))


@app.command()
def show(
    kind: _Kind,
    name: _Name,
    version: Annotated[str, typer.Option(help="Version number or label.")] = "",
    json: Json = False,
) -> None:
    """Show an artifact, or one version of it with its content."""
    parts = ("artifacts", kind, name)
    path = path_of(*parts, "versions", version) if version else path_of(*parts)
    found = Client().get(path)
    emit(found, json, _json.dumps(found, ensure_ascii=False, indent=2))


@app.command()
def diff(
    kind: _Kind,
    name: _Name,
    old: Annotated[str, typer.Argument(help="Version to compare from.")],
    new: Annotated[str, typer.Argument(help="Version to compare to.")],
    json: Json = False,
) -> None:
    """Show what changed between two versions."""
    found = Client().get(path_of("artifacts", kind, name, "versions", old, "diff", new))
    emit(found, json, diff_words(found))


def diff_words(found: Mapping[str, Any]) -> str:
    """What changed between two versions: texts word by word, structures place by place."""
    if found["equal"]:
        return "(no difference)"
    marks = {"add": "+", "remove": "-", "keep": " "}
    if found["kind"] == "text":
        return "".join(
            one["text"] if one["op"] == "keep" else f"[{marks[one['op']]}{one['text']}]"
            for one in found["text"]
        )
    lines = []
    for change in found["json_changes"]:
        lines.append(f"{change['op']} {change['path']}")
        if change["op"] != "add":
            lines.append(f"  - {_short(change['old'])}")
        if change["op"] != "remove":
            lines.append(f"  + {_short(change['new'])}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else _json.dumps(value, ensure_ascii=False)


@app.command()
def label(
    kind: _Kind,
    name: _Name,
    label: Annotated[str, typer.Argument(help="Label to move, such as staging.")],
    version: Annotated[int, typer.Argument(min=1, help="Version it shall name.")],
    json: Json = False,
) -> None:
    """Move a label to a version."""
    path = path_of("artifacts", kind, name, "labels", label)
    found = Client().put(path, {"version": version})
    emit(found, json, f"{kind} {name}: {label} names version {version}")


@app.command()
def rollback(
    kind: _Kind,
    name: _Name,
    label: Annotated[str, typer.Option(help="Label that goes back.")] = "production",
    why: Annotated[str, typer.Option(help="Reason, kept with the promotion.")] = "",
    json: Json = False,
) -> None:
    """Undo the newest promotion of an agent: its label goes back."""
    if kind != "agent":
        raise UserError(
            f"only agents are promoted; {kind!r} is none.",
            remedy="Move the label yourself: instar artifact label KIND NAME LABEL VERSION.",
        )
    client = Client()
    for promotion in client.pages(path_of("promotions")):
        ours = promotion["agent"] == name and promotion["label"] == label
        if ours and promotion["state"] != "rolled_back":
            path = path_of("promotions", promotion["id"], "rollback")
            found = client.post(path, {"reason": why})
            words = f"agent {name}: {label} names version {found['from_version']} again"
            emit(found, json, words)
            return
    raise NotFoundError(f"no promotion of agent {name!r} under the label {label!r} is in force.")
