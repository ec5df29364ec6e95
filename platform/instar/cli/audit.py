"""``instar audit``: who did what, and whether the record of it can be trusted."""

from __future__ import annotations

import re
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from instar.cli.client import Client, path_of
from instar.cli.files import read_text
from instar.cli.output import Json, emit, in_words, table

__all__ = ["app"]

app = typer.Typer(help="The audit trail: list, verify, seal.", no_args_is_help=True)
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,}\b")
_WIDEST = 120
_SENT = 1_000
"""How many checkpoints of a given copy are sent; each vouches for all before it."""

Checkpoints = Annotated[
    Path | None, typer.Option("--checkpoints", help="A copy of the checkpoints kept elsewhere.")
]
PublicKeys = Annotated[
    list[Path] | None, typer.Option("--public-key", help="File with the one public key to trust.")
]
Project = Annotated[
    str | None,
    typer.Option(
        "--project",
        help="Verify this project straight from the database, without the service; on the server.",
    ),
]


@app.command(name="list")
def list_(
    stream: Annotated[str, typer.Option(help="Only this stream ('admin', or a run).")] = "",
    action: Annotated[str, typer.Option(help="Only this action.")] = "",
    actor: Annotated[str, typer.Option(help="Only what this one did.")] = "",
    subject: Annotated[str, typer.Option(help="Only what was done to this.")] = "",
    since: Annotated[str | None, typer.Option(help="Not before this moment (ISO 8601).")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Newest events shown.")] = 50,
    json: Json = False,
) -> None:
    """List audit events, newest first."""
    found = Client().pages(
        path_of("audit"),
        stream=stream,
        action=action,
        actor=actor,
        subject=subject,
        since=since,
        limit=min(limit, 200),
    )
    rows = list(islice(found, limit))
    columns = ("at", "stream", "seq", "actor", "action", "subject", "details")
    emit(rows, json, table([{**row, "details": _brief(row["details"])} for row in rows], columns))


@app.command()
def verify(
    checkpoints: Checkpoints = None,
    public_key: PublicKeys = None,
    project: Project = None,
    json: Json = False,
) -> None:
    """Verify the audit trail; exit code 1 and the first bad row when it does not hold."""
    keys = [read_text(path) for path in public_key or ()]
    given = _last_lines(checkpoints) if checkpoints is not None else []
    if project is not None:
        report = _verify_directly(project, keys, given)
    elif keys or given:
        body = {"public_keys": keys, "checkpoints": given}
        report = Client().post(path_of("audit", "verify"), body)
    else:
        report = Client().get(path_of("audit", "verify"))
    emit(report, json, _words(report))
    if not report["ok"]:
        raise typer.Exit(1)


@app.command()
def checkpoint(json: Json = False) -> None:
    """Seal the chain now rather than at the next minute."""
    made = Client().post(path_of("audit", "checkpoints"))
    rows = made["checkpoints"]
    words = table(rows, ("seq", "at", "rows", "streams", "hash")) if rows else "nothing is new"
    emit(made, json, words)


@app.command()
def key(
    rotate: Annotated[
        bool, typer.Option("--rotate", help="First replace the key by a new one.")
    ] = False,
    json: Json = False,
) -> None:
    """Print the public key that verifies checkpoints; keep it away from this machine."""
    client = Client()
    path = path_of("audit", "key")
    found = client.post(f"{path}/rotate") if rotate else client.get(path)
    emit(found, json, f"{found['public_key'].strip()}\nfingerprint: {found['key_id']}")


@app.command(name="accept-restore")
def accept_restore(
    reason: Annotated[str, typer.Option(help="Why the database was set back.")],
    json: Json = False,
) -> None:
    """Say that a restored backup was meant, and begin a new copy of the checkpoints."""
    found = Client().post(path_of("audit", "accept-restore"), {"reason": reason})
    words = (
        f"accepted; the old copy is kept as {found['set_aside']}"
        if found["accepted"]
        else "there was nothing to accept: the copy is not ahead of the database"
    )
    emit(found, json, words)


def _brief(details: Any) -> str:
    """The details in a line that a terminal holds: long hashes are cut; --json has them whole."""
    words = _HASH.sub(r"\1…", in_words(details))
    return words if len(words) <= _WIDEST else f"{words[: _WIDEST - 1]}…"


def _last_lines(path: Path) -> list[Any]:
    """The last checkpoints of a copy, as JSON."""
    from instar.audit.outside import parse_lines
    from instar_core.errors import UserError

    try:
        with path.open("rb") as stream:
            found = list(deque(parse_lines(stream), maxlen=_SENT))
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
    if not found:
        raise UserError(
            f"{str(path)!r} holds no checkpoint.",
            remedy="Name a copy of a file <project>.jsonl from the folder 'audit'.",
        )
    return [one.model_dump(mode="json") for one in found]


def _verify_directly(project: str, keys: list[str], given: list[Any]) -> dict[str, Any]:
    """The report, made in this process over the service's own role; it need not run meanwhile."""
    import asyncio
    from contextlib import nullcontext

    from instar.audit.checkpoint import Checkpoint
    from instar.audit.verify import Evidence, verify_project
    from instar.backup.place import layout_of, owner_database
    from instar.settings import load_settings
    from instar.store.session import Database
    from instar.store.system import find_project
    from instar.store.urls import app_url
    from instar_core.errors import NotFoundError

    settings = load_settings()
    named = settings.app_database_url
    evidence = Evidence.of(
        settings, public_keys=keys, given=[Checkpoint.model_validate(one) for one in given]
    )

    async def work(url: str) -> dict[str, Any]:
        db = Database(url, pool_size=1)
        try:
            async with db.system() as session:
                found = await find_project(session, project)
            if found is None:
                raise NotFoundError(
                    f"there is no project named {project!r}.", remedy="See `instar project list`."
                )
            return (await verify_project(db, found, evidence)).model_dump(mode="json")
        finally:
            await db.close()

    # As with `db check`, an embedded database that is down is started for this alone.
    with nullcontext(named) if named else owner_database(settings) as reached:
        url = named or app_url(str(reached), layout_of(settings).read_secrets().app_password)
        return asyncio.run(work(url))


def _words(report: dict[str, Any]) -> str:
    counted = (
        f"{report['rows']} rows in {report['streams']} streams, {report['checkpoints']} "
        f"checkpoints, {report['unsealed']} rows not sealed yet"
    )
    lines = [f"the audit trail holds: {counted}"]
    if not report["ok"]:
        bad = report["bad"]
        where = f"{bad['stream']} row {bad['seq']}" + (f" ({bad['id']})" if bad["id"] else "")
        lines = [f"THE AUDIT TRAIL DOES NOT HOLD: {counted}", f"first: {where}: {bad['what']}"]
        lines += [f"also:  {one['stream']}: {one['what']}" for one in report["more"]]
    return "\n".join(lines + list(report["notes"]))
