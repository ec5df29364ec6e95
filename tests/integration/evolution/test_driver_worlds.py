"""The driver on worlds with a known answer: states, verdicts, promotion, cancel, budgets,
resuming."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from instar.evolution import service
from instar.evolution.context import JobContext
from instar.evolution.driver import execute
from instar.evolution.schemas import EvolutionSpec
from instar.settings import Settings
from instar.store.agents import load_candidate, read_agent, save_agent
from instar.store.artifacts import ArtifactRef
from instar.store.audit import SYSTEM
from instar.store.evolution import read_evolution_run
from instar.store.jobs import read_job
from instar.store.labels import LabelMove, move_label
from instar.store.session import Database
from instar.store.system import claim_job
from instar.store.task_sets import create_task_set
from instar_core.errors import ConflictError, InfrastructureError, StaleProposal, UserError
from instar_core.evolution import AcceptanceConfig
from instar_core.usage import Remaining
from instar_evolvers.worlds import open_world

pytestmark = pytest.mark.postgres

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


async def _register(db: Database, project: str, world: str) -> None:
    made = open_world(world)
    tasks = made.tasks()
    async with db.transaction(project) as session:
        version = await save_agent(session, project, "desk", made.seed_candidate(), author=SYSTEM)
        await move_label(
            session,
            ArtifactRef(project, "agent", "desk"),
            LabelMove("production", version.version, None),
            SYSTEM,
        )
        await create_task_set(
            session,
            project,
            "requests",
            (*tasks.train, *tasks.validation, *tasks.sealed),
            author=SYSTEM,
        )


async def _claim(db: Database, project: str, run_id: str, **changes: Any) -> JobContext:
    """What a worker does: claims the run's job."""
    async with db.transaction(project) as session:
        job_id = str((await read_evolution_run(session, run_id)).job_id)
    async with db.system() as session:
        claim = await claim_job(session, job_id, worker="test", lease_s=600.0)
    assert claim is not None, "the job can be claimed"
    context = JobContext(
        db=db,
        project_id=project,
        run_id=run_id,
        job_id=job_id,
        fencing_token=claim.fencing_token,
        settings=_SETTINGS,
    )
    return replace(context, **changes)


async def _night(
    db: Database, project: str, spec: EvolutionSpec, *, world: str = "world:planted:seed=3,steps=1"
) -> Any:
    await _register(db, project, world)
    started = await service.start_run(db, project, spec, by="anna", settings=_SETTINGS)
    assert started.state == "queued"
    await execute(await _claim(db, project, started.id))
    return await service.read_run(db, project, started.id)


