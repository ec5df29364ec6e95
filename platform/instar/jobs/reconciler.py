"""The reconciler: reaps dead workers' jobs, sends the outbox, rings for what still waits.

Run as ``python -m instar.jobs.reconciler``. Everything it does is safe to do twice, by several of
them, and after a crash at any point.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from instar.audit.writer import Sealer
from instar.evolution.orphans import settle_orphans
from instar.jobs.bell import ring_job
from instar.jobs.runner import database_url
from instar.redaction import redact_text
from instar.settings import Settings, load_settings, prepare_process
from instar.store import job_ends, system
from instar.store.jobs import JOB_TOPIC
from instar.store.session import Database
from instar_core.errors import InstarError, PrerequisiteError, StoreError

__all__ = ["Reconciler", "main"]

_log = logging.getLogger("instar.reconciler")
_FIRST_RING_S = 5.0
_LONGEST_RING_S = 60.0
_HEAL_S = 30.0
_PARTITIONS_S = 24 * 3600.0
_LAST_SEAL_S = 8.0
_BATCH = 200


@dataclass(slots=True)
class _Rung:
    """When a waiting job was last rung for, and how long to wait before the next time."""

    at: float
    pause_s: float = _FIRST_RING_S


@dataclass(slots=True)
class Reconciler:
    """One sweep after the other over every project.

    Attributes:
        db: The service's database.
        rung: Jobs that were rung for and still wait.
    """

    db: Database
    rung: dict[str, _Rung] = field(default_factory=dict)
    _partitions_at: float = -_PARTITIONS_S
    _healed_at: float = -_HEAL_S

    async def sweep(self) -> None:
        """Reaps, sends and rings once.

        Raises:
            StoreError: The database is away; nothing is lost, sweep again later.
        """
        await self.reap()
        await self._heal()
        await self._send()
        await self._ring_due()
        await self._make_partitions()

    async def reap(self) -> None:
        """Frees the jobs of workers that are gone, and tells their runs.

        Raises:
            StoreError: The database is away.
        """
        async with self.db.system() as session:
            reaped = await system.reap_jobs(session, limit=_BATCH)
        for job in reaped:
            _log.warning("job %s: its worker is gone; the job is %s now", job.job_id, job.state)
            await self._tell_run(job.project_id, job.job_id, job.state)

    async def _tell_run(self, project_id: str, job_id: str, job_state: str) -> None:
        states = {
            "queued": ("interrupted", "its worker is gone; the run waits to go on"),
            "cancelled": ("cancelled", "a person cancelled it"),
            "dead": ("failed", "its workers died again and again; see the job's last error"),
        }
        state, reason = states[job_state]
        async with self.db.transaction(project_id) as session:
            await job_ends.mark_run_of_job(session, job_id, state, reason)
            if state != "interrupted":
                await settle_orphans(session, project_id)

    async def _heal(self) -> None:
        """Once in a while: puts right what a crash between two steps left contradicting."""
        now = time.monotonic()
        if now - self._healed_at < _HEAL_S:
            return
        async with self.db.system() as session:
            project_ids = await system.list_projects(session)
        for project_id in project_ids:
            async with self.db.transaction(project_id) as session:
                for run_id in await job_ends.heal_runs(session):
                    _log.warning("run %s said otherwise than its job; put right", run_id)
                await settle_orphans(session, project_id)
        self._healed_at = now

    async def _send(self) -> None:
        """Sends committed messages. A crash after the commit loses bells, which are rung again."""
        async with self.db.system() as session:
            items = await system.pull_outbox(session, limit=_BATCH)
        for item in items:
            if item.topic == JOB_TOPIC and await ring_job(item.ref_id):
                self.rung[item.ref_id] = _Rung(time.monotonic())

    async def _ring_due(self) -> None:
        """Rings for jobs that still wait, less and less often."""
        async with self.db.system() as session:
            due = await system.list_due_jobs(session, limit=_BATCH)
        now = time.monotonic()
        waiting = {job.job_id for job in due}
        self.rung = {job_id: rung for job_id, rung in self.rung.items() if job_id in waiting}
        for job in due:
            last = self.rung.get(job.job_id)
            if last is not None and now - last.at < last.pause_s:
                continue
            if await ring_job(job.job_id, job.queue):
                pause = min(_LONGEST_RING_S, last.pause_s * 2) if last else _FIRST_RING_S
                self.rung[job.job_id] = _Rung(now, pause)

    async def _make_partitions(self) -> None:
        now = time.monotonic()
        if now - self._partitions_at < _PARTITIONS_S:
            return
        async with self.db.system() as session:
            await system.ensure_partitions(session)
        self._partitions_at = now


async def _run() -> None:
    settings = load_settings()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    beat_file = os.environ.get("INSTAR_BEAT_FILE")
    db = Database(database_url(settings), pool_size=1)
    reconciler = Reconciler(db)
    sealing = asyncio.create_task(_seal_until(stop, db, settings))
    try:
        while not stop.is_set():
            try:
                await reconciler.sweep()
            except StoreError as error:
                _log.warning("sweep put off: %s", error)
            if beat_file:
                # One short line: cheaper than a thread.
                Path(beat_file).write_text(f"{os.getpid()}\n", encoding="ascii")  # noqa: ASYNC240
            try:
                await asyncio.wait_for(stop.wait(), settings.worker.reconcile_s)
            except TimeoutError:
                continue
    finally:
        stop.set()
        await sealing
        await db.close()


async def _seal_until(stop: asyncio.Event, db: Database, settings: Settings) -> None:
    """Seals the audit chain on a clock of its own, and once more when the service stops."""
    stopping = asyncio.create_task(stop.wait())
    try:
        while not stop.is_set():
            await _seal(db, settings)
            await asyncio.wait({stopping}, timeout=settings.audit.checkpoint_s)
        async with asyncio.timeout(_LAST_SEAL_S):
            await _seal(db, settings)
    except TimeoutError:
        _log.warning("the last audit checkpoint took too long; the next start writes it")
    finally:
        stopping.cancel()


async def _seal(db: Database, settings: Settings) -> None:
    try:
        await Sealer.open(db, settings).seal_all()
    except StoreError as error:
        _log.warning("audit checkpoint put off: %s", error)
    except PrerequisiteError as error:
        _log.error("no audit checkpoint is written: %s", error)


def main() -> int:
    """Runs until SIGTERM; 1 with a message when it cannot run at all."""
    prepare_process()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(_run())
    except InstarError as error:
        print(redact_text(f"error: {error}"), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
