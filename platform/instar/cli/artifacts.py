"""``instar artifact``: everything that can be done with a versioned thing, whatever its kind."""

from __future__ import annotations

import json as _json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.history import show_behaviour
from instar.cli.output import Json, emit, in_words, say, table
from instar_core.errors import UserError

__all__ = ["app", "diff_words"]

app = typer.Typer(
    help="Artifacts: make, version, compare, label, move and trace them, whatever their kind.",
    no_args_is_help=True,
)

Kind = Annotated[str, typer.Argument(help="Kind of artifact, such as prompt or agent.")]
Name = Annotated[str, typer.Argument(help="Its name.")]
Why = Annotated[str, typer.Option(help="Reason, kept with the change.")]
From = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="File with the content: .json is JSON, a folder holds the kind's open format, "
        "anything else is text; '-' reads standard input.",
    ),
]


@app.command(name="list")
def list_(  # noqa: PLR0913 - one option per filter
    kind: Annotated[str, typer.Option(help="Only this kind.")] = "",
    q: Annotated[str, typer.Option("--q", help="Only those with all these words.")] = "",
    tag: Annotated[str, typer.Option(help="Only those with this tag.")] = "",
    label: Annotated[str, typer.Option(help="Only those with this label.")] = "",
    archived: Annotated[bool, typer.Option("--archived", help="Archived ones instead.")] = False,
    json: Json = False,
) -> None:
    """List the artifacts of the project, newest first."""
    query = {"kind": kind, "q": q, "tag": tag, "label": label}
    given = {name: value for name, value in query.items() if value}
    rows = list(Client().pages(path_of("artifacts"), **given, archived=archived or None))
    emit(rows, json, table(rows, ("kind", "name", "last_version", "labels", "created_at")))


@app.command()
def kinds(json: Json = False) -> None:
    """List the kinds there are, with an example of each (--json)."""
    rows = Client().get(path_of("kinds"))
    emit(rows, json, table(rows, ("name", "title", "form", "max_bytes")))


@app.command()
def show(
    kind: Kind,
    name: Name,
    version: Annotated[str, typer.Option(help="Version number or label.")] = "",
    json: Json = False,
) -> None:
    """Show an artifact, or one version of it; its content alone goes to standard output."""
    parts = ("artifacts", kind, name)
    path = path_of(*parts, "versions", version) if version else path_of(*parts)
    found = Client().get(path)
    if version and not json:
        # `show … --version 2 > FILE` writes what `save … FILE` takes back.
        say(_version_words(found, kind, name))
    emit(found, json, _content_words(found["content"]) if version else _artifact_words(found))


@app.command()
def versions(kind: Kind, name: Name, json: Json = False) -> None:
    """List the versions of an artifact, newest first, with who made them and why."""
    client, path = Client(), path_of("artifacts", kind, name)
    labels: dict[int, list[str]] = {}
    for label, number in client.get(path)["labels"].items():
        labels.setdefault(number, []).append(label)
    rows = list(client.pages(path_of("artifacts", kind, name, "versions")))
    shown = [
        {
            "version": one["number"],
            "labels": ", ".join(labels.get(one["number"], ())),
            "origin": one["origin"],
            "by": f"{one['author_kind']}:{one['author']}",
            "at": one["created_at"],
            "digest": one["digest"][:12],
            "reason": one["reason"],
        }
        for one in rows
    ]
    columns = ("version", "labels", "origin", "by", "at", "digest", "reason")
    emit(rows, json, table(shown, columns))


@app.command()
def create(  # noqa: PLR0913 - what belongs to a new artifact
    kind: Kind,
    name: Name,
    file: From,
    description: Annotated[str, typer.Option(help="What it is for, in a sentence.")] = "",
    why: Why = "",
    allow_similar: Annotated[
        bool, typer.Option("--allow-similar", help="Keep it although it resembles another.")
    ] = False,
    json: Json = False,
) -> None:
    """Make a new artifact from a file or a folder."""
    body = {
        "kind": kind,
        "name": name,
        "content": _content_of(kind, file),
        "description": description,
        "reason": why,
        "allow_similar": allow_similar,
    }
    _tell_saved(Client().post(path_of("artifacts"), body), kind, name, json)


@app.command()
def save(kind: Kind, name: Name, file: From, why: Why = "", json: Json = False) -> None:
    """Save a file or a folder as the next version of an artifact that exists."""
    client, path = Client(), path_of("artifacts", kind, name)
    body = {"content": _content_of(kind, file), "reason": why}
    match = client.etag(path)
    if match is None:
        client.get(path)  # tells what is missing, with the nearest names
    _tell_saved(client.put(path, body, match=match), kind, name, json)


