"""A real evolution run on a world with a known answer, for tests of what a run leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from instar.evolution import service
from instar.evolution.context import JobContext
from instar.evolution.driver import execute
from instar.evolution.schemas import EvolutionSpec
from instar.settings import Settings
from instar.store.agents import save_agent
from instar.store.artifacts import ArtifactRef
from instar.store.audit import Author
from instar.store.evolution import read_evolution_run
from instar.store.labels import LabelMove, move_label
from instar.store.session import Database
from instar.store.system import claim_job
from instar.store.task_sets import create_task_set
from instar_core.evolution import AcceptanceConfig
from instar_evolvers.worlds import open_world

ANNA = Author("person", "user:anna")
_WORLD = "world:planted:seed=3,steps=1"
_SETTINGS = Settings()
_SPEC = EvolutionSpec(
    agent="desk",
    task_set="requests",
    evolver="bootstrap",
    evolver_config={"search_rollouts": 120},
    acceptance=AcceptanceConfig(max_pairs=80),
    validation_tasks=24,
    seed=5,
)


@dataclass(frozen=True)
class Nights:
    """Registers the sample agent of a world, and runs nights on it."""

    project_id: str

    async def register(self, db: Database) -> None:
        """Saves agent and task set as a person, and points ``production`` at version 1."""
        made = open_world(_WORLD)
        tasks = made.tasks()
        project = self.project_id
        async with db.transaction(project) as session:
            version = await save_agent(session, project, "desk", made.seed_candidate(), author=ANNA)
            ref = ArtifactRef(project, "agent", "desk")
            await move_label(session, ref, LabelMove("production", version.version, None), ANNA)
            every = (*tasks.train, *tasks.validation, *tasks.sealed)
            await create_task_set(session, project, "requests", every, author=ANNA)

    async def night(self, db: Database, **changes: Any) -> Any:
        """One run to its end; its status."""
        project = self.project_id
        spec = _SPEC.model_copy(update=changes)
        started = await service.start_run(db, project, spec, by="anna", settings=_SETTINGS)
        async with db.transaction(project) as session:
            job_id = str((await read_evolution_run(session, started.id)).job_id)
        async with db.system() as session:
            claim = await claim_job(session, job_id, worker="test", lease_s=600.0)
        assert claim is not None, "the job can be claimed"
        await execute(
            JobContext(
                db=db,
                project_id=project,
                run_id=started.id,
                job_id=job_id,
                fencing_token=claim.fencing_token,
                settings=_SETTINGS,
            )
        )
        return await service.read_run(db, project, started.id)


@pytest.fixture
def nights(database: Any) -> Nights:
    """Nights in the test's database."""
    return Nights(database.project_id)
