"""Audit: who did what, as one hash chain per stream that the application can only append to."""

from __future__ import annotations

import json
from datetime import UTC
from typing import NamedTuple

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.tables import AuditEventRow
from instar_core.base import Frozen, JsonValue, content_hash, new_id

__all__ = ["SYSTEM", "Author", "AuditEntry", "append_audit", "first_broken_link"]


class Author(NamedTuple):
    """Who acts: a ``person``, an evolution ``run`` (its id), or the ``system`` itself."""

    kind: str
    name: str


_APPEND = text(
    "select instar.append_audit(cast(:id as uuid), cast(:project as uuid), :stream, :actor_kind, "
    ":actor, :action, :subject, cast(:details as json), :body_hash)"
)
SYSTEM = Author("system", "instar")


class AuditEntry(Frozen):
    """What was done to what; ``stream`` is ``admin`` or a run's id."""

    action: str
    subject: str
    details: JsonValue = None
    stream: str = "admin"


async def append_audit(
    session: AsyncSession, project_id: str, entry: AuditEntry, by: Author
) -> int:
    """Appends one event to its stream's chain, in the caller's transaction.

    Writers of one stream queue for each other until they commit, so that the chain has no forks.

    Returns:
        The number of the event in its stream.
    """
    body = {
        "project": project_id,
        "stream": entry.stream,
        "actor": [by.kind, by.name],
        "action": entry.action,
        "subject": entry.subject,
        "details": entry.details,
    }
    seq = await session.scalar(
        _APPEND,
        {
            "id": new_id(),
            "project": project_id,
            "stream": entry.stream,
            "actor_kind": by.kind,
            "actor": by.name,
            "action": entry.action,
            "subject": entry.subject,
            "details": None if entry.details is None else json.dumps(entry.details),
            "body_hash": content_hash(body),
        },
    )
    assert seq is not None, "the function returns the event's number"
    return int(seq)


async def first_broken_link(
    session: AsyncSession, project_id: str, stream: str = "admin"
) -> int | None:
    """The number of the first event whose chain does not hold, or ``None`` if all of it does."""
    rows = await session.scalars(
        select(AuditEventRow)
        .where(AuditEventRow.project_id == project_id, AuditEventRow.stream == stream)
        .order_by(AuditEventRow.seq)
    )
    previous, expected = "", 1
    for row in rows:
        if row.seq != expected or row.previous_hash != previous or row.hash != _link(row):
            return expected
        previous, expected = row.hash, expected + 1
    return None


def _link(row: AuditEventRow) -> str:
    if row.format == 1:
        return _first_link(row)
    body = {
        "project": row.project_id,
        "stream": row.stream,
        "actor": [row.actor_kind, row.actor],
        "action": row.action,
        "subject": row.subject,
        "details": row.details,
    }
    at = row.created_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    line = "\n".join([row.previous_hash, str(row.seq), at, content_hash(body)])
    return content_hash(line.encode("utf-8"))


def _first_link(row: AuditEventRow) -> str:
    """The link as revision 0001 made it: the moment is not in it."""
    return content_hash(
        [
            row.previous_hash,
            row.seq,
            row.stream,
            [row.actor_kind, row.actor],
            [row.action, row.subject],
            row.details,
        ]
    )
