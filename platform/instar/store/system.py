"""System functions: what must look across projects, as named functions that return ids only.

Each calls one SECURITY DEFINER function of the schema, on a session of ``Database.system()``. What
it returns is enough to open a transaction of the right project, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

__all__ = [
    "ClaimedJob",
    "DueJob",
    "KeyOwner",
    "OutboxItem",
    "ReapedJob",
    "claim_job",
    "claim_next_job",
    "ensure_partitions",
    "find_api_key",
    "find_project",
    "has_credential",
    "list_due_jobs",
    "list_projects",
    "pull_outbox",
    "reap_jobs",
]


class ClaimedJob(NamedTuple):
    """A job that this worker holds now; every write shows the fencing token."""

    job_id: str
    project_id: str
    fencing_token: int


class DueJob(NamedTuple):
    """A job that waits to be run."""

    job_id: str
    project_id: str
    queue: str


class ReapedJob(NamedTuple):
    """A job whose worker was gone, and the state it is in now: queued, cancelled or dead."""

    job_id: str
    project_id: str
    state: str


class OutboxItem(NamedTuple):
    """A message to send: a topic and the id that it is about."""

    outbox_id: str
    project_id: str
    topic: str
    ref_id: str


class KeyOwner(NamedTuple):
    """Whom an API key belongs to, and what it may do."""

    project_id: str
    key_id: str
    role: str
    scopes: tuple[str, ...] = ()
    instance: bool = False
    agent: str = ""
    expires_at: datetime | None = None


async def find_project(session: AsyncSession, name: str) -> str | None:
    """The id of the project with that name, or ``None``."""
    found = await session.scalar(text("select instar.find_project(:name)"), {"name": name})
    return None if found is None else str(found)


async def list_projects(session: AsyncSession) -> list[str]:
    """The ids of all projects, oldest first."""
    rows = await session.execute(text("select instar.list_projects()"))
    return [str(row[0]) for row in rows]


async def find_api_key(session: AsyncSession, key_hash: str) -> KeyOwner | None:
    """Whom a live API key belongs to; ``None`` if it is unknown, revoked or expired, or its project
    was archived. Notes the use, at most once a minute."""
    row = (
        await session.execute(
            text(
                "select project_id, key_id, role, scopes, instance, agent, expires_at "
                "from instar.find_api_key(:hash)"
            ),
            {"hash": key_hash},
        )
    ).first()
    if row is None:
        return None
    scopes = tuple(str(scope) for scope in row.scopes)
    return KeyOwner(
        str(row.project_id),
        str(row.key_id),
        str(row.role),
        scopes,
        bool(row.instance),
        str(row.agent),
        row.expires_at,
    )


async def has_credential(session: AsyncSession) -> bool:
    """Whether anybody can be told from anybody else: a key works, or a person can sign in."""
    return bool(await session.scalar(text("select instar.has_credential()")))


async def claim_job(
    session: AsyncSession, job_id: str, *, worker: str, lease_s: float
) -> ClaimedJob | None:
    """Takes the lease of one job, if it waits or its lease ran out.

    Args:
        session: A system session.
        job_id: The job that the bell rang for.
        worker: Who takes it, for people to read.
        lease_s: Seconds until the lease must have been renewed.

    Returns:
        The claim with its fencing token; ``None`` if another holds the job, it is over, not due or
        cancelled, or used up its attempts.
    """
    row = (
        await session.execute(
            text(
                "select job_id, project_id, fencing_token from "
                "instar.claim_job(cast(:job as uuid), :worker, cast(:lease as float8))"
            ),
            {"job": job_id, "worker": worker, "lease": lease_s},
        )
    ).first()
    return None if row is None else ClaimedJob(str(row[0]), str(row[1]), int(row[2]))


async def claim_next_job(
    session: AsyncSession, queues: Sequence[str], *, worker: str, lease_s: float
) -> ClaimedJob | None:
    """Takes the lease of the job that has waited longest in any of the queues, if there is one."""
    row = (
        await session.execute(
            text(
                "select job_id, project_id, fencing_token from instar.claim_next_job("
                "cast(:queues as text[]), :worker, cast(:lease as float8))"
            ),
            {"queues": list(queues), "worker": worker, "lease": lease_s},
        )
    ).first()
    return None if row is None else ClaimedJob(str(row[0]), str(row[1]), int(row[2]))


async def list_due_jobs(session: AsyncSession, *, limit: int = 100) -> list[DueJob]:
    """Jobs that wait and are due: for the reconciler, which rings the bell again."""
    rows = await session.execute(
        text("select job_id, project_id, queue from instar.list_due_jobs(:limit)"),
        {"limit": limit},
    )
    return [DueJob(str(row[0]), str(row[1]), str(row[2])) for row in rows]


async def reap_jobs(session: AsyncSession, *, limit: int = 100) -> list[ReapedJob]:
    """Takes jobs away from workers that stopped renewing their lease; their tokens are void."""
    rows = await session.execute(
        text("select job_id, project_id, state from instar.reap_jobs(:limit)"), {"limit": limit}
    )
    return [ReapedJob(str(row[0]), str(row[1]), str(row[2])) for row in rows]


async def pull_outbox(session: AsyncSession, *, limit: int = 100) -> list[OutboxItem]:
    """Takes unsent messages, oldest first. They count as sent when the transaction commits: send
    inside it, so that a crash sends again rather than never."""
    rows = await session.execute(
        text("select outbox_id, project_id, topic, ref_id from instar.pull_outbox(:limit)"),
        {"limit": limit},
    )
    items = [OutboxItem(str(row[0]), str(row[1]), str(row[2]), str(row[3])) for row in rows]
    return sorted(items, key=lambda item: item.outbox_id)


async def ensure_partitions(session: AsyncSession, *, months_ahead: int = 3) -> int:
    """Makes the partitions from this month to ``months_ahead`` later; returns how many were made.

    Run it daily. Without it rows land in the default partition: slower, and nothing is lost.
    """
    made = await session.scalar(
        text("select instar.ensure_partitions(:months)"), {"months": months_ahead}
    )
    return int(made or 0)
