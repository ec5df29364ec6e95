"""Jobs: the rows that decide what background work runs, who holds it, and what became of it.

A worker claims a job (``instar.store.system.claim_job``), then says it runs, renews its lease, and
finishes it, always showing its fencing token. Whoever was taken for dead gets :class:`LeaseLost`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from instar.redaction import redact, redact_text
from instar.store.pages import Page, read_page
from instar.store.tables import JobRow, OutboxRow
from instar_core.base import new_id
from instar_core.errors import LeaseLost, NotFoundError

__all__ = [
    "JOB_TOPIC",
    "cancel_job",
    "check_fence",
    "create_job",
    "finish_job",
    "list_jobs",
    "read_job",
    "release_job",
    "renew_lease",
    "start_job",
]

JOB_TOPIC = "job"
"""Outbox topic of a new or waiting job: the id is the job's."""

_HELD = ("leased", "running")


async def create_job(
    session: AsyncSession,
    project_id: str,
    kind: str,
    payload: Mapping[str, Any],
    *,
    queue: str = "default",
    max_attempts: int = 5,
    run_after: datetime | None = None,
) -> JobRow:
    """A waiting job; its bell rings after this transaction commits (outbox)."""
    row = JobRow(
        id=new_id(),
        project_id=project_id,
        queue=queue,
        kind=kind,
        # Jobs name what they work on; a secret has no place among their arguments.
        payload=redact(payload),
        state="queued",
        max_attempts=max_attempts,
    )
    if run_after is not None:
        row.run_after = run_after
    session.add(row)
    session.add(OutboxRow(project_id=project_id, topic=JOB_TOPIC, ref_id=row.id))
    await session.flush()
    return row


async def read_job(session: AsyncSession, job_id: str) -> JobRow:
    """The job.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    row = await session.get(JobRow, job_id, populate_existing=True)
    if row is None:
        raise NotFoundError(f"there is no job {job_id!r} in this project.")
    return row


async def list_jobs(
    session: AsyncSession, project_id: str, *, limit: int = 50, cursor: str | None = None
) -> Page[JobRow]:
    """The project's jobs, newest first."""
    query = select(JobRow).where(JobRow.project_id == project_id)
    return await read_page(session, query, JobRow, limit=limit, cursor=cursor)


async def check_fence(session: AsyncSession, job_id: str, token: int) -> None:
    """Asserts that the caller still holds the job, until this transaction ends.

    Raises:
        LeaseLost: If another holds it, or it is over.
    """
    held = await session.scalar(
        text(
            "select 1 from instar.job where id = cast(:job as uuid) and fencing_token = :token "
            "and state in ('leased', 'running') for share"
        ),
        {"job": job_id, "token": token},
    )
    if held is None:
        raise _lost(job_id, token)


async def start_job(session: AsyncSession, job_id: str, token: int) -> None:
    """Moves a leased job to ``running``."""
    await _write(session, job_id, token, {"state": "running"})


async def renew_lease(session: AsyncSession, job_id: str, token: int, *, lease_s: float) -> bool:
    """Renews the lease from the database's present time on.

    Returns:
        Whether a person asked for the job to be cancelled.

    Raises:
        LeaseLost: If another holds the job now.
    """
    return await _write(
        session,
        job_id,
        token,
        {
            "heartbeat_at": func.clock_timestamp(),
            "lease_until": func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, lease_s),
        },
    )


async def finish_job(
    session: AsyncSession,
    job_id: str,
    token: int,
    state: Literal["succeeded", "failed", "cancelled"],
    *,
    error: str = "",
) -> None:
    """Ends a held job."""
    await _write(
        session,
        job_id,
        token,
        {
            "state": state,
            "last_error": redact_text(error).replace("\x00", ""),
            "finished_at": func.clock_timestamp(),
            "lease_until": None,
        },
    )


async def release_job(
    session: AsyncSession, project_id: str, job_id: str, token: int, *, delay_s: float = 0.0
) -> None:
    """Gives a held job back to the queue (a worker shutting down), to be run after ``delay_s``."""
    wait = func.make_interval(0, 0, 0, 0, 0, 0, delay_s)
    await _write(
        session,
        job_id,
        token,
        {"state": "queued", "lease_until": None, "run_after": func.clock_timestamp() + wait},
    )
    session.add(OutboxRow(project_id=project_id, topic=JOB_TOPIC, ref_id=job_id))
    await session.flush()


async def cancel_job(session: AsyncSession, job_id: str) -> str:
    """Asks for a job to be cancelled; one that waits is cancelled at once. Returns its state."""
    row = await session.get(JobRow, job_id, with_for_update=True, populate_existing=True)
    if row is None:
        raise NotFoundError(f"there is no job {job_id!r} in this project.")
    if row.state == "queued":
        row.state = "cancelled"
        row.cancel_requested = True
        row.finished_at = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    elif row.state in _HELD:
        row.cancel_requested = True
    await session.flush()
    return row.state


async def _write(session: AsyncSession, job_id: str, token: int, values: dict[str, Any]) -> bool:
    found = await session.execute(
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.fencing_token == token, JobRow.state.in_(_HELD))
        .values(**values)
        .returning(JobRow.cancel_requested)
        .execution_options(synchronize_session=False)
    )
    cancelled = found.scalar_one_or_none()
    if cancelled is None:
        raise _lost(job_id, token)
    return cancelled


def _lost(job_id: str, token: int) -> LeaseLost:
    return LeaseLost(
        f"job {job_id} is not held under fencing token {token} any more.",
        remedy="Stop; whoever holds it now goes on from what was recorded.",
    )
