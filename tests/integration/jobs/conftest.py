"""Fixtures of the job tests: a broker, workers and reconcilers as processes, and their traces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psutil
import psycopg
import pytest

from instar.embedded.broker import Broker, plan_broker
from instar.embedded.services import CommandService
from instar.settings import Settings, WorkerSettings
from instar.store.jobs import create_job
from instar.store.testing import MigratedDatabase
from instar_core.base import new_id

HERE = Path(__file__).parent


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    """Waits until a condition holds; fails with its name when it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"never happened: {what}")
        time.sleep(0.02)


@dataclass
class House:
    """A database with jobs in it, and the processes that work on them."""

    database: MigratedDatabase
    folder: Path
    lease_s: float = 2.0
    name: str = ""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _service: CommandService | None = None

    @cached_property
    def broker(self) -> Broker:
        """The broker, started when the first process needs it."""
        planned = plan_broker(self.folder, "secret", dict(os.environ))
        log = self.folder / "broker.log"
        self._service = CommandService("broker", planned.command, after=(), log=log)
        self.start_broker()
        return planned

    def start_broker(self) -> None:
        """Starts the broker's process (again)."""
        assert self._service is not None
        self._service.start()
        service = self._service
        wait_for(lambda: service.ask().ready, "broker up")

    def kill_broker(self) -> None:
        """Ends the broker with everything it holds."""
        assert self._service is not None and self._service.identity is not None
        os.kill(self._service.identity.pid, signal.SIGKILL)
        self._service.stop()

    def add(self, kind: str, *, max_attempts: int = 5) -> str:
        """A job, as anybody adds one: the row and its bell in one transaction."""

        async def work(db: object) -> str:
            async with self.database.open().transaction(self.database.project_id) as session:
                row = await create_job(
                    session,
                    self.database.project_id,
                    f"probe.{kind}",
                    {},
                    max_attempts=max_attempts,
                )
                return row.id

        return str(self.database.run(work))

    def job(self, job_id: str) -> dict[str, object]:
        """A job's row, past all walls."""
        names = "state, attempts, fencing_token, last_error, worker, finished_at is not null"
        (row,) = self.database.query(f"select {names} from job where id = %s", job_id)
        keys = ("state", "attempts", "token", "error", "worker", "finished")
        return dict(zip(keys, row, strict=True))

    def wait_state(self, job_id: str, state: str) -> dict[str, object]:
        """The job once it is in that state."""
        wait_for(lambda: self.job(job_id)["state"] == state, f"job {state}: {self.job(job_id)}")
        return self.job(job_id)

    @property
    def trace(self) -> list[str]:
        """What the jobs' work wrote, line by line."""
        path = self.folder / "trace"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def traced(self, word: str) -> list[list[str]]:
        """The trace's lines that begin with a word, split."""
        return [line.split() for line in self.trace if line.startswith(f"{word} ")]

    def release(self) -> None:
        """Lets the waiting jobs end."""
        (self.folder / "release").touch()

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A worker or reconciler as a process of its own."""
        with (self.folder / f"{module}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"instar.jobs.{module}", *arguments],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        """A worker that knows the probes, ready for bells."""
        beat = self.folder / "beat"
        beat.unlink(missing_ok=True)
        process = self.start("worker", "--include", "probe_jobs")
        wait_for(beat.exists, "worker ready: " + self.log("worker"))
        return process

    def log(self, module: str) -> str:
        """The end of a process's log."""
        path = self.folder / f"{module}.log"
        return path.read_text(encoding="utf-8", errors="replace")[-2000:] if path.exists() else ""

    @property
    def settings(self) -> Settings:
        """Settings for running a job in the test's own process."""
        return Settings(
            app_database_url=self.database.app_url,
            worker=WorkerSettings(lease_s=self.lease_s, name="test"),
        )

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the processes."""
        return {
            **os.environ,
            "INSTAR_APP_DATABASE_URL": self.database.app_url,
            "INSTAR_REDIS_URL": self.broker.url,
            "INSTAR_WORKER__LEASE_S": str(self.lease_s),
            "INSTAR_WORKER__NAME": self.name,
            "INSTAR_WORKER__RECONCILE_S": "0.2",
            "INSTAR_BEAT_FILE": str(self.folder / "beat"),
            "INSTAR_PROBE_FOLDER": str(self.folder),
            "PYTHONPATH": str(HERE),
        }

    def close(self) -> None:
        """Ends what was started, children included."""
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait()
        if self._service is not None:
            self._service.stop()


@pytest.fixture
def house(
    database: MigratedDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[House]:
    """A database, and nobody at work yet."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("INSTAR_PROBE_FOLDER", str(tmp_path))
    house = House(database, tmp_path)
    yield house
    house.close()


@pytest.fixture
def run_of(database: MigratedDatabase) -> Callable[[str], str]:
    """Adds an evolution run that a job carries, without all that a real one points to."""

    def add(job_id: str) -> str:
        run_id = new_id()
        with psycopg.connect(database.owner_url, autocommit=True) as connection:
            # As a replica the server asks for no foreign rows.
            connection.execute("set session_replication_role = replica")
            connection.execute(
                "insert into instar.evolution_run (id, project_id, agent, state, evolver,"
                " config, incumbent_version_id, incumbent_digest, job_id)"
                " values (%s, %s, 'a', 'running', 'e', '{}', %s, 'd', %s)",
                [run_id, database.project_id, new_id(), job_id],
            )
        return run_id

    return add
