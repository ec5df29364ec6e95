"""Evolution runs: their rows, candidates, evaluations and events.

A run's row is written by the service before its job exists, and after that only by the worker that
holds the job's lease, which locks it first (:func:`instar.store.effects.lock_run`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Text, cast, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from instar.redaction import redact_text
from instar.store.pages import Page, read_page
from instar.store.rows import read_row
from instar.store.tables import (
    BudgetRow,
    CandidateRow,
    EvaluationRow,
    EvolutionRunRow,
    JobRow,
    RolloutRow,
    RunEventRow,
)
from instar_core.base import JsonValue, new_id
from instar_core.candidates import Candidate

__all__ = [
    "NewEvolution",
    "Scores",
    "change_progress",
    "create_evolution_run",
    "find_run_by_key",
    "find_runs_with_reservations",
    "latest_measurement",
    "list_candidates",
    "list_evaluations",
    "list_evolution_runs",
    "list_rollout_ids",
    "list_run_events",
    "read_evolution_run",
    "JobFacts",
    "read_job_facts",
    "save_candidate",
    "save_scores",
    "update_run",
]


class NewEvolution(NamedTuple):
    """A run about to be queued."""

    id: str
    agent: str
    label: str
    evolver: str
    spec: JsonValue
    quote: JsonValue
    seed: int
    incumbent_version_id: str
    incumbent_digest: str
    task_set_version_id: str
    job_id: str
    created_by: str
    progress: dict[str, Any]
    idempotency_key: str | None = None


class Scores(NamedTuple):
    """A candidate's scores on one split so far: task id → mean reward."""

    candidate_digest: str
    split: str
    rollouts: int
    mean: float | None
    by_task: dict[str, float]


async def create_evolution_run(
    session: AsyncSession, project_id: str, new: NewEvolution
) -> EvolutionRunRow:
    """Adds a queued run; its job is added in the same transaction by the caller."""
    row = EvolutionRunRow(
        id=new.id,
        project_id=project_id,
        agent=new.agent,
        label=new.label,
        state="queued",
        evolver=new.evolver,
        config=new.spec,
        quote=new.quote,
        seed=new.seed,
        incumbent_version_id=new.incumbent_version_id,
        incumbent_digest=new.incumbent_digest,
        task_set_version_id=new.task_set_version_id,
        job_id=new.job_id,
        created_by=new.created_by,
        progress=new.progress,
        idempotency_key=new.idempotency_key,
    )
    session.add(row)
    await session.flush()
    return row


async def find_run_by_key(session: AsyncSession, key: str) -> EvolutionRunRow | None:
    """The run that was started with an idempotency key."""
    row: EvolutionRunRow | None = await session.scalar(
        select(EvolutionRunRow).where(EvolutionRunRow.idempotency_key == key)
    )
    return row


async def read_evolution_run(
    session: AsyncSession, run_id: str, *, lock: bool = False
) -> EvolutionRunRow:
    """The run.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    return await read_row(session, EvolutionRunRow, run_id, "evolution run", lock=lock)


async def list_evolution_runs(
    session: AsyncSession,
    project_id: str,
    agent: str | None = None,
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[EvolutionRunRow]:
    """The project's evolution runs (of one agent), newest first."""
    query = select(EvolutionRunRow).where(EvolutionRunRow.project_id == project_id)
    if agent is not None:
        query = query.where(EvolutionRunRow.agent == agent)
    return await read_page(session, query, EvolutionRunRow, limit=limit, cursor=cursor)


async def find_runs_with_reservations(
    session: AsyncSession, states: Sequence[str]
) -> list[EvolutionRunRow]:
    """Runs in these states whose own budget still has something reserved; their rows are locked."""
    rows = await session.scalars(
        select(EvolutionRunRow)
        .join(BudgetRow, BudgetRow.subject == cast(EvolutionRunRow.id, Text))
        .where(
            BudgetRow.kind == "run",
            EvolutionRunRow.state.in_(states),
            (BudgetRow.reserved_rollouts > 0)
            | (BudgetRow.reserved_tokens > 0)
            | (BudgetRow.reserved_cost_usd > 0),
        )
        .order_by(EvolutionRunRow.id)
        .with_for_update(of=EvolutionRunRow)
    )
    return list(rows)


class JobFacts(NamedTuple):
    """Who has a job, when he last said so, and what went wrong last."""

    state: str = ""
    worker: str = ""
    heartbeat_at: datetime | None = None
    last_error: str = ""


async def read_job_facts(session: AsyncSession, job_ids: Sequence[str]) -> dict[str, JobFacts]:
    """Job id → what is known of it."""
    rows = await session.execute(
        select(
            JobRow.id, JobRow.state, JobRow.worker, JobRow.heartbeat_at, JobRow.last_error
        ).where(JobRow.id.in_(job_ids))
    )
    return {str(row[0]): JobFacts(row[1], row[2], row[3], row[4]) for row in rows}