def test_a_planted_gain_is_found_tested_promoted_and_rolled_back(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        status = await _night(db, project, _SPEC.model_copy(update={"promotion": "auto"}))
        assert (status.state, status.verdict) == ("succeeded", "accepted"), status
        assert "Promoted" in status.reason and status.phase == "done"
        assert status.best_mean > status.baseline_mean
        assert 0 < status.rollouts_done <= status.quote.limit.rollouts
        assert status.candidates >= 1 and status.attempts == 1
        async with db.transaction(project) as session:
            promoted = await read_agent(session, project, "desk", "production")
            candidate = await load_candidate(session, project, "desk", "production")
        assert promoted.version == 2 and candidate.digest == promoted.digest
        promotion = await service.read_promotion(db, project, status.promotion_id)
        assert (promotion.from_version, promotion.to_version) == (1, 2)
        back = await service.rollback_promotion(
            db, project, promotion.id, by="anna", cause="live results are worse"
        )
        assert back.state == "rolled_back" and back.cause == "live results are worse"
        again = await service.rollback_promotion(db, project, promotion.id, by="b", cause="twice")
        assert again.cause == back.cause
        with pytest.raises(ConflictError, match="was rolled back since"):
            await service.approve_proposal(db, project, status.proposal_id, by="anna")
        async with db.transaction(project) as session:
            assert (await read_agent(session, project, "desk", "production")).version == 1
        events = await service.list_events(db, project, status.id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        proposal = await service.read_proposal(db, project, status.proposal_id)
        assert proposal.outcome is not None and proposal.outcome.pairs > 0

    database.run(work)
    assert database.query("select reserved_rollouts, reserved_tokens from budget") == [(0, 0)]


def test_s15_a_person_decides_and_only_once(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        status = await _night(db, project, _SPEC)
        assert status.state == "succeeded" and "waits for a person" in status.reason
        # A job proposes and nothing more: the version exists, and no label moved.
        async with db.transaction(project) as session:
            assert (await read_agent(session, project, "desk", "production")).version == 1
            assert (await read_agent(session, project, "desk", "latest")).version == 2
        outcomes = await asyncio.gather(
            *(
                service.approve_proposal(db, project, status.proposal_id, by=f"p{i}")
                for i in range(4)
            )
        )
        assert len({one.id for one in outcomes}) == 1
        with pytest.raises(ConflictError):
            await service.reject_proposal(db, project, status.proposal_id, by="late")

    database.run(work)
    assert database.query("select count(*) from promotion") == [(1,)]


def test_s20_a_promoted_version_names_its_run_reason_evidence_and_time(database: Any) -> None:
    async def work(db: Database) -> str:
        spec = _SPEC.model_copy(update={"promotion": "auto"})
        status = await _night(db, database.project_id, spec)
        return str(status.id)

    run_id = database.run(work)
    version = database.query(
        "select v.author_kind, v.author, v.reason, v.evidence, v.created_at is not null from"
        " version v join artifact a on a.id = v.artifact_id"
        " where a.kind = 'agent' and v.number = 2"
    )
    kind, author, reason, evidence, dated = version[0]
    assert (kind, author, dated) == ("run", run_id, True) and reason
    assert evidence["validation_mean"] > evidence["incumbent_validation_mean"]
    stored = {row[0] for row in database.query("select cast(id as text) from rollout")}
    assert evidence["rollout_ids"] and set(evidence["rollout_ids"]) <= stored
    moves = database.query(
        "select actor_kind, actor, cause, from_number, to_number from label_event"
        " where label = 'production' order by created_at"
    )
    proposal = database.query("select cast(id as text), cast(run_id as text) from proposal")
    assert proposal[0][1] == run_id
    assert moves[-1] == ("run", run_id, f"proposal {proposal[0][0]}", 1, 2)
    actions = [row[0] for row in database.query("select action from audit_event")]
    assert {"evolution.start", "proposal.approve", "label.move"} <= set(actions)


def test_a_label_that_moved_makes_the_proposal_stale(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        status = await _night(db, project, _SPEC)
        async with db.transaction(project) as session:
            seed = await load_candidate(session, project, "desk", 1)
            other = await save_agent(session, project, "desk", seed, author=SYSTEM)
            await move_label(
                session,
                ArtifactRef(project, "agent", "desk"),
                LabelMove("production", other.version, 1, unlock=True),
                SYSTEM,
            )
        for _ in range(2):
            with pytest.raises(StaleProposal, match="test"):
                await service.approve_proposal(db, project, status.proposal_id, by="anna")
        assert (await service.read_proposal(db, project, status.proposal_id)).state == "stale"

    database.run(work)
    assert database.query("select count(*) from promotion") == [(0,)]


def test_of_two_proposals_against_one_incumbent_one_wins(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        first = await _night(db, project, _SPEC)
        spec = _SPEC.model_copy(update={"seed": 6})
        again = await service.start_run(db, project, spec, by="anna", settings=_SETTINGS)
        assert again.quote.assumptions["seconds_from"] == "earlier rollouts"
        assert again.quote.alpha_t > first.quote.alpha_t / 3, "R of e-LOND counts the acceptance"
        await execute(await _claim(db, project, again.id))
        second = await service.read_run(db, project, again.id)
        assert first.verdict == second.verdict == "accepted"
        outcomes = await asyncio.gather(
            *(
                service.approve_proposal(db, project, str(one.proposal_id), by="anna")
                for one in (first, second)
            ),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in outcomes) == ["PromotionView", "StaleProposal"]

    database.run(work)
    assert database.query("select count(*) from promotion") == [(1,)]
    assert sorted(database.query("select state from proposal")) == [("approved",), ("stale",)]
    assert database.query("select tests, accepted from sealed_epoch") == [(2, 2)]


def test_nothing_to_gain_ends_without_a_promotion(database: Any) -> None:
    async def work(db: Database) -> None:
        spec = _SPEC.model_copy(update={"promotion": "auto", "seed": 11})
        status = await _night(db, database.project_id, spec, world="world:null:seed=4,steps=1")
        assert status.state == "no_improvement", status
        assert status.reason and status.promotion_id is None

    database.run(work)


def test_a_run_goes_on_after_its_worker_died(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await _register(db, project, "world:planted:seed=3,steps=1,latency_ms=2")
        started = await service.start_run(db, project, _SPEC, by="anna", settings=_SETTINGS)
        for _ in range(3):
            calls = 0

            def leave() -> bool:
                nonlocal calls
                calls += 1
                return calls > 150

            with pytest.raises(InfrastructureError, match="shuts down"):
                await execute(await _claim(db, project, started.id, cancelled=leave))
            database.query("update job set lease_until = now() - interval '1 second'")
        await execute(await _claim(db, project, started.id))
        status = await service.read_run(db, project, started.id)
        assert (status.state, status.verdict) == ("succeeded", "accepted"), status
        assert status.attempts == 4 and status.replayed > 0
        repeated = database.query("select count(*) from effect where attempt > 1")[0][0]
        assert repeated <= status.in_flight_lost

    database.run(work)


def test_cancelling_ends_a_running_and_a_waiting_run(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await _register(db, project, "world:planted:seed=3,steps=1,latency_ms=5")
        waiting = await service.start_run(db, project, _SPEC, by="anna", settings=_SETTINGS)
        ended = await service.cancel_run(db, project, waiting.id, by="anna")
        assert ended.state == "cancelled"
        started = await service.start_run(db, project, _SPEC, by="anna", settings=_SETTINGS)
        context = await _claim(db, project, started.id)
        running = asyncio.create_task(execute(context))
        while not (await service.read_run(db, project, started.id)).rollouts_done:
            await asyncio.wait([running], timeout=0.02)
        await service.cancel_run(db, project, started.id, by="anna")
        await running
        status = await service.read_run(db, project, started.id)
        assert status.state == "cancelled" and status.rollouts_done > 0
        assert (await service.cancel_run(db, project, started.id, by="x")).state == "cancelled"
        async with db.transaction(project) as session:
            assert (await read_job(session, context.job_id)).cancel_requested

    database.run(work)
    assert database.query("select sum(reserved_rollouts), sum(reserved_tokens) from budget") == [
        (0, 0)
    ]


def test_an_exhausted_budget_keeps_the_best_evidence(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await _register(db, project, "world:planted:seed=3,steps=2")
        started = await service.start_run(db, project, _SPEC, by="anna", settings=_SETTINGS)
        database.query("update budget set limit_tokens = 12000")
        await execute(await _claim(db, project, started.id))
        status = await service.read_run(db, project, started.id)
        assert status.state == "budget_exhausted", status
        assert "tokens" in status.reason and status.baseline_mean is not None
        assert status.tokens <= 12000

    database.run(work)
    result = database.query("select result from evolution_run")[0][0]
    assert result["incumbent"]["validation_mean"] is not None


def test_the_same_key_starts_a_run_once(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await _register(db, project, "world:planted:seed=3,steps=1")

        async def start(spec: EvolutionSpec) -> Any:
            return await service.start_run(
                db, project, spec, by="a", idempotency_key="k", settings=_SETTINGS
            )

        made = await asyncio.gather(*(start(_SPEC) for _ in range(3)))
        assert len({one.id for one in made}) == 1
        with pytest.raises(ConflictError, match="another specification"):
            await start(_SPEC.model_copy(update={"seed": 99}))

    database.run(work)
    assert database.query("select count(*) from job") == [(1,)]


def test_s24_a_quote_refuses_what_could_not_show_a_gain(database: Any) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        await _register(db, project, "world:planted:seed=3,steps=1")

        async def quote(**changes: Any) -> Any:
            spec = _SPEC.model_copy(update=changes)
            return await service.create_quote(db, project, spec, settings=_SETTINGS)

        made = await quote()
        assert made.sealed_pairs == 80 and made.seconds_per_rollout > 0
        assert made.smallest_detectable_effect is not None
        assert "probe" in str(made.assumptions["seconds_from"])
        with pytest.raises(UserError, match="8 rollouts cannot show any gain"):
            await quote(limit=Remaining(rollouts=8))
        with pytest.raises(UserError, match="could not be detected"):
            await quote(target_effect=0.01)
        with pytest.raises(UserError, match="limit is 10"):
            await quote(limit=Remaining(tokens=10))

    database.run(work)