@app.command()
def describe(
    kind: Kind,
    name: Name,
    description: Annotated[str | None, typer.Option(help="New description.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="New tags, one option each.")] = None,
    job_access: Annotated[
        str | None, typer.Option(help="What jobs may do with it: none or overlay.")
    ] = None,
    json: Json = False,
) -> None:
    """Edit description, tags or what jobs may do; no new version is made."""
    body = {"description": description, "tags": tag, "job_access": job_access}
    given = {field: value for field, value in body.items() if value is not None}
    if not given:
        raise UserError("nothing to edit.", remedy="Give --description, --tag or --job-access.")
    client, path = Client(), path_of("artifacts", kind, name)
    found = client.patch(path, given, match=client.etag(path))
    emit(found, json, f"{kind} {name}: {', '.join(given)} changed")


@app.command()
def diff(
    kind: Kind,
    name: Name,
    old: Annotated[str, typer.Argument(help="Version to compare from.")],
    new: Annotated[str, typer.Argument(help="Version to compare to.")],
    behaviour: Annotated[
        bool, typer.Option("--behaviour", help="Which tasks an agent does differently.")
    ] = False,
    json: Json = False,
) -> None:
    """Show what changed between two versions, or (--behaviour) in what they do."""
    if behaviour:
        show_behaviour(kind, name, old, new, json)
        return
    found = Client().get(path_of("artifacts", kind, name, "versions", old, "diff", new))
    emit(found, json, diff_words(found))


@app.command()
def label(  # noqa: PLR0913 - the place, the version and the reason
    kind: Kind,
    name: Name,
    label: Annotated[str, typer.Argument(help="Label to move, such as staging.")],
    version: Annotated[int, typer.Argument(min=1, help="Version it shall name.")],
    why: Why = "",
    json: Json = False,
) -> None:
    """Move a label to a version, if nobody moves it at the same time."""
    client, path = Client(), path_of("artifacts", kind, name, "labels", label)
    found = client.put(path, {"version": version, "cause": why}, match=client.etag(path))
    emit(found, json, f"{kind} {name}: {label} names version {version}")


@app.command()
def protect(
    kind: Kind,
    name: Name,
    label: Annotated[str, typer.Argument(help="Label to protect.")],
    role: Annotated[str, typer.Argument(help="Least role that may move it.")] = "admin",
    json: Json = False,
) -> None:
    """Say which role may move a label: operator (anybody who writes), approver or admin."""
    client, path = Client(), path_of("artifacts", kind, name, "labels", label)
    found = client.patch(path, {"move_role": role}, match=client.etag(path))
    emit(found, json, f"{kind} {name}: {label} is moved by {role}s and above")


@app.command()
def rollback(
    kind: Kind,
    name: Name,
    label: Annotated[str, typer.Option(help="Label that goes back.")] = "production",
    why: Why = "",
    json: Json = False,
) -> None:
    """Move a label back; of an agent, undo the newest promotion under that label."""
    client = Client()
    found = _undo_promotion(client, name, label, why) if kind == "agent" else None
    if found is None:
        body = {"label": label, "reason": why}
        found = client.post(path_of("artifacts", kind, name, "rollback"), body)
    number = found.get("from_version", found.get("version"))
    emit(found, json, f"{kind} {name}: {label} names version {number} again")


@app.command()
def history(
    kind: Kind,
    name: Name,
    label: Annotated[str, typer.Argument(help="Label whose moves are shown.")] = "production",
    json: Json = False,
) -> None:
    """List the moves of a label, oldest first, with who moved it and why."""
    rows = Client().get(path_of("artifacts", kind, name, "labels", label, "history"))
    emit(rows, json, table(rows, ("at", "before", "after", "by", "cause")))


@app.command()
def archive(
    kind: Kind,
    name: Name,
    version: Annotated[int | None, typer.Option(min=1, help="Only this version.")] = None,
    all_versions: Annotated[bool, typer.Option("--all", help="Every version of it.")] = False,
    json: Json = False,
) -> None:
    """Archive one version (--version N) or all of it (--all); nothing is lost."""
    if (version is not None) == all_versions:
        raise UserError("say what to archive.", remedy="Give --version N, or --all.")
    client, path = Client(), ("artifacts", kind, name)
    if version is not None:
        client.delete(path_of(*path, "versions", str(version)))
        done = {"kind": kind, "name": name, "version": version, "archived": True}
        emit(done, json, f"{kind} {name}: version {version} is archived")
        return
    found = client.delete(path_of(*path), versions="all")
    emit(found, json, f"{kind} {name} is archived, {found['count']} version(s)")


@app.command()
def restore(
    kind: Kind,
    name: Name,
    version: Annotated[int | None, typer.Option(min=1, help="Only this version.")] = None,
    json: Json = False,
) -> None:
    """Bring back an archived artifact, or one archived version of it."""
    body = {"version": version}
    found = Client().post(path_of("artifacts", kind, name, "restore"), body)
    what = f"version {version} of {kind} {name}" if version else f"{kind} {name}"
    emit(found, json, f"{what} is back")


@app.command()
def copy(  # noqa: PLR0913 - the place, the new name and what is copied
    kind: Kind,
    name: Name,
    to: Annotated[str, typer.Argument(help="Name of the copy.")],
    version: Annotated[str, typer.Option(help="Version number or label.")] = "latest",
    why: Why = "",
    json: Json = False,
) -> None:
    """Copy a version into a new artifact of the same kind."""
    body = {"to": to, "version": version, "reason": why}
    found = Client().post(path_of("artifacts", kind, name, "copy"), body)
    emit(found, json, f"{kind} {to}: version {found['number']}, copied from {name} {version}")


@app.command()
def contract(
    kind: Annotated[str, typer.Argument(help="Only this kind; 'agent' with a name.")] = "",
    name: Annotated[str, typer.Argument(help="An agent: what this one has.")] = "",
    version: Annotated[str, typer.Option(help="Version number or label of the agent.")] = "",
    budget: Annotated[int, typer.Option(min=0, help="Most tokens.")] = 2_000,
    json: Json = False,
) -> None:
    """Print the text in which an agent sees what it has, or what the project has of a kind."""
    if name and kind != "agent":
        raise UserError("only agents have a contract of their own.", remedy="Leave the name out.")
    query: dict[str, Any] = {"budget_tokens": budget}
    if name:
        path = path_of("artifacts", "agent", name, "contract")
        query["version"] = version or None
    else:
        path, query["kind"] = path_of("contract"), kind or None
    found = Client().get(path, **query)
    emit(found, json, found["text"] or "(nothing)")


@app.command()
def components(
    kind: Kind,
    name: Name,
    version: Annotated[str, typer.Option(help="Version number or label.")] = "latest",
    json: Json = False,
) -> None:
    """List the parts that evolution may change, with owners and size budgets."""
    path = path_of("artifacts", kind, name, "components")
    rows = Client().get(path, version=version)
    emit(rows, json, table(rows, ("name", "kind", "owner", "trainable", "tokens", "budget_tokens")))


def _artifact_words(found: Mapping[str, Any]) -> str:
    nights = "may lay what they learn on it" if found["job_access"] == "overlay" else "only read it"
    rows = {
        "versions": found["last_version"],
        "labels": found["labels"],
        "description": found["description"],
        "tags": ", ".join(found["tags"]),
        "nights": nights,
        "made": found["created_at"],
        "id": found["id"],
    }
    lines = [f"{name}: {in_words(value)}" for name, value in rows.items()]
    return "\n".join([f"{found['kind']} {found['name']}", *lines])


def _version_words(found: Mapping[str, Any], kind: str, name: str) -> str:
    lines = [
        f"{kind} {name}: version {found['number']} ({found['digest'][:12]}), {found['origin']} "
        f"of {in_words(found['created_at'])} by {found['author_kind']}:{found['author']}",
        f"id: {found['id']}",
    ]
    if found["reason"]:
        lines.append(f"reason: {found['reason']}")
    return "\n".join([*lines, *(f"note: {one}" for one in found["notices"])])


def _content_words(content: Any) -> str:
    """The content as a file has it; a text's own last line break is the one that ends the print."""
    if isinstance(content, str):
        return content.removesuffix("\n")
    return _json.dumps(content, ensure_ascii=False, indent=2)


def diff_words(found: Mapping[str, Any]) -> str:
    """What changed between two versions: texts word by word, structures place by place."""
    if found["equal"]:
        return "(no difference)"
    lines = []
    for change in found.get("json_changes", ()):
        lines += _change_lines(change)
    for change in found.get("files", ()):
        was = f" (was {change['old_path']})" if change["old_path"] else ""
        size = f" {change['old_size']} -> {change['new_size']} bytes" if change["binary"] else ""
        lines.append(f"{change['op']} {change['path']}{was}{size}")
        lines += [line for place in change["json_changes"] for line in _change_lines(place)]
        if change["text"]:
            lines.append(_marked(change["text"]))
    if found["text"]:
        lines.append(_marked(found["text"]))
    return "\n".join(lines)


def _change_lines(change: Mapping[str, Any]) -> list[str]:
    lines = [f"{change['op']} {change['path']}"]
    if change["op"] != "add":
        lines.append(f"  - {_short(change['old'])}")
    if change["op"] != "remove":
        lines.append(f"  + {_short(change['new'])}")
    return lines


def _marked(words: list[Mapping[str, Any]]) -> str:
    marks = {"add": "+", "remove": "-"}
    return "".join(
        one["text"] if one["op"] == "keep" else f"[{marks[one['op']]}{one['text']}]"
        for one in words
    )


def _short(value: Any) -> str:
    return value if isinstance(value, str) else _json.dumps(value, ensure_ascii=False)


def _undo_promotion(client: Client, agent: str, label: str, why: str) -> Any:
    """Rolls back the newest promotion in force of an agent under a label; None where none is."""
    for promotion in client.pages(path_of("promotions")):
        ours = promotion["agent"] == agent and promotion["label"] == label
        if ours and promotion["state"] != "rolled_back":
            path = path_of("promotions", promotion["id"], "rollback")
            return client.post(path, {"reason": why})
    return None


def _content_of(kind: str, file: Path) -> Any:
    """The content in a file, in a folder of the kind's open format, or on standard input."""
    from instar.cli.files import read_content_file

    return read_content_file(kind, file)


def _tell_saved(found: Mapping[str, Any], kind: str, name: str, json: bool) -> None:
    for notice in found.get("notices", ()):
        say(f"note: {notice}")
    emit(found, json, f"{kind} {name}: version {found['number']} ({found['digest'][:12]})")