async def update_run(session: AsyncSession, run_id: str, **values: Any) -> None:
    """Sets columns of a run; whoever calls it holds the run's lock or creates it."""
    if "reason" in values:
        values["reason"] = redact_text(values["reason"])
    await session.execute(
        update(EvolutionRunRow).where(EvolutionRunRow.id == run_id).values(**values)
    )


async def change_progress(
    session: AsyncSession, run_id: str, changes: Mapping[str, JsonValue]
) -> None:
    """Merges values into what a run shows of its progress."""
    await session.execute(
        text(
            "update instar.evolution_run set progress = progress || cast(:changes as jsonb)"
            " where id = cast(:run as uuid)"
        ),
        {"run": run_id, "changes": json.dumps(dict(changes))},
    )


async def save_candidate(
    session: AsyncSession, project_id: str, run_id: str, candidate: Candidate
) -> None:
    """Keeps a candidate that a run looked at; one that is there already stays as it is."""
    await session.execute(
        text(
            "insert into instar.candidate (id, project_id, run_id, digest, content, parents, note)"
            " values (cast(:id as uuid), cast(:project as uuid), cast(:run as uuid), :digest,"
            " cast(:content as json), cast(:parents as json), cast(:note as json))"
            " on conflict (run_id, digest) do nothing"
        ),
        {
            "id": new_id(),
            "project": project_id,
            "run": run_id,
            "digest": candidate.digest,
            "content": json.dumps(candidate.model_dump(mode="json")),
            "parents": json.dumps(list(candidate.parents)),
            "note": json.dumps(candidate.note),
        },
    )


async def save_scores(session: AsyncSession, project_id: str, run_id: str, scores: Scores) -> None:
    """Keeps a candidate's scores on a split as they are now, in place of those before."""
    values: dict[str, Any] = {
        "rollouts": scores.rollouts,
        "mean": scores.mean,
        "scores": scores.by_task,
    }
    found = await session.execute(
        update(EvaluationRow)
        .where(
            EvaluationRow.run_id == run_id,
            EvaluationRow.candidate_digest == scores.candidate_digest,
            EvaluationRow.split == scores.split,
        )
        .values(**values)
        .returning(EvaluationRow.id)
    )
    if found.first() is None:
        session.add(
            EvaluationRow(
                id=new_id(),
                project_id=project_id,
                run_id=run_id,
                candidate_digest=scores.candidate_digest,
                split=scores.split,
                **values,
            )
        )
        await session.flush()


async def list_candidates(session: AsyncSession, run_id: str) -> list[CandidateRow]:
    """The candidates of a run, in the order in which they appeared."""
    rows = await session.scalars(
        select(CandidateRow).where(CandidateRow.run_id == run_id).order_by(CandidateRow.id)
    )
    return list(rows)


async def list_evaluations(session: AsyncSession, run_id: str) -> list[EvaluationRow]:
    """The evaluations of a run, by candidate and split."""
    rows = await session.scalars(
        select(EvaluationRow)
        .where(EvaluationRow.run_id == run_id)
        .order_by(EvaluationRow.candidate_digest, EvaluationRow.split)
    )
    return list(rows)


async def list_run_events(
    session: AsyncSession, run_id: str, *, after_seq: int, limit: int
) -> list[RunEventRow]:
    """Events of a run with numbers above ``after_seq``, in order."""
    rows = await session.scalars(
        select(RunEventRow)
        .where(RunEventRow.run_id == run_id, RunEventRow.seq > after_seq)
        .order_by(RunEventRow.seq)
        .limit(limit)
    )
    return list(rows)


async def list_rollout_ids(session: AsyncSession, run_id: str) -> set[str]:
    """The ids of the rollouts that are stored for a run."""
    rows = await session.scalars(select(RolloutRow.id).where(RolloutRow.run_id == run_id))
    return set(rows)


async def latest_measurement(
    session: AsyncSession, project_id: str, harness: str
) -> dict[str, Any] | None:
    """What the newest run under a harness measured per rollout: seconds, tokens and dollars."""
    row = await session.scalar(
        select(EvolutionRunRow.progress["per_rollout"])
        .where(
            EvolutionRunRow.project_id == project_id,
            EvolutionRunRow.progress["harness"].astext == harness,
            EvolutionRunRow.progress["per_rollout"].is_not(None),
            func.jsonb_typeof(EvolutionRunRow.progress["per_rollout"]) == "object",
        )
        .order_by(EvolutionRunRow.created_at.desc(), EvolutionRunRow.id.desc())
        .limit(1)
    )
    return dict(row) if row is not None else None
