"""The runner: one job under its lease, from the claim to an ending that says what happened.

While the work goes on a heartbeat renews the lease and learns of cancellations. Whoever lost the
lease stops and writes nothing; a fault outside the agent gives the job back; an uncaught error is
``failed`` with its cause, never anything that looks like a good end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.context import JobContext
from instar.evolution.orphans import settle_orphans
from instar.jobs.kinds import find_handler
from instar.jobs.signals import StopFlag, stop_flag
from instar.redaction import scope_redaction
from instar.settings import Settings
from instar.store import job_ends, system
from instar.store import jobs as job_store
from instar.store.session import Database
from instar_core.errors import (
    InfrastructureError,
    InstarError,
    LeaseLost,
    PrerequisiteError,
    RunCancelled,
    StoreError,
)

__all__ = ["run_claimed", "worker_name"]

JobEnd = Literal["succeeded", "failed", "cancelled"]

_log = logging.getLogger(__name__)
_LONGEST_BEAT_S = 2.0
_GRACE_S = 8.0
"""Seconds the work gets to end by itself once it was asked to."""
_RETRY_S = 5.0
"""Seconds before a job that met trouble outside is tried again; more with every further attempt, so
that a provider that is away for some hours does not use all of a run's attempts up."""


def worker_name(settings: Settings) -> str:
    """The name under which this process takes leases."""
    return f"{settings.worker.name or socket.gethostname()}/{os.getpid()}"


def database_url(settings: Settings) -> str:
    """The address of the service's database for its own role.

    Raises:
        PrerequisiteError: None is configured.
    """
    if settings.app_database_url:
        return settings.app_database_url
    raise PrerequisiteError(
        "no database is configured for this process.",
        remedy="Start it with `instar up`, or set INSTAR_APP_DATABASE_URL.",
    )


@dataclass(slots=True)
class _Watch:
    """What the heartbeat knows, read by the work."""

    lease_s: float
    stop: StopFlag
    cancel_requested: bool = False
    lost: bool = False
    renewed_at: float = field(default_factory=time.monotonic)

    @property
    def leaving(self) -> bool:
        """Whether the work is asked to end: a person cancelled it, or the worker shuts down."""
        return self.cancel_requested or self.stop.is_set


async def run_claimed(
    job_id: str, settings: Settings, *, stop: StopFlag = stop_flag, grace_s: float = _GRACE_S
) -> str:
    """Claims a job and does its work.

    Args:
        job_id: The job the bell rang for.
        settings: Settings of this process.
        stop: Set when this worker shuts down.
        grace_s: Seconds the work gets to end after it was asked to.

    Returns:
        The state the job was left in, ``not_claimed``, or ``lease_lost``.
    """
    async with _database(settings) as db:
        async with db.system() as session:
            claim = await system.claim_job(
                session, job_id, worker=worker_name(settings), lease_s=settings.worker.lease_s
            )
        if claim is None:
            return "not_claimed"
        watch = _Watch(settings.worker.lease_s, stop)
        _log.info("job %s taken with token %d", job_id, claim.fencing_token)
        outcome = await _Run(db, claim, settings, watch, grace_s).work()
        _log.info("job %s: %s", job_id, outcome)
        return outcome


@asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[Database]:
    limit = settings.registry.max_content_bytes
    db = Database(database_url(settings), max_content_bytes=limit)
    try:
        yield db
    finally:
        await db.close()


