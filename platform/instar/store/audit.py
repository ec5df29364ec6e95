"""Audit: who did what, as one hash chain per stream that the application can only append to."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.tables import AuditEventRow
from instar_core.base import Frozen, JsonValue, content_hash

__all__ = ["SYSTEM", "Author", "AuditEntry", "append_audit", "first_broken_link"]


class Author(NamedTuple):
    """Who acts: a ``person``, an evolution ``run`` (its id), or the ``system`` itself."""

    kind: str
    name: str


SYSTEM = Author("system", "instar")


class AuditEntry(Frozen):
    """What was done to what; ``stream`` is ``admin`` or a run's id."""

    action: str
    subject: str
    details: JsonValue = None
    stream: str = "admin"


async def append_audit(
    session: AsyncSession, project_id: str, entry: AuditEntry, by: Author
) -> AuditEventRow:
    """Appends one event to its stream's chain, in the caller's transaction.

    Writers of one stream queue for each other until they commit, so that the chain has no forks.
    """
    await session.execute(
        text("select pg_advisory_xact_lock(hashtextextended(:stream, 7))"),
        {"stream": f"audit/{project_id}/{entry.stream}"},
    )
    last = (
        await session.execute(
            select(AuditEventRow.seq, AuditEventRow.hash)
            .where(AuditEventRow.project_id == project_id, AuditEventRow.stream == entry.stream)
            .order_by(AuditEventRow.seq.desc())
            .limit(1)
        )
    ).first()
    row = AuditEventRow(
        project_id=project_id,
        stream=entry.stream,
        seq=1 if last is None else last[0] + 1,
        actor_kind=by.kind,
        actor=by.name,
        action=entry.action,
        subject=entry.subject,
        details=entry.details,
        previous_hash="" if last is None else last[1],
    )
    row.hash = _link(row)
    session.add(row)
    await session.flush()
    return row


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
