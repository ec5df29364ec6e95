"""What a run shows, and what it leaves behind when its worker is gone: state, cost, proposals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from instar.evolution import service
from instar.evolution.orphans import settle_orphans
from instar.store.job_ends import mark_run_of_job
from instar.store.promotions import NewProposal, create_proposal
from instar.store.session import Database

pytestmark = pytest.mark.postgres


def test_a_run_taken_up_meanwhile_is_not_called_interrupted(held_run: Any) -> None:
    async def work(db: Database) -> None:
        async def mark() -> list[str]:
            async with db.transaction(held_run.project_id) as session:
                return await mark_run_of_job(session, held_run.job_id, "interrupted", "gone")

        # The reaper freed the job, and another worker took it before the reaper told the run.
        assert await mark() == []
        held_run.database.query("update job set state = 'queued' where id = %s", held_run.job_id)
        assert await mark() == [held_run.run_id]

    held_run.database.run(work)
    assert held_run.database.query("select state, reason from evolution_run") == [
        ("interrupted", "gone")
    ]


def test_a_run_cancelled_without_its_worker_leaves_no_proposal_in_testing(held_run: Any) -> None:
    async def work(db: Database) -> None:
        new = NewProposal(
            run_id=held_run.run_id,
            agent="desk",
            label="production",
            candidate_digest="c",
            agent_version_id=held_run.version_id,
            incumbent_version_id=held_run.version_id,
            evidence={},
            rule="person",
        )
        async with db.transaction(held_run.project_id) as session:
            await create_proposal(session, held_run.project_id, new)
            await settle_orphans(session, held_run.project_id)
        assert held_run.database.query("select state from proposal") == [("testing",)]
        held_run.database.query("update evolution_run set state = 'cancelled', reason = 'stop'")
        async with db.transaction(held_run.project_id) as session:
            await settle_orphans(session, held_run.project_id)

    held_run.database.run(work)
    assert held_run.database.query("select state, decision_reason from proposal") == [
        ("withdrawn", "stop")
    ]


@pytest.mark.parametrize("measured", [None, False, True])
def test_s23_a_cost_that_nobody_knows_is_shown_as_unknown(
    held_run: Any, measured: bool | None
) -> None:
    """Until the run has measured, what its quote knew counts."""
    quote = {
        "expected": {},
        "limit": {},
        "seconds_per_rollout": 1.0,
        "sealed_pairs": 20,
        "alpha_t": 0.013,
        "assumptions": {"cost_known": False},
    }
    progress = {} if measured is None else {"per_rollout": {"cost_known": measured}}
    held_run.database.query(
        "update evolution_run set quote = %s, config = %s, progress = %s",
        json.dumps(quote),
        json.dumps({"agent": "desk", "task_set": "tickets"}),
        json.dumps(progress),
    )

    async def work(db: Database) -> bool:
        return (await service.read_run(db, held_run.project_id, held_run.run_id)).cost_known

    assert held_run.database.run(work) is bool(measured)
