"""How jobs come back: given up by their worker, taken from workers that are gone, and their runs.

Kept apart from :mod:`instar.store.jobs`, which is what a worker does while all goes well.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.redaction import redact_text
from instar.store.audit import SYSTEM, AuditEntry, append_audit
from instar.store.jobs import JOB_TOPIC
from instar.store.tables import OutboxRow
from instar_core.base import short
from instar_core.errors import LeaseLost

__all__ = [
    "RunEnd",
    "expire_leases",
    "give_back_job",
    "heal_runs",
    "mark_run_of_job",
    "read_run_end",
]

_LONGEST_ERROR = 8000
_LONGEST_DELAY_S = 300.0


class RunEnd(NamedTuple):
    """State and reason of an evolution run."""

    state: str
    reason: str

    @property
    def is_open(self) -> bool:
        """Whether it still waits for a worker or should have one (a paused run does not)."""
        return self.state in ("queued", "running", "interrupted")


async def give_back_job(
    session: AsyncSession,
    job_id: str,
    token: int,
    *,
    error: str,
    delay_s: float = 0.0,
    counts: bool = True,
) -> str:
    """Gives a lease back before the work is done; the token is void from then on.

    Args:
        session: A transaction of the job's project.
        job_id: The job.
        token: Its fencing token.
        error: Why, kept as the last error.
        delay_s: Seconds before it may be claimed again after the first attempt; twice as long after
            each further one, up to five minutes.
        counts: Whether this attempt counts towards the most allowed (a shutdown does not).

    Returns:
        The new state: ``queued``, or ``dead`` after the last attempt.

    Raises:
        LeaseLost: If another holds it, or it is over.
    """
    row = (
        await session.execute(
            text(
                "update instar.job set lease_until = null, last_error = :error,"
                " fencing_token = fencing_token + 1,"
                " attempts = attempts - case when :counts then 0 else 1 end,"
                " state = case when :counts and attempts >= max_attempts then 'dead'"
                " else 'queued' end,"
                " run_after = clock_timestamp() + make_interval(secs => least(:longest,"
                " :delay * power(2, least(attempts, 30) - 1))),"
                " finished_at = case when :counts and attempts >= max_attempts"
                " then clock_timestamp() end"
                " where id = cast(:job as uuid) and fencing_token = :token"
                " and state in ('leased', 'running') returning state, project_id"
            ),
            {
                "job": job_id,
                "token": token,
                "error": short(redact_text(error).replace("\x00", ""), _LONGEST_ERROR),
                "delay": delay_s,
                "longest": _LONGEST_DELAY_S,
                "counts": counts,
            },
        )
    ).first()
    if row is None:
        raise LeaseLost(f"job {job_id} is not held under fencing token {token} any more.")
    if row[0] == "queued":
        session.add(OutboxRow(project_id=str(row[1]), topic=JOB_TOPIC, ref_id=job_id))
        await session.flush()
    return str(row[0])


async def expire_leases(session: AsyncSession, worker_prefix: str) -> int:
    """Ends the leases of workers that are known to be gone, in the session's project.

    The reaper then takes the jobs at once instead of after the lease time.

    Returns:
        How many leases ended.
    """
    rows = await session.execute(
        text(
            "update instar.job set lease_until = clock_timestamp() - interval '1 millisecond'"
            " where state in ('leased', 'running') and starts_with(worker, :prefix) returning id"
        ),
        {"prefix": worker_prefix},
    )
    return len(rows.all())


async def mark_run_of_job(session: AsyncSession, job_id: str, state: str, reason: str) -> list[str]:
    """Moves the evolution run that a job carries out of ``queued``, ``running`` or ``interrupted``.

    Args:
        session: A transaction of the job's project.
        job_id: The job.
        state: ``interrupted`` (its worker is gone), ``failed`` or ``cancelled``.
        reason: In words; shown to people.

    Returns:
        The ids of the runs that moved: none when the run is over already, the job has no run, or
        (for ``interrupted``) another worker has the job by now.
    """
    rows = await session.execute(
        text(
            "update instar.evolution_run set state = cast(:state as text), reason = :reason,"
            " phase = case when cast(:state as text) = 'interrupted' then phase else 'done' end,"
            " finished_at = case when cast(:state as text) = 'interrupted' then null"
            " else clock_timestamp() end"
            " where job_id = cast(:job as uuid)"
            " and state in ('queued', 'running', 'interrupted')"
            # Another worker may have taken the job up since the caller saw it waiting.
            " and (cast(:state as text) <> 'interrupted' or exists (select 1 from instar.job j"
            " where j.id = cast(:job as uuid) and j.state = 'queued')) returning id, project_id"
        ),
        {"job": job_id, "state": state, "reason": short(redact_text(reason), _LONGEST_ERROR)},
    )
    return [await _told(session, str(row[0]), str(row[1]), state) for row in rows.all()]


async def _told(session: AsyncSession, run_id: str, project_id: str, state: str) -> str:
    """Audits that a run was moved from outside; returns its id."""
    entry = AuditEntry(
        action="evolution.move", subject=run_id, details={"state": state}, stream=run_id
    )
    await append_audit(session, project_id, entry, SYSTEM)
    return run_id


async def read_run_end(session: AsyncSession, job_id: str) -> RunEnd | None:
    """How the evolution run of a job stands; ``None`` for a job without one."""
    row = (
        await session.execute(
            text(
                "select state, reason from instar.evolution_run"
                " where job_id = cast(:job as uuid) order by id desc limit 1"
            ),
            {"job": job_id},
        )
    ).first()
    return RunEnd(str(row[0]), str(row[1])) if row is not None else None


async def heal_runs(session: AsyncSession) -> list[str]:
    """Moves runs that say otherwise than their jobs, in the session's project.

    A crash between the end of a job and the word to its run leaves such a pair: a job that is over
    under a run that is not, or one that waits under a run that says ``running``.

    Returns:
        The ids of the runs that moved.
    """
    rows = await session.execute(
        text(
            "update instar.evolution_run r set"
            " state = case j.state when 'queued' then 'interrupted'"
            " when 'cancelled' then 'cancelled' else 'failed' end,"
            " phase = case j.state when 'queued' then r.phase else 'done' end,"
            " reason = case j.state when 'queued' then 'its worker is gone; the run waits to go on'"
            " when 'cancelled' then 'a person cancelled it'"
            " else coalesce(nullif(j.last_error, ''), 'its job ended without it') end,"
            " finished_at = case j.state when 'queued' then null else clock_timestamp() end"
            " from instar.job j where j.id = r.job_id"
            " and ((r.state in ('queued', 'running', 'interrupted')"
            " and j.state in ('succeeded', 'failed', 'cancelled', 'dead'))"
            " or (r.state = 'running' and j.state = 'queued'))"
            " returning r.id, r.project_id, r.state"
        )
    )
    return [await _told(session, str(row[0]), str(row[1]), str(row[2])) for row in rows.all()]
