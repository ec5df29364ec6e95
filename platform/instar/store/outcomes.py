"""Outcomes: what a candidate scored on which task, and what its rollouts cost.

Only tasks of the train and validation splits are ever read. Those of sealed tests are kept apart in
every query: a task that is not known as one of the open splits does not come out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

__all__ = [
    "PROBE",
    "Measured",
    "Spent",
    "TaskOutcomes",
    "latest_probe",
    "measured_scores",
    "spent_on",
    "task_outcomes",
]

PROBE = "evolution.probe"
"""The action of an audit event that keeps what the rollouts made for a quote measured."""

_OPEN = "('train', 'validation')"
_OUTCOMES = text(
    f"""
    select r.task_id, r.task_digest, t.split, r.reward, count(*)
    from instar.rollout r
    join instar.evolution_run e on e.id = r.run_id
    join instar.task t on t.version_id = e.task_set_version_id and t.task_id = r.task_id
    where r.project_id = cast(:project as uuid) and r.candidate_digest = :digest
      and r.sealed_test_id is null and r.reward is not null and r.arm in ('', 'leaveout')
      and t.split in {_OPEN}
    group by r.task_id, r.task_digest, t.split, r.reward
    order by r.task_id, r.task_digest, t.split, r.reward
    limit :most
    """  # noqa: S608 - a constant
)
_SCORES = text(
    f"""
    select distinct on (candidate_digest) candidate_digest, split, rollouts, mean, scores, run_id
    from instar.evaluation
    where project_id = cast(:project as uuid) and candidate_digest = any(:digests)
      and split in {_OPEN} and mean is not null
    order by candidate_digest, (split = 'validation') desc, rollouts desc, created_at desc
    """  # noqa: S608 - a constant
)
_SPENT = text(
    """
    select candidate_digest, count(*), sum((usage ->> 'cost_usd')::float8)
    from instar.rollout
    where project_id = cast(:project as uuid) and candidate_digest = any(:digests)
      and sealed_test_id is null
    group by candidate_digest
    """
)
_PROBED = text(
    """
    select details #> '{measured,per_rollout}'
    from instar.audit_event
    where project_id = cast(:project as uuid) and action = :action
      and details #>> '{measured,about}' = :about and created_at > now() - :within
    order by created_at desc, seq desc
    limit 1
    """
)


class TaskOutcomes(NamedTuple):
    """The rewards of one candidate on one task, each with how often it was given."""

    task_id: str
    task_digest: str
    split: str
    rewards: tuple[tuple[float, int], ...]

    @property
    def n(self) -> int:
        """How many scored rollouts there are."""
        return sum(count for _, count in self.rewards)

    @property
    def mean(self) -> float:
        """The mean reward."""
        return sum(reward * count for reward, count in self.rewards) / self.n


class Measured(NamedTuple):
    """A candidate's largest measurement: validation before train; task id → mean reward."""

    split: str
    rollouts: int
    mean: float
    by_task: dict[str, float]
    run_id: str | None


class Spent(NamedTuple):
    """What a candidate's rollouts took, those of sealed tests left out."""

    rollouts: int
    cost_usd: float


async def task_outcomes(
    session: AsyncSession, project_id: str, digest: str, *, most: int = 50_000
) -> tuple[dict[tuple[str, str], TaskOutcomes], bool]:
    """What a candidate scored on each open task, in all runs of the project.

    Args:
        session: A project transaction.
        project_id: The project.
        digest: The candidate's digest.
        most: The most pairs of task and reward that are read.

    Returns:
        (task id, content digest of the task) → outcomes, and whether there were more than ``most``.
    """
    rows = await session.execute(
        _OUTCOMES, {"project": project_id, "digest": digest, "most": most + 1}
    )
    found = rows.all()
    gathered: dict[tuple[str, str], tuple[str, dict[float, int]]] = {}
    for task_id, task_digest, split, reward, count in found[:most]:
        _, rewards = gathered.setdefault((task_id, task_digest), (split, {}))
        rewards[float(reward)] = rewards.get(float(reward), 0) + int(count)
    outcomes = {
        key: TaskOutcomes(*key, split, tuple(sorted(rewards.items())))
        for key, (split, rewards) in gathered.items()
    }
    return outcomes, len(found) > most


async def measured_scores(
    session: AsyncSession, project_id: str, digests: Sequence[str]
) -> dict[str, Measured]:
    """Digest → what a run measured of that candidate, where one did."""
    if not digests:
        return {}
    rows = await session.execute(_SCORES, {"project": project_id, "digests": list(digests)})
    return {
        str(digest): Measured(
            str(split),
            int(rollouts),
            float(mean),
            {str(task): float(score) for task, score in (scores or {}).items()},
            None if run_id is None else str(run_id),
        )
        for digest, split, rollouts, mean, scores, run_id in rows
    }


async def spent_on(
    session: AsyncSession, project_id: str, digests: Sequence[str]
) -> dict[str, Spent]:
    """Digest → rollouts and dollars that went into that candidate, where any did."""
    if not digests:
        return {}
    rows = await session.execute(_SPENT, {"project": project_id, "digests": list(digests)})
    return {str(digest): Spent(int(count), float(cost or 0.0)) for digest, count, cost in rows}


async def latest_probe(
    session: AsyncSession, project_id: str, about: str, *, within: timedelta
) -> dict[str, Any] | None:
    """What the newest probe of the same candidate, tasks and concurrency measured per rollout.

    Args:
        session: A project transaction.
        project_id: The project.
        about: The hash of what was probed.
        within: How old it may be.

    Returns:
        The values that the probe kept; ``None`` if there was none so lately.
    """
    values = {"project": project_id, "action": PROBE, "about": about, "within": within}
    kept: dict[str, Any] | None = await session.scalar(_PROBED, values)
    return kept
