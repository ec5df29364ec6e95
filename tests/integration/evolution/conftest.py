"""A run with its job and budget in a fresh database, for tests of what a run's holder writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from instar.evolution.journal import JournalConfig
from instar.evolution.retry import StorePatience
from instar_core.base import content_hash, new_id


@dataclass(frozen=True)
class HeldRun:
    """A running evolution run whose job is leased under token 1."""

    database: Any
    run_id: str
    job_id: str
    version_id: str
    token: int = 1

    @property
    def project_id(self) -> str:
        """The project of the run."""
        return str(self.database.project_id)

    def journal_config(self, **changes: Any) -> JournalConfig:
        """The configuration of this run's journal."""
        config = JournalConfig(
            project_id=self.project_id,
            run_id=self.run_id,
            job_id=self.job_id,
            token=self.token,
            budgets={
                "day": "2026-11-30",
                "project": self.project_id,
                "agent": "desk",
                "run": self.run_id,
            },
            patience=StorePatience(total_s=20.0, first_s=0.02, most_s=0.2),
        )
        return replace(config, **changes)

    def budget(self, kind: str, subject: str, **limits: float) -> None:
        """Creates a budget with limits on the named quantities."""
        columns = "".join(f", limit_{name}" for name in limits)
        values = "".join(", %s" for _ in limits)
        self.database.query(
            f"insert into budget (id, project_id, kind, subject{columns})"
            f" values (%s, %s, %s, %s{values})",
            new_id(),
            self.project_id,
            kind,
            subject,
            *limits.values(),
        )

    def spent(self, kind: str) -> tuple[int, int, int, int]:
        """Reserved and spent rollouts, then reserved and spent tokens, of a budget."""
        row = self.database.query(
            "select reserved_rollouts, spent_rollouts, reserved_tokens, spent_tokens"
            " from budget where kind = %s",
            kind,
        )[0]
        return row[0], row[1], row[2], row[3]

    def take_over(self) -> HeldRun:
        """The same run for the next holder, after its lease was given to it."""
        self.database.query(
            "update job set fencing_token = fencing_token + 1 where id = %s", self.job_id
        )
        return replace(self, token=self.token + 1)


def make_run(database: Any, version_id: str | None = None) -> HeldRun:
    """Inserts a run with a leased job; also the agent version, unless one is given."""
    project, run_id, job_id = database.project_id, new_id(), new_id()
    if version_id is None:
        artifact, version_id, digest = new_id(), new_id(), content_hash(b"{}")
        database.query(
            "insert into artifact (id, project_id, kind, name, last_version)"
            " values (%s, %s, 'agent', 'desk', 1)",
            artifact,
            project,
        )
        database.query(
            "insert into blob (project_id, digest, size, content) values (%s, %s, 2, '{}')",
            project,
            digest,
        )
        database.query(
            "insert into version (id, project_id, artifact_id, number, blob_digest, media_type,"
            " author_kind) values (%s, %s, %s, 1, %s, 'application/json', 'person')",
            version_id,
            project,
            artifact,
            digest,
        )
    database.query(
        "insert into job (id, project_id, kind, state, fencing_token) values"
        " (%s, %s, 'evolution', 'running', 1)",
        job_id,
        project,
    )
    database.query(
        "insert into evolution_run (id, project_id, agent, state, evolver, incumbent_version_id,"
        " incumbent_digest, job_id) values (%s, %s, 'desk', 'running', 'bootstrap', %s, 'd', %s)",
        run_id,
        project,
        version_id,
        job_id,
    )
    return HeldRun(database, run_id, job_id, version_id)


@pytest.fixture
def held_run(database: Any) -> HeldRun:
    """A run with a leased job."""
    return make_run(database)


@pytest.fixture
def make_held_run() -> Any:
    """The function that adds further runs."""
    return make_run
