"""Audit: who did what, as one hash chain per stream that the application can only append to.

An event's link is the sha256 of the link before, its number, its id, its moment and the hash of
what happened, so that no event can be changed, taken out, put in or moved without every later link
being computed anew; what makes that visible too are the signed checkpoints (:mod:`instar.audit`).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.redaction import redact
from instar.store.pages import MAX_PAGE, Page
from instar.store.tables import AuditEventRow
from instar_core.base import Frozen, JsonValue, content_hash, new_id, short
from instar_core.errors import UserError

__all__ = [
    "ADMIN",
    "SYSTEM",
    "AuditEntry",
    "AuditFilter",
    "AuditLine",
    "Author",
    "append_audit",
    "first_broken_link",
    "link_of",
    "list_events",
    "stream_lines",
]


class Author(NamedTuple):
    """Who acts: a ``person``, a ``run`` (its id), or the ``system`` itself."""

    kind: str
    name: str


ADMIN = "admin"
"""The stream of everything that is not part of a run."""
SYSTEM = Author("system", "instar")
_BATCH = 500
_APPEND = text(
    "select instar.append_audit(cast(:id as uuid), cast(:project as uuid), :stream, :actor_kind, "
    ":actor, :action, :subject, cast(:details as json), :body_hash)"
)
# Raw text, so that nothing that somebody wrote into the table keeps the rest from being read.
_LINES = """
select cast(id as text), stream, seq, actor_kind, actor, action, subject, cast(details as text),
       previous_hash, hash, format,
       coalesce(to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '')
from instar.audit_event
where project_id = cast(:project as uuid) {more}
order by stream, seq, id
"""


class AuditEntry(Frozen):
    """What was done to what.

    ``stream`` is ``admin`` or a run's id; left empty, what a run does goes into its own stream and
    everything else into ``admin``.
    """

    action: str
    subject: str
    details: JsonValue = None
    stream: str = ""


class AuditFilter(NamedTuple):
    """Which events to list; what is empty does not narrow."""

    stream: str = ""
    action: str = ""
    actor: str = ""
    subject: str = ""
    since: datetime | None = None


class AuditLine(NamedTuple):
    """An event as it lies in the table: ``details`` and the moment as text, unread."""

    id: str
    stream: str
    seq: int
    actor_kind: str
    actor: str
    action: str
    subject: str
    details: str | None
    previous_hash: str
    hash: str
    format: int
    moment: str


async def append_audit(
    session: AsyncSession, project_id: str, entry: AuditEntry, by: Author
) -> int:
    """Appends one event to its stream's chain, in the caller's transaction.

    Writers of one stream queue for each other until they commit, so that the chain has no forks.

    Returns:
        The number of the event in its stream.

    Raises:
        StoreError: When the transaction ends, if the event cannot be written; the transaction's
            changes are then undone with it.
    """
    details = redact(entry.details)
    stream = entry.stream or (by.name if by.kind == "run" else ADMIN)
    body = {
        "project": project_id,
        "stream": stream,
        "actor": [by.kind, by.name],
        "action": entry.action,
        "subject": entry.subject,
        "details": details,
    }
    seq = await session.scalar(
        _APPEND,
        {
            "id": new_id(),
            "project": project_id,
            "stream": stream,
            "actor_kind": by.kind,
            "actor": by.name,
            "action": entry.action,
            "subject": entry.subject,
            "details": None if details is None else json.dumps(details),
            "body_hash": content_hash(body),
        },
    )
    assert seq is not None, "the function returns the event's number"
    return int(seq)


async def list_events(
    session: AsyncSession,
    project_id: str,
    wanted: AuditFilter | None = None,
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[AuditEventRow]:
    """The project's events, newest first, by their ids: those grow with time and are indexed.

    Raises:
        UserError: If the limit is out of range or the cursor is none of ours.
    """
    wanted = wanted or AuditFilter()
    query = select(AuditEventRow).where(AuditEventRow.project_id == project_id)
    for column, value in (
        (AuditEventRow.stream, wanted.stream),
        (AuditEventRow.action, wanted.action),
        (AuditEventRow.actor, wanted.actor),
        (AuditEventRow.subject, wanted.subject),
    ):
        if value:
            query = query.where(column == value)
    if wanted.since is not None:
        query = query.where(AuditEventRow.created_at >= wanted.since)
    if not 1 <= limit <= MAX_PAGE:
        raise UserError(f"limit is {limit}; it must be 1 to {MAX_PAGE}.")
    if cursor:
        query = query.where(AuditEventRow.id < _known_id(cursor))
    found = list(await session.scalars(query.order_by(AuditEventRow.id.desc()).limit(limit + 1)))
    return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


def _known_id(cursor: str) -> str:
    try:
        return str(UUID(cursor))
    except ValueError as error:
        raise UserError(
            f"the cursor {short(cursor)!r} is not one of ours.",
            remedy="Pass the `next` of the page before, or none for the first page.",
        ) from error


async def stream_lines(
    session: AsyncSession, project_id: str, stream: str | None = None
) -> AsyncIterator[AuditLine]:
    """Every event of a project (or of one stream), stream by stream in order of number.

    Rows are fetched some hundreds at a time, so that a chain of any length takes the same memory.
    """
    more = "" if stream is None else "and stream = :stream"
    rows = await session.stream(
        text(_LINES.format(more=more)),
        {"project": project_id} | ({} if stream is None else {"stream": stream}),
        execution_options={"yield_per": _BATCH},
    )
    async for row in rows:
        yield AuditLine(*row)


def link_of(line: AuditLine, project_id: str, *, seq: int | None = None, stream: str = "") -> str:
    """The link that an event must have, by what stands in it (or as another number or stream).

    Returns:
        The hash in hex; empty if what stands in the event cannot be read, so that none matches.
    """
    number = line.seq if seq is None else seq
    where = stream or line.stream
    try:
        details = None if line.details is None else json.loads(line.details)
        if line.format == 1:
            # As revision 0001 made it: neither the moment nor the id is in it.
            actor, what = [line.actor_kind, line.actor], [line.action, line.subject]
            return content_hash([line.previous_hash, number, where, actor, what, details])
        body = {
            "project": project_id,
            "stream": where,
            "actor": [line.actor_kind, line.actor],
            "action": line.action,
            "subject": line.subject,
            "details": details,
        }
        body_hash = content_hash(body)
    except (ValueError, RecursionError):
        return ""
    text_ = "\n".join(
        [line.previous_hash or "", str(number), line.id, line.moment or "", body_hash]
    )
    return content_hash(text_.encode("utf-8"))


async def first_broken_link(
    session: AsyncSession, project_id: str, stream: str = ADMIN
) -> int | None:
    """The number of the first event whose chain does not hold, or ``None`` if all of it does."""
    previous, expected = "", 1
    async for line in stream_lines(session, project_id, stream):
        intact = line.seq == expected and line.previous_hash == previous
        if not intact or line.hash != link_of(line, project_id):
            return expected
        previous, expected = line.hash, expected + 1
    return None
