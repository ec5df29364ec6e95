"""A quote and the run started on it pay once for the same measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from instar.evolution import service
from instar.evolution.schemas import EvolutionSpec
from instar.settings import ModelSettings, Settings
from instar.store.agents import save_agent
from instar.store.audit import SYSTEM
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar_core.candidates import Candidate, Component, Demonstrations, Harness
from instar_core.evolution import AcceptanceConfig
from instar_core.tasks import Split, Task, VerifierSpec

pytestmark = pytest.mark.postgres

_SPLITS: tuple[tuple[Split, int], ...] = (("train", 6), ("validation", 12), ("sealed", 40))
_PROBES = "select count(*) from audit_event where action = 'evolution.probe'"


def _agent(words: str) -> Candidate:
    shown = Demonstrations().model_dump(mode="json")
    return Candidate(
        components={
            "instructions": Component(kind="instructions", content=words),
            "demonstrations": Component(kind="demonstrations", content=shown, owner="job"),
        },
        harness=Harness(model="scripted/clerk"),
    )


def _tasks() -> list[Task]:
    return [
        Task(
            id=f"{split}-{i}",
            input=f"Where does letter {split} {i} go?",
            split=split,
            group=f"{split}-{i}",
            verifier=VerifierSpec(name="exact", config={"answer": "archive"}),
            reference_answer="archive",
        )
        for split, count in _SPLITS
        for i in range(count)
    ]


async def _save(db: Database, project: str, words: str) -> None:
    async with db.transaction(project) as session:
        await save_agent(session, project, "clerk", _agent(words), author=SYSTEM)


def _settings(folder: Path) -> Settings:
    script = {"rules": [{"match": "letter", "reply": ["archive", "attic"]}]}
    (folder / "clerk.json").write_text(json.dumps(script))
    return Settings(models=ModelSettings(scripts_dir=folder))


def _spec(pairs: int) -> EvolutionSpec:
    rules = AcceptanceConfig(max_pairs=pairs)
    return EvolutionSpec(agent="clerk", version="latest", task_set="letters", acceptance=rules)


def test_the_same_measurement_is_paid_once(database: Any, tmp_path: Path) -> None:
    project, settings = database.project_id, _settings(tmp_path)

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            await create_task_set(session, project, "letters", _tasks(), author=SYSTEM)
        await _save(db, project, "Name the place.")
        first = await service.create_quote(db, project, _spec(40), settings=settings)
        assert first.probes.rollouts == 12
        second = await service.create_quote(db, project, _spec(30), settings=settings)
        assert second.probes.rollouts == 0
        assert second.seconds_per_rollout == first.seconds_per_rollout
        for name in ("tokens_per_rollout", "base_rate", "seconds_from"):
            assert second.assumptions[name] == first.assumptions[name]
        await service.start_run(db, project, _spec(30), by="anna", settings=settings)

    database.run(work)
    assert database.query(_PROBES) == [(1,)]


def test_another_version_is_measured_anew(database: Any, tmp_path: Path) -> None:
    project, settings = database.project_id, _settings(tmp_path)

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            await create_task_set(session, project, "letters", _tasks(), author=SYSTEM)
        await _save(db, project, "Name the place.")
        await service.create_quote(db, project, _spec(40), settings=settings)
        await _save(db, project, "Name the place of the letter.")
        again = await service.create_quote(db, project, _spec(40), settings=settings)
        assert again.probes.rollouts == 12

    database.run(work)
    assert database.query(_PROBES) == [(2,)]
