"""Quotes: what is refused before anything is spent, what probing costs, and what is promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from instar.evolution import service
from instar.evolution.schemas import EvolutionSpec
from instar.settings import ModelSettings, Settings
from instar.store.agents import save_agent
from instar.store.artifacts import ArtifactRef, set_job_access
from instar.store.audit import SYSTEM, Author
from instar.store.labels import LabelMove, move_label
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar_core.candidates import Candidate, Component, Demonstrations, Harness
from instar_core.errors import BudgetExhausted, PrerequisiteError, UserError
from instar_core.evolution import AcceptanceConfig
from instar_core.statistics.power import promised_effect
from instar_core.tasks import Split, Task, VerifierSpec
from instar_core.usage import Remaining

pytestmark = pytest.mark.postgres

_LOCAL = "local/smollm2-135m-instruct"


def _agent(model: str) -> Candidate:
    return Candidate(
        components={
            "lessons": Component(kind="lessons", content={"entries": []}, owner="job"),
            "demonstrations": Component(
                kind="demonstrations",
                content=Demonstrations().model_dump(mode="json"),
                owner="job",
            ),
        },
        harness=Harness(model=model),
    )


def _tasks() -> list[Task]:
    splits: list[tuple[Split, int]] = [("train", 6), ("validation", 12), ("sealed", 40)]
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


async def _register(db: Database, project: str, model: str) -> None:
    async with db.transaction(project) as session:
        saved = await save_agent(session, project, "clerk", _agent(model), author=SYSTEM)
        move = LabelMove("production", saved.version, None)
        await move_label(session, ArtifactRef(project, "agent", "clerk"), move, SYSTEM)
        await create_task_set(session, project, "letters", _tasks(), author=SYSTEM)


def _spec(**changes: Any) -> EvolutionSpec:
    values: dict[str, Any] = {
        "agent": "clerk",
        "task_set": "letters",
        "acceptance": AcceptanceConfig(max_pairs=40),
    }
    return EvolutionSpec(**{**values, **changes})


def _settings(folder: Path, *replies: str) -> Settings:
    script = {"rules": [{"match": "letter", "reply": replies or ["archive", "attic"]}]}
    (folder / "clerk.json").write_text(json.dumps(script))
    return Settings(models=ModelSettings(scripts_dir=folder))


def test_a_model_too_small_to_reflect_is_not_asked_to(database: Any, tmp_path: Path) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await _register(db, project, _LOCAL)
        spec = _spec(evolver="tf_grpo")
        for start in (False, True):
            with pytest.raises(UserError, match="too small to reflect") as caught:
                if start:
                    await service.start_run(db, project, spec, by="anna")
                else:
                    await service.create_quote(db, project, spec)
            assert _LOCAL in caught.value.message
            assert "bootstrap" in caught.value.remedy
        # With another proposer, only the engine is missing here.
        settings = _settings(tmp_path)
        settings.engine.port = 1
        with pytest.raises(PrerequisiteError, match="cannot be asked now"):
            await service.create_quote(
                db, project, _spec(evolver="tf_grpo", model="scripted/clerk"), settings=settings
            )

    database.run(work)
    assert database.query("select count(*) from evolution_run") == [(0,)]


def test_probes_are_told_booked_and_audited(database: Any, tmp_path: Path) -> None:
    project, settings = database.project_id, _settings(tmp_path)

    async def work(db: Database) -> None:
        await _register(db, project, "scripted/clerk")
        await service.set_budget(db, project, "agent", "clerk", Remaining(rollouts=1000), by="anna")
        quote = await service.create_quote(db, project, _spec(), settings=settings)
        assert quote.probes.rollouts == 12
        assert quote.probes.tokens > 0
        assert any("twice the tokens" in words for words in quote.warnings)
        base = float(str(quote.assumptions["base_rate"]))
        assert quote.smallest_detectable_effect == pytest.approx(
            promised_effect(quote.sealed_pairs, quote.alpha_t, base=base), abs=0.01
        )

    database.run(work)
    row = database.query("select spent_rollouts, spent_tokens, reserved_rollouts from budget")[0]
    assert row[0] == 12
    assert row[1] > 0
    assert row[2] == 0
    assert database.query("select count(*) from audit_event where action = 'evolution.probe'") == [
        (1,)
    ]


def test_nothing_is_probed_on_an_exhausted_budget(database: Any, tmp_path: Path) -> None:
    project, settings = database.project_id, _settings(tmp_path)

    async def work(db: Database) -> None:
        await _register(db, project, "scripted/clerk")
        await service.set_budget(db, project, "project", project, Remaining(rollouts=5), by="anna")
        with pytest.raises(BudgetExhausted, match="Nothing was measured"):
            await service.create_quote(db, project, _spec(), settings=settings)

    database.run(work)
    assert database.query("select spent_rollouts from budget") == [(0,)]


@pytest.mark.parametrize(
    "changes",
    [
        {"evolver_config": {"search_rollouts": 5}},
        {"limit": Remaining(rollouts=12 + 23 + 40)},
        {"limit": Remaining(rollouts=0)},
    ],
)
def test_a_search_that_can_tell_nothing_is_refused(
    database: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    project, settings = database.project_id, _settings(tmp_path)

    async def work(db: Database) -> None:
        await _register(db, project, "scripted/clerk")
        with pytest.raises(UserError, match="cannot show any gain|can tell nothing"):
            await service.create_quote(db, project, _spec(**changes), settings=settings)

    database.run(work)


def test_an_agent_that_always_succeeds_has_nothing_to_gain(database: Any, tmp_path: Path) -> None:
    project, settings = database.project_id, _settings(tmp_path, "archive")

    async def work(db: Database) -> None:
        await _register(db, project, "scripted/clerk")
        with pytest.raises(UserError, match="scores about 0.94, so a gain is at most 0.06"):
            await service.create_quote(db, project, _spec(), settings=settings)

    database.run(work)


@pytest.mark.parametrize("evolver", ["bootstrap", "tf_grpo"])
def test_an_agent_without_a_part_to_change_costs_no_rollout(
    database: Any, tmp_path: Path, evolver: str
) -> None:
    project, settings = database.project_id, _settings(tmp_path)

    async def work(db: Database) -> None:
        await _register(db, project, "scripted/clerk")
        fixed = Candidate(
            components={"i": Component(kind="instructions", content="Name the queue.")},
            harness=Harness(model="scripted/clerk"),
        )
        async with db.transaction(project) as session:
            await save_agent(session, project, "clerk", fixed, author=SYSTEM)
        with pytest.raises(UserError, match="no trainable component"):
            spec = _spec(version="latest", evolver=evolver)
            await service.start_run(db, project, spec, by="anna", settings=settings)

    database.run(work)
    assert database.query("select count(*) from audit_event where action = 'evolution.probe'") == [
        (0,)
    ]


def test_a_value_that_no_database_holds_is_a_persons_mistake(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        for value in ("a\x00b", "9" * 40):
            with pytest.raises(UserError, match="cannot be stored"):
                async with db.transaction(project) as session:
                    statement = (
                        "select cast(:value as text)"
                        if "\x00" in value
                        else ("select cast(:value as bigint)")
                    )
                    await session.execute(text(statement), {"value": value})

    database.run(work)


def test_a_night_on_what_is_closed_to_runs_is_refused_before_it_spends(
    database: Any, tmp_path: Path
) -> None:
    project, settings = database.project_id, _settings(tmp_path)

    async def work(db: Database) -> None:
        await _register(db, project, "scripted/clerk")
        lessons = ArtifactRef(project, "lessons", "clerk/lessons")
        async with db.transaction(project) as session:
            await set_job_access(session, lessons, "none", Author("person", "anna"))
        with pytest.raises(UserError, match="its component 'lessons' may only be read") as caught:
            await service.start_run(db, project, _spec(), by="anna", settings=settings)
        assert "--job-access overlay" in caught.value.remedy
        async with db.transaction(project) as session:
            await set_job_access(session, lessons, "overlay", Author("person", "anna"))
        assert (await service.create_quote(db, project, _spec(), settings=settings)).sealed_pairs

    database.run(work)
    assert database.query("select count(*) from evolution_run") == [(0,)]
