"""Checkpoints, the database's part: heads to seal, sealed documents, and rows to hold them against.

What a checkpoint means is in :mod:`instar.audit.checkpoint`; here are its rows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.tables import InstallationRow
from instar_core.base import canonical_json
from instar_core.errors import StoreError

__all__ = [
    "ChangedHead",
    "HeadState",
    "SealedHead",
    "SealedRows",
    "StoredCheckpoint",
    "Totals",
    "find_follower",
    "find_number",
    "insert_checkpoint",
    "last_checkpoint",
    "lock_sealing",
    "read_changed_heads",
    "read_heads",
    "read_installation",
    "read_links",
    "read_sealed_heads",
    "read_sealed_rows",
    "read_totals",
    "stream_checkpoints",
]

_MOMENT = "to_char({} at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
_BATCH = 100


class HeadState(NamedTuple):
    """What ``audit_head`` says of a stream."""

    seq: int
    hash: str
    moment: str


class ChangedHead(NamedTuple):
    """A stream that grew since it was sealed: its head, and the beginnings of its new links."""

    stream: str
    seq: int
    hash: str
    links: str


class Totals(NamedTuple):
    """All heads of a project together: streams, rows, root, and a moment not before any of them."""

    streams: int
    rows: int
    root: str
    at: str


class StoredCheckpoint(NamedTuple):
    """A checkpoint's row; ``document`` as it was read from JSON."""

    document: Any
    hash: str
    key_id: str
    signature: str


class SealedHead(NamedTuple):
    """A claim to hold against a stream's rows: from the number after ``since`` to ``seq``."""

    stream: str
    since: int
    seq: int


class SealedRows(NamedTuple):
    """What the rows say to a claim; ``None`` where there is no such row."""

    id: str | None
    hash: str | None
    moment: str | None
    first_moment: str | None


async def read_installation(session: AsyncSession) -> str:
    """The id of the installation that this database belongs to.

    Raises:
        StoreError: If the database names none.
    """
    found = await session.scalar(text("select cast(id as text) from instar.installation limit 1"))
    if found is None:
        raise StoreError(
            f"{InstallationRow.__tablename__} is empty.", remedy="Restore it from a backup."
        )
    return str(found)


async def lock_sealing(session: AsyncSession, project_id: str) -> bool:
    """Takes the right to seal a project's chain for this transaction; false if it is taken."""
    taken = await session.scalar(
        text("select pg_try_advisory_xact_lock(hashtextextended(:name, 0))"),
        {"name": f"instar.seal_audit {project_id}"},
    )
    return bool(taken)


async def read_changed_heads(
    session: AsyncSession, project_id: str, *, limit: int, max_links: int, digits: int
) -> list[ChangedHead]:
    """The streams that grew since they were sealed, with the beginnings of their new links.

    Args:
        session: A snapshot of the project.
        project_id: The project.
        limit: Streams at most.
        max_links: A stream with more new rows than this comes without links.
        digits: Hex digits of each link.
    """
    rows = await session.execute(
        text(
            "select h.stream, h.seq, h.hash, case when h.seq - coalesce(s.seq, 0) > :most then ''"
            " else coalesce((select string_agg(substr(e.hash, 1, :digits), '' order by e.seq)"
            " from instar.audit_event e where e.project_id = h.project_id"
            " and e.stream = h.stream and e.seq > coalesce(s.seq, 0) and e.seq <= h.seq), '') end"
            " from instar.audit_head h left join instar.audit_sealed s"
            " on s.project_id = h.project_id and s.stream = h.stream"
            " where h.project_id = cast(:project as uuid) and h.seq > coalesce(s.seq, 0)"
            " order by h.stream limit :limit"
        ),
        {"project": project_id, "limit": limit, "most": max_links, "digits": digits},
    )
    return [ChangedHead(*row) for row in rows]


async def read_totals(session: AsyncSession, project_id: str) -> Totals:
    """What all heads of the project are together; the root as in the format's description."""
    row = (
        await session.execute(
            text(
                "select count(*), coalesce(sum(seq), 0), encode(sha256(coalesce(string_agg(sha256("
                "convert_to(stream || E'\\n' || seq || E'\\n' || hash, 'UTF8')), ''::bytea"
                " order by convert_to(stream, 'UTF8')), ''::bytea)), 'hex'), "
                + _MOMENT.format(
                    "greatest(clock_timestamp(), max(at), (select c.created_at from"
                    " instar.audit_checkpoint c where c.project_id = cast(:project as uuid)"
                    " order by c.seq desc limit 1))"
                )
                + " from instar.audit_head where project_id = cast(:project as uuid)"
            ),
            {"project": project_id},
        )
    ).one()
    return Totals(int(row[0]), int(row[1]), str(row[2]), str(row[3]))


async def read_heads(session: AsyncSession, project_id: str) -> dict[str, HeadState]:
    """Stream → what ``audit_head`` says of it."""
    rows = await session.execute(
        text(
            f"select stream, seq, hash, {_MOMENT.format('at')} from instar.audit_head"
            " where project_id = cast(:project as uuid)"
        ),
        {"project": project_id},
    )
    return {str(row[0]): HeadState(int(row[1]), str(row[2]), str(row[3])) for row in rows}


