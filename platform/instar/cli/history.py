"""Commands of history: lineage, behaviour, timelines, merges, conflicts, undoing a run."""

from __future__ import annotations

import json as _json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.output import Json, check_id, emit, in_words, table
from instar_core.errors import UserError

__all__ = [
    "behaviour_words",
    "conflict_words",
    "lineage_words",
    "register",
    "restore_words",
    "show_behaviour",
]

_Kind = Annotated[str, typer.Argument(help="Kind of artifact, such as agent.")]
_Name = Annotated[str, typer.Argument(help="Its name.")]
_Content = Annotated[
    Path | None, typer.Option("--file", help="File with the merged content, as JSON or text.")
]
_Why = Annotated[str, typer.Option(help="Reason, kept with the version.")]
_MOST_LINES = 40


def register(artifact: typer.Typer, evolve: typer.Typer) -> None:
    """Adds the commands to ``instar artifact`` and ``instar evolve``."""
    artifact.command(name="lineage")(lineage)
    artifact.command(name="timeline")(timeline)
    artifact.command(name="merge")(merge)
    artifact.command(name="conflicts")(conflicts)
    artifact.command(name="settle")(settle)
    evolve.command(name="undo")(undo)


def lineage(  # noqa: PLR0913 - one option per bound of the walk
    kind: _Kind,
    name: _Name,
    version: Annotated[str, typer.Option(help="Version number or label.")] = "latest",
    direction: Annotated[str, typer.Option(help="ancestors, descendants or both.")] = "both",
    depth: Annotated[int | None, typer.Option(min=0, help="Most edges from the start.")] = None,
    parts: Annotated[bool, typer.Option("--parts", help="An agent's components too.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Most versions.")] = 500,
    json: Json = False,
) -> None:
    """Show what a version came from and what came from it, with scores and costs."""
    found = Client().get(
        path_of("artifacts", kind, name, "lineage"),
        version=version,
        direction=direction,
        depth=depth,
        parts=parts,
        limit=limit,
    )
    emit(found, json, lineage_words(found))


def lineage_words(found: Mapping[str, Any]) -> str:
    """A lineage as a table, nearest first, each version with those it came from."""
    named = {one["id"]: f"{one['name']} {one['number']}" for one in found["nodes"]}
    came: dict[str, list[str]] = {}
    for edge in found["edges"]:
        if edge["kind"] != "component" and edge["parent"] in named:
            came.setdefault(edge["child"], []).append(named[edge["parent"]])
    rows = [
        {
            "version": named[one["id"]],
            "kind": one["kind"],
            "origin": one["origin"],
            "from": ", ".join(dict.fromkeys(came.get(one["id"], []))) or "-",
            "by": f"{one['author_kind']}:{one['author']}",
            "score": _score(one["score"]),
            "cost_usd": one["cost_usd"],
            "at": one["created_at"],
        }
        for one in found["nodes"]
    ]
    words = table(rows, ("version", "kind", "origin", "from", "by", "score", "cost_usd", "at"))
    if found["truncated"]:
        words += "\n(there is more: raise --limit or --depth)"
    return words


