"""The driver on the real agent runtime with a scripted model: from demonstrations to a
promotion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from instar.evolution import driver, quote, service
from instar.evolution.context import JobContext
from instar.evolution.schemas import EvolutionSpec
from instar.settings import ModelSettings, Settings
from instar.store.agents import load_candidate, save_agent
from instar.store.artifacts import ArtifactRef
from instar.store.audit import SYSTEM
from instar.store.evolution import read_evolution_run
from instar.store.labels import LabelMove, move_label
from instar.store.session import Database
from instar.store.system import claim_job
from instar.store.task_sets import create_task_set
from instar_core.candidates import Candidate, Component, Demonstration, Demonstrations, Harness
from instar_core.errors import UserError
from instar_core.evolution import AcceptanceConfig
from instar_core.lab import Lab
from instar_core.messages import Sampling
from instar_core.tasks import Split, Splits, Task, VerifierSpec
from instar_core.usage import Remaining

pytestmark = pytest.mark.postgres

_SCRIPT = {
    "rules": [
        {"match": "archive", "where": "any", "reply": "archive"},
        {"reply": "no idea"},
    ]
}


class ShowsOne:
    """An evolver that shows the first train task's answer."""

    name = "shows_one"
    config = None

    async def evolve(self, seed: Candidate, data: Splits, lab: Lab) -> Candidate:
        """The seed with one demonstration."""
        task = data.train[0]
        shown = Demonstration(id="d1", input=task.input, answer=task.reference_answer)
        content = Demonstrations(pool=(shown,), k=1, order=("d1",)).model_dump(mode="json")
        child = seed.with_component("demonstrations", content, note="one demonstration")
        await lab.rollouts(child, data.validation)
        return child


def _agent(model: str) -> Candidate:
    return Candidate(
        components={
            "instructions": Component(kind="instructions", content="Name the queue."),
            "demonstrations": Component(
                kind="demonstrations",
                content=Demonstrations().model_dump(mode="json"),
                owner="job",
            ),
        },
        harness=Harness(model=model, sampling=Sampling(max_tokens=16)),
    )


def _tasks() -> list[Task]:
    splits: list[tuple[Split, int]] = [("train", 4), ("validation", 12), ("sealed", 24)]
    return [
        Task(
            id=f"{split}-{i}",
            input=f"Where does letter {split} {i} go?",
            split=split,
            group=f"{split}-{i}",
            verifier=VerifierSpec(name="exact", config={"answer": "archive"}),
            reference_answer="archive",
        )
        for split, count in splits
        for i in range(count)
    ]


async def _register(db: Database, project: str, candidate: Candidate) -> None:
    async with db.transaction(project) as session:
        version = await save_agent(session, project, "clerk", candidate, author=SYSTEM)
        move = LabelMove("production", version.version, None)
        await move_label(session, ArtifactRef(project, "agent", "clerk"), move, SYSTEM)
        await create_task_set(session, project, "letters", _tasks(), author=SYSTEM)


def _spec(**changes: Any) -> EvolutionSpec:
    return EvolutionSpec(
        agent="clerk",
        task_set="letters",
        evolver="bootstrap",
        acceptance=AcceptanceConfig(max_pairs=24, min_pairs=10),
        promotion="auto",
        limit=Remaining(rollouts=300),
        **changes,
    )


def test_a_scripted_agent_learns_from_one_demonstration(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clerk.json").write_text(json.dumps(_SCRIPT))
    settings = Settings(models=ModelSettings(scripts_dir=tmp_path))
    for module in (driver, quote):
        monkeypatch.setattr(module, "open_evolver", lambda name, config: ShowsOne())
    monkeypatch.setattr(driver, "evolver_digest", lambda evolver: "shows-one")
    project = database.project_id

    async def work(db: Database) -> None:
        await _register(db, project, _agent("scripted/clerk"))
        started = await service.start_run(db, project, _spec(), by="anna", settings=settings)
        assert started.quote.expected.tokens > 0
        async with db.transaction(project) as session:
            job_id = str((await read_evolution_run(session, started.id)).job_id)
        async with db.system() as session:
            claim = await claim_job(session, job_id, worker="test", lease_s=600.0)
        assert claim is not None
        await driver.execute(
            JobContext(db, project, started.id, job_id, claim.fencing_token, settings)
        )
        status = await service.read_run(db, project, started.id)
        assert (status.state, status.verdict) == ("succeeded", "accepted"), status
        assert (status.baseline_mean, status.best_mean) == (0.0, 1.0)
        assert status.tokens > 0 and status.promotion_id is not None
        async with db.transaction(project) as session:
            promoted = await load_candidate(session, project, "clerk", "production")
        assert promoted.note == "one demonstration"

    database.run(work)
    rollouts = database.query("select count(*), count(reward) from rollout")
    assert rollouts == [(24, 24)], "baseline and search are kept, sealed rollouts are not"
    asked = database.query(
        "select count(*) from effect where kind = 'model_call' and request::text like '%%letter %%'"
    )
    sealed = database.query("select count(*) from effect where request::text like '%%sealed 1%%'")
    assert asked[0][0] > 0 and sealed == [(0,)], "what a sealed rollout asked is not kept"


def test_a_quote_names_a_tool_without_a_test_binding(database: Any, tmp_path: Path) -> None:
    from instar_core.candidates import ToolServer

    (tmp_path / "clerk.json").write_text(json.dumps(_SCRIPT))
    settings = Settings(models=ModelSettings(scripts_dir=tmp_path))
    base = _agent("scripted/clerk")
    harness = base.harness.model_copy(
        update={"tools": (ToolServer(name="tickets"),), "tool_protocol": "text"}
    )
    agent = Candidate(components=base.components, harness=harness)

    async def work(db: Database) -> None:
        await _register(db, database.project_id, agent)
        with pytest.raises(UserError, match="tool server 'tickets' is not registered"):
            await service.create_quote(db, database.project_id, _spec(), settings=settings)

    database.run(work)


def test_s27_a_quote_says_that_the_model_does_not_answer(database: Any) -> None:
    async def work(db: Database) -> None:
        await _register(db, database.project_id, _agent("scripted/absent"))
        with pytest.raises(UserError, match="scripted/absent"):
            await service.create_quote(db, database.project_id, _spec(), settings=Settings())

    database.run(work)