async def read_sealed_heads(session: AsyncSession, project_id: str) -> dict[str, int]:
    """Stream → the number up to which ``audit_sealed`` says that it is sealed."""
    rows = await session.execute(
        text(
            "select stream, seq from instar.audit_sealed where project_id = cast(:project as uuid)"
            " order by stream"
        ),
        {"project": project_id},
    )
    return {str(row[0]): int(row[1]) for row in rows}


async def insert_checkpoint(
    session: AsyncSession, project_id: str, stored: StoredCheckpoint
) -> None:
    """Stores the next checkpoint.

    Raises:
        ConflictError: When the transaction ends, if it does not follow the last one.
    """
    await session.execute(
        text(
            "select instar.seal_audit(cast(:project as uuid), cast(:document as json), :hash,"
            " :key_id, :signature)"
        ),
        {
            "project": project_id,
            "document": canonical_json(stored.document).decode("utf-8"),
            "hash": stored.hash,
            "key_id": stored.key_id,
            "signature": stored.signature,
        },
    )


async def last_checkpoint(session: AsyncSession, project_id: str) -> StoredCheckpoint | None:
    """The project's last checkpoint."""
    row = (
        await session.execute(
            text(
                "select document, hash, key_id, signature from instar.audit_checkpoint"
                " where project_id = cast(:project as uuid) order by seq desc limit 1"
            ),
            {"project": project_id},
        )
    ).first()
    return None if row is None else StoredCheckpoint(*row)


async def stream_checkpoints(
    session: AsyncSession, project_id: str, *, after: int = 0
) -> AsyncIterator[StoredCheckpoint]:
    """The project's checkpoints after a number, in order, some at a time."""
    rows = await session.stream(
        text(
            "select document, hash, key_id, signature from instar.audit_checkpoint"
            " where project_id = cast(:project as uuid) and seq > :after order by seq"
        ),
        {"project": project_id, "after": after},
        execution_options={"yield_per": _BATCH},
    )
    async for row in rows:
        yield StoredCheckpoint(*row)


async def read_sealed_rows(
    session: AsyncSession, project_id: str, claims: Sequence[SealedHead]
) -> list[SealedRows]:
    """What the rows say to each claim: the last row's id, link and moment, the first's moment."""
    rows = await session.execute(
        text(
            f"select cast(l.id as text), l.hash, {_MOMENT.format('l.created_at')},"
            f" {_MOMENT.format('f.created_at')}"
            " from unnest(cast(:streams as text[]), cast(:firsts as bigint[]),"
            " cast(:lasts as bigint[])) with ordinality as c (stream, first, last, place)"
            " left join lateral (select e.id, e.hash, e.created_at from instar.audit_event e"
            " where e.project_id = cast(:project as uuid) and e.stream = c.stream"
            " and e.seq = c.last order by e.id limit 1) l on true"
            " left join lateral (select e.created_at from instar.audit_event e"
            " where e.project_id = cast(:project as uuid) and e.stream = c.stream"
            " and e.seq = c.first order by e.id limit 1) f on true order by c.place"
        ),
        {
            "project": project_id,
            "streams": [claim.stream for claim in claims],
            "firsts": [claim.since + 1 for claim in claims],
            "lasts": [claim.seq for claim in claims],
        },
    )
    return [SealedRows(*row) for row in rows]


async def read_links(
    session: AsyncSession, project_id: str, claim: SealedHead
) -> dict[int, tuple[str, str]]:
    """Number → (id, link) of the rows within a claim."""
    rows = await session.execute(
        text(
            "select seq, cast(id as text), hash from instar.audit_event"
            " where project_id = cast(:project as uuid) and stream = :stream"
            " and seq > :since and seq <= :seq order by seq, id desc"
        ),
        {"project": project_id, **claim._asdict()},
    )
    return {int(row[0]): (str(row[1]), str(row[2])) for row in rows}


async def find_number(
    session: AsyncSession, project_id: str, stream: str, link: str
) -> tuple[int, str] | None:
    """Number and id of a stream's row with that link, or ``None``."""
    row = (
        await session.execute(
            text(
                "select seq, cast(id as text) from instar.audit_event"
                " where project_id = cast(:project as uuid) and stream = :stream and hash = :link"
                " order by seq limit 1"
            ),
            {"project": project_id, "stream": stream, "link": link},
        )
    ).first()
    return None if row is None else (int(row[0]), str(row[1]))


async def find_follower(session: AsyncSession, project_id: str, stream: str, link: str) -> bool:
    """Whether a row of the stream was made after the row with that link."""
    found = await session.scalar(
        text(
            "select exists (select from instar.audit_event where project_id ="
            " cast(:project as uuid) and stream = :stream and previous_hash = :link)"
        ),
        {"project": project_id, "stream": stream, "link": link},
    )
    return bool(found)
