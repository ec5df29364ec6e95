"""Who has a run, when he last said so, and what went wrong: shown while it goes on and after."""

from __future__ import annotations

from typing import Any

import pytest

from instar.cli.evolve import _status_words
from instar.evolution import service
from instar.evolution.schemas import EvolutionSpec, RunStatus
from instar.settings import Settings
from instar.store.agents import save_agent
from instar.store.artifacts import ArtifactRef
from instar.store.audit import SYSTEM
from instar.store.evolution import read_evolution_run
from instar.store.job_ends import give_back_job
from instar.store.jobs import renew_lease, start_job
from instar.store.labels import LabelMove, move_label
from instar.store.session import Database
from instar.store.system import claim_job
from instar.store.task_sets import create_task_set
from instar_core.evolution import AcceptanceConfig
from instar_evolvers.worlds import open_world

pytestmark = pytest.mark.postgres
SPEC = EvolutionSpec(
    agent="desk",
    task_set="requests",
    evolver="bootstrap",
    evolver_config={"search_rollouts": 120},
    acceptance=AcceptanceConfig(max_pairs=80),
    validation_tasks=24,
)


async def _start(db: Database, project: str) -> RunStatus:
    world = open_world("world:planted:seed=3,steps=1")
    tasks = world.tasks()
    async with db.transaction(project) as session:
        made = await save_agent(session, project, "desk", world.seed_candidate(), author=SYSTEM)
        ref = ArtifactRef(project, "agent", "desk")
        await move_label(session, ref, LabelMove("production", made.version, None), SYSTEM)
        everything = (*tasks.train, *tasks.validation, *tasks.sealed)
        await create_task_set(session, project, "requests", everything, author=SYSTEM)
    return await service.start_run(db, project, SPEC, by="anna", settings=Settings())


def test_s119_s120_a_run_shows_its_owner_its_heartbeat_and_its_last_error(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        waiting = await _start(db, project)
        assert (waiting.worker, waiting.heartbeat_at, waiting.last_error) == ("", None, "")
        async with db.transaction(project) as session:
            job = str((await read_evolution_run(session, waiting.id)).job_id)
        async with db.system() as session:
            claim = await claim_job(session, job, worker="barn/7", lease_s=600.0)
        assert claim is not None
        async with db.transaction(project) as session:
            await start_job(session, job, claim.fencing_token)
        first = await service.read_run(db, project, waiting.id)
        assert first.worker == "barn/7" and first.heartbeat_at is not None
        async with db.transaction(project) as session:
            await renew_lease(session, job, claim.fencing_token, lease_s=600.0)
        then = await service.read_run(db, project, waiting.id)
        assert then.heartbeat_at is not None and then.heartbeat_at > first.heartbeat_at
        assert "worker: barn/7, last heard 2" in _status_words(then.model_dump(mode="json"))
        async with db.transaction(project) as session:
            await give_back_job(session, job, claim.fencing_token, error="the provider is away.")
        after = await service.read_run(db, project, waiting.id)
        assert (after.worker, after.last_error) == ("", "the provider is away.")
        assert "last error: the provider is away." in _status_words(after.model_dump(mode="json"))

    database.run(work)