class _Run:
    """One claimed job."""

    def __init__(
        self,
        db: Database,
        claim: system.ClaimedJob,
        settings: Settings,
        watch: _Watch,
        grace_s: float,
    ) -> None:
        self._db = db
        self._claim = claim
        self._settings = settings
        self._watch = watch
        self._grace_s = grace_s

    async def work(self) -> str:
        """Does the work and records how it ended."""
        work = asyncio.create_task(self._handle())
        guard = asyncio.create_task(self._guard(work))
        try:
            await asyncio.wait({work})
        finally:
            guard.cancel()
            work.cancel()
            await asyncio.gather(guard, work, return_exceptions=True)
        if self._watch.lost:
            return "lease_lost"
        return await self._close(None if work.cancelled() else work.exception(), work.cancelled())

    async def _handle(self) -> None:
        async with self._db.transaction(self._claim.project_id) as session:
            job = await job_store.read_job(session, self._claim.job_id)
            await job_store.start_job(session, self._claim.job_id, self._claim.fencing_token)
        context = JobContext(
            db=self._db,
            project_id=self._claim.project_id,
            run_id=str(job.payload.get("run_id", "")),
            job_id=self._claim.job_id,
            fencing_token=self._claim.fencing_token,
            settings=self._settings,
            cancelled=lambda: self._watch.leaving,
            lease_lost=lambda: self._watch.lost,
        )
        scope_redaction(self._claim.project_id)
        await find_handler(job.kind)(context)

    async def _guard(self, work: asyncio.Task[None]) -> None:
        """Renews the lease, and ends the work when it is lost or will not leave by itself."""
        beat_s = min(self._watch.lease_s / 3, _LONGEST_BEAT_S)
        asked_at: float | None = None
        while True:
            await asyncio.sleep(beat_s)
            await self._renew()
            if self._watch.lost:
                work.cancel()
                return
            if self._watch.leaving:
                asked_at = asked_at if asked_at is not None else time.monotonic()
                if time.monotonic() - asked_at >= self._grace_s:
                    work.cancel()
                    return

    async def _renew(self) -> None:
        try:
            async with self._db.transaction(self._claim.project_id) as session:
                asked = await job_store.renew_lease(
                    session,
                    self._claim.job_id,
                    self._claim.fencing_token,
                    lease_s=self._watch.lease_s,
                )
        except StoreError as error:
            # The database is away: the lease is still ours until its time is over, and nobody can
            # have it before. After that this worker may no longer believe in it.
            if time.monotonic() - self._watch.renewed_at > self._watch.lease_s:
                _log.warning("job %s: lease not renewed in time: %s", self._claim.job_id, error)
                self._watch.lost = True
            return
        except LeaseLost:
            self._watch.lost = True
            return
        self._watch.renewed_at = time.monotonic()
        self._watch.cancel_requested = self._watch.cancel_requested or asked

    async def _close(self, error: BaseException | None, was_cancelled: bool) -> str:
        """Records the ending; keeps trying while the database is away, until the lease is over."""
        while True:
            try:
                return await self._record(error, was_cancelled)
            except LeaseLost:
                return "lease_lost"
            except StoreError as trouble:
                if time.monotonic() - self._watch.renewed_at > self._watch.lease_s:
                    _log.warning("job %s: end not recorded: %s", self._claim.job_id, trouble)
                    return "lease_lost"
                await asyncio.sleep(min(0.5, self._watch.lease_s / 10))

    async def _record(self, error: BaseException | None, was_cancelled: bool) -> str:
        """One transaction that ends the job, its run with it, or gives both back."""
        if isinstance(error, LeaseLost):
            return "lease_lost"
        watch, job_id = self._watch, self._claim.job_id
        async with self._db.transaction(self._claim.project_id) as session:
            run = await job_ends.read_run_end(session, job_id)
            if error is None and not was_cancelled and not (run and run.is_open):
                return await self._finish(session, run)
            if watch.cancel_requested:
                return await self._end(session, "cancelled", "a person cancelled it")
            if watch.stop.is_set:
                # Also a fault of that moment: what is torn down around the work is no finding.
                return await self._give_back(session, "the worker was shut down", counts=False)
            if isinstance(error, RunCancelled):
                return await self._end(session, "cancelled", str(error))
            if isinstance(error, InfrastructureError):
                return await self._give_back(session, str(error), counts=True)
            if error is None:
                return await self._end(session, "failed", "the work left its run without an end")
            _log.error("job %s failed", job_id, exc_info=error)
            return await self._end(session, "failed", _cause(error))

    async def _finish(self, session: AsyncSession, run: job_ends.RunEnd | None) -> str:
        """The work came to its end: the job's state says what its run's says."""
        if run is not None and run.state == "failed":
            return await self._end(session, "failed", run.reason)
        if run is not None and run.state == "cancelled":
            return await self._end(session, "cancelled", run.reason)
        return await self._end(session, "succeeded", "")

    async def _end(self, session: AsyncSession, state: JobEnd, why: str) -> str:
        claim = self._claim
        await job_store.finish_job(session, claim.job_id, claim.fencing_token, state, error=why)
        if state != "succeeded":
            await job_ends.mark_run_of_job(session, claim.job_id, state, why)
            await settle_orphans(session, claim.project_id)
        return state

    async def _give_back(self, session: AsyncSession, why: str, *, counts: bool) -> str:
        """Returns the lease; the run waits as interrupted, or fails after the last attempt."""
        claim = self._claim
        state = await job_ends.give_back_job(
            session,
            claim.job_id,
            claim.fencing_token,
            error=why,
            delay_s=_RETRY_S if counts else 0.0,
            counts=counts,
        )
        run_state = "failed" if state == "dead" else "interrupted"
        await job_ends.mark_run_of_job(session, claim.job_id, run_state, why)
        if state == "dead":
            await settle_orphans(session, claim.project_id)
        return state


def _cause(error: BaseException) -> str:
    """An uncaught error in one line: its type and words."""
    if isinstance(error, InstarError):
        return str(error)
    return f"{type(error).__name__}: {error}"