def _score(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "-"
    bounds = f"{score['lower']:.2f} to {score['upper']:.2f}"
    return f"{score['mean']:.3f} ({bounds}, {score['tasks']} {score['split']} tasks)"


def show_behaviour(kind: str, name: str, old: str, new: str, json: bool) -> None:
    """Prints which tasks come out differently under two versions of an agent."""
    path = path_of("artifacts", kind, name, "versions", old, "diff", new, "behaviour")
    found = Client().get(path)
    emit(found, json, behaviour_words(found))


def behaviour_words(found: Mapping[str, Any]) -> str:
    """A comparison in words: the counts, the mean difference, the tasks that changed."""
    if not found["shared"]:
        return "No task was measured under both versions, so their behaviour cannot be compared."
    counts = f"{found['worsened']} worsened, {found['improved']} improved beyond noise"
    rest = f"{found['unchanged']} could be noise, each by itself"
    lines = [f"{found['shared']} tasks under both versions: {counts}, {rest}."]
    if found["lower"] is not None:
        lines.append(
            f"Mean difference {found['difference']:+.3f} "
            f"({found['lower']:+.3f} to {found['upper']:+.3f})."
        )
    shown = [one for one in found["tasks"] if one["difference"]][:_MOST_LINES]
    rows = [
        {
            "task": one["task_id"],
            "change": "within noise" if one["change"] == "unchanged" else one["change"],
            "old": f"{one['old_mean']:.2f} (n={one['old_n']})",
            "new": f"{one['new_mean']:.2f} (n={one['new_n']})",
            "difference": f"{one['difference']:+.2f}",
            "p": f"{one['p_value']:.3g}",
        }
        for one in shown
    ]
    if rows:
        lines.append(table(rows, ("task", "change", "old", "new", "difference", "p")))
    alone = f"{found['only_old']} only under the old, {found['only_new']} only under the new."
    return "\n".join([*lines, f"Other tasks: {alone}", found["method"]])


def timeline(  # noqa: PLR0913 - one option per time
    kind: _Kind,
    name: _Name,
    label: Annotated[str, typer.Argument(help="The label.")] = "production",
    at: Annotated[str, typer.Option(help="What did it name then? ISO 8601 with zone.")] = "",
    since: Annotated[str, typer.Option(help="Changes after this time.")] = "",
    until: Annotated[str, typer.Option(help="Changes up to this time.")] = "",
    json: Json = False,
) -> None:
    """Show what a label named when, and who changed it, why, on what evidence."""
    found = Client().get(
        path_of("artifacts", kind, name, "labels", label, "timeline"),
        at=at or None,
        since=since or None,
        until=until or None,
    )
    lines = []
    if found["at"] is not None:
        held = found["in_force"]
        named = "nothing" if held is None or held["after"] is None else f"version {held['after']}"
        lines.append(f"{in_words(found['at'])}: {label} named {named}.")
    rows = [
        {
            "at": one["at"],
            "from": one["before"],
            "to": one["after"],
            "by": f"{one['actor_kind']}:{one['actor']}",
            "cause": one["cause"] or "-",
            "reason": (one["version"] or {}).get("reason") or "-",
        }
        for one in found["changes"]
    ]
    lines.append(table(rows, ("at", "from", "to", "by", "cause", "reason")))
    emit(found, json, "\n".join(lines))


def merge(  # noqa: PLR0913 - one option per choice
    kind: _Kind,
    name: _Name,
    ours: Annotated[str, typer.Argument(help="Version number or label.")],
    theirs: Annotated[str, typer.Argument(help="The other version.")],
    other: Annotated[str, typer.Option(help="Artifact of the other version, if another.")] = "",
    prefer: Annotated[str, typer.Option(help="Side that wins: ours or theirs.")] = "none",
    file: _Content = None,
    save: Annotated[bool, typer.Option("--save", help="Save it; else it is only shown.")] = False,
    why: _Why = "",
    json: Json = False,
) -> None:
    """Show the merge of two versions and what it drops of each; --save keeps it."""
    body: dict[str, Any] = {
        "ours": ours,
        "theirs": theirs,
        "other": other,
        "prefer": prefer,
        "reason": why,
        "dry_run": not save,
    }
    if file is not None:
        body["content"] = _read_content(file)
    found = Client().post(path_of("artifacts", kind, name, "merge"), body)
    emit(found, json, _merge_words(found))


def _merge_words(found: Mapping[str, Any]) -> str:
    lines = []
    if found["clean"]:
        saved = found["version"]
        lines.append("The two fit together." if saved is None else f"Saved as version {saved}.")
    else:
        lines.append(f"{len(found['conflicts'])} conflicts; nothing was saved:")
        lines += _conflict_lines(found["conflicts"])
    for side in ("ours", "theirs"):
        lost = found[f"dropped_of_{side}"]
        if lost:
            lines.append(f"Dropped of {side} (version {found[side]}):")
            lines += [f"  {one['path'] or '-'}: {_short(one['content'])}" for one in lost]
    return "\n".join(lines)


_SIDES = ("base", "ours", "theirs")


def _conflict_lines(
    conflicts: list[Mapping[str, Any]], called: tuple[str, str, str] = _SIDES
) -> list[str]:
    lines = []
    for one in conflicts[:_MOST_LINES]:
        where = one["path"] or "text"
        if one["line"] is not None:
            where += f", line {one['line']}"
        lines.append(f"  {where} ({one['what']})")
        sides = zip(_SIDES, called, strict=True)
        lines += [f"    {words}: {_short(one[side])}" for side, words in sides]
        if one["note"]:
            lines.append(f"    {one['note']}")
    return lines


def conflicts(
    kind: Annotated[str, typer.Argument(help="Only of this artifact: its kind.")] = "",
    name: Annotated[str, typer.Argument(help="Its name.")] = "",
    settled: Annotated[bool, typer.Option("--settled", help="Settled ones too.")] = False,
    json: Json = False,
) -> None:
    """List learned changes that do not fit a person's newer version, and where."""
    if bool(kind) != bool(name):
        raise UserError("name both the kind and the artifact, or neither.")
    path = path_of("artifacts", kind, name, "conflicts") if kind else path_of("artifact-conflicts")
    rows = list(Client().pages(path, settled=settled))
    emit(rows, json, "\n".join(map(conflict_words, rows)) or "(none)")


def conflict_words(one: Mapping[str, Any]) -> str:
    """A conflict in words: which versions, where, what each has, and how to settle it."""
    learned, own = f"learned, version {one['overlay']}", f"a person's, version {one['base']}"
    lines = [
        f"{one['id']}  {one['kind']} {one['name']}: the learned version {one['overlay']} does "
        f"not fit version {one['base']} ({one['resolution'] or 'open'})",
        *_conflict_lines(one["conflicts"], ("before both", learned, own)),
    ]
    if not one["resolution"]:
        settle = f"instar artifact settle {one['kind']} {one['name']} {one['id']}"
        lines.append(
            f"  Settle it: {settle} --prefer learned (version {one['overlay']} wins) or --prefer "
            f"base (version {one['base']} wins), --file FILE (a content of yours) or --dismiss"
        )
    return "\n".join(lines)


def settle(  # noqa: PLR0913 - one option per way
    kind: _Kind,
    name: _Name,
    conflict: Annotated[str, typer.Argument(help="Id of the conflict.")],
    prefer: Annotated[str, typer.Option(help="learned, or base: the person's side.")] = "none",
    file: _Content = None,
    dismiss: Annotated[
        bool, typer.Option("--dismiss", help="Leave the learned change on its old base.")
    ] = False,
    why: _Why = "",
    json: Json = False,
) -> None:
    """Settle a conflict: with a merged content, a side that wins, or not at all (--dismiss)."""
    if prefer == "none" and file is None and not dismiss:
        raise UserError(
            "say how to settle it.",
            remedy="Give --prefer learned, --prefer base (the person's side), --file or --dismiss; "
            "`instar artifact conflicts` shows both sides.",
        )
    body: dict[str, Any] = {"prefer": prefer, "dismiss": dismiss, "reason": why}
    if file is not None:
        body["content"] = _read_content(file)
    path = path_of("artifacts", kind, name, "conflicts", conflict, "resolve")
    found = Client().post(path, body)
    made = found["resolved_version"]
    words = f"conflict {conflict}: {found['resolution']}"
    emit(found, json, words if made is None else f"{words} as version {made}")


def undo(
    run: Annotated[str, typer.Argument(help="Id of the run.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Move labels back that somebody moved on since.")
    ] = False,
    back: Annotated[bool, typer.Option("--back", help="Take the last undo back.")] = False,
    json: Json = False,
) -> None:
    """Restore the state before a run: labels, promotions, proposals and all that it made."""
    check_id(run, "run", "instar evolve status")
    body = {"dry_run": dry_run, "force": force, "undo": back}
    found = Client().post(path_of("evolution", "runs", run, "restore"), body)
    emit(found, json, restore_words(found, back=back))


def restore_words(found: Mapping[str, Any], *, back: bool = False) -> str:
    """What a restore, or taking one back, did or would do, line by line."""
    if not found["changed"]:
        head = "Nothing of the run is left to restore."
    else:
        head = "This would happen:" if found["dry_run"] else "Done:"
    lines = [head]
    ways = {
        "restored": "goes from {now} to {to}",
        "unchanged": "is at {to} already",
        "moved_since": "stays at {now}: {by} moved it since (--force moves it to {to})",
        "blocked": "stays at {now}: what it named before is archived",
    }
    for one in found["labels"]:
        numbers = {key: in_words(one[key]) for key in ("now", "to", "by")}
        lines.append(
            f"  label {one['label']} of {one['name']} {ways[one['state']].format(**numbers)}"
        )
    for what in ("promotions", "proposals"):
        lines += [
            f"  {what[:-1]} {one['id']}: {one['before']} -> {one['after']}" for one in found[what]
        ]
    states = {"already": "archived already"}
    if back:
        states = {"archived": "no longer archived", "already": "not archived"}
    for one in (*found["versions"], *found["artifacts"]):
        number = f" version {one['number']}" if one["number"] else ""
        why = f" ({one['why']})" if one["why"] else ""
        state = states.get(one["state"], one["state"])
        lines.append(f"  {one['kind']} {one['name']}{number}: {state}{why}")
    for one in found["built_on"]:
        lines.append(
            f"  {one['kind']} {one['name']} version {one['number']} ({one['origin']}) goes on "
            f"{one['on_name']} version {one['on_number']} and stays"
        )
    return "\n".join(lines)


def _read_content(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {error}.") from error
    if path.suffix != ".json":
        return text
    try:
        return _json.loads(text)
    except ValueError as error:
        raise UserError(f"{str(path)!r} is no JSON: {error}.") from error


def _short(value: Any) -> str:
    words = value if isinstance(value, str) else _json.dumps(value, ensure_ascii=False)
    words = " ".join(words.split())
    return words if len(words) <= 160 else words[:159] + "…"
