"""Idempotency keys: the answer to a request is kept, so that the same request gets it again.

A key is claimed before the work and settled with the answer after it. A claim whose process died
expires, so that the client's next try is let through.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

__all__ = ["Claim", "claim_key", "release_key", "settle_key"]

_PENDING = "10 minutes"
_KEPT = "24 hours"


class Claim(NamedTuple):
    """What a key means now.

    ``new``: this caller does the work. ``done``: the answer is here. ``busy``: another caller is at
    it. ``other``: the key belongs to another request.
    """

    state: Literal["new", "done", "busy", "other"]
    status: int = 0
    answer: str = ""


async def claim_key(session: AsyncSession, project_id: str, key: str, request_hash: str) -> Claim:
    """Takes a key for a request, or tells what became of it.

    Args:
        session: A project transaction; the claim counts from its commit.
        project_id: The project that keys are unique in.
        key: The client's key.
        request_hash: Hash of everything that makes the request.
    """
    values = {"project": project_id, "key": key, "hash": request_hash}
    taken = await session.execute(
        text(
            "insert into instar.idempotency_key as k (project_id, key, request_hash, expires_at)"
            " values (cast(:project as uuid), :key, :hash,"
            f" clock_timestamp() + interval '{_PENDING}')"
            " on conflict (project_id, key) do update set request_hash = excluded.request_hash,"
            " status = null, response = null, created_at = clock_timestamp(),"
            " expires_at = excluded.expires_at where k.expires_at < clock_timestamp()"
            " returning 1"
        ),
        values,
    )
    if taken.first() is not None:
        return Claim("new")
    row = (
        await session.execute(
            text(
                "select request_hash, status, response #>> '{}' from instar.idempotency_key"
                " where project_id = cast(:project as uuid) and key = :key"
            ),
            {"project": project_id, "key": key},
        )
    ).first()
    if row is None:  # released by its holder between the two statements
        return Claim("busy")
    if row[0] != request_hash:
        return Claim("other")
    if row[1] is None:
        return Claim("busy")
    return Claim("done", int(row[1]), str(row[2] or ""))


async def settle_key(
    session: AsyncSession, project_id: str, key: str, status: int, answer: str
) -> None:
    """Keeps the answer (JSON text) to a claimed key's request for a day."""
    await session.execute(
        text(
            "update instar.idempotency_key set status = :status,"
            " response = to_json(cast(:answer as text)),"
            f" expires_at = clock_timestamp() + interval '{_KEPT}'"
            " where project_id = cast(:project as uuid) and key = :key"
        ),
        {"project": project_id, "key": key, "status": status, "answer": answer},
    )


async def release_key(session: AsyncSession, project_id: str, key: str) -> None:
    """Gives a claimed key back: the work did not take place, and may be tried again."""
    await session.execute(
        text(
            "delete from instar.idempotency_key"
            " where project_id = cast(:project as uuid) and key = :key and status is null"
        ),
        {"project": project_id, "key": key},
    )
