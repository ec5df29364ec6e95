"""Behaviour: which tasks come out differently under two agent versions, beyond noise.

Per task the two sides' rewards are compared by an exact permutation test of the difference of
means (Fisher, "The Design of Experiments", 1935, section 21; by 10,000 seeded draws where there are
too many arrangements). Over all tasks that both sides were measured on, the false discovery rate is
held at 10 % by the step-up procedure of Benjamini & Hochberg (JRSS-B 57, 1995): only tasks that it
rejects are called improved or worsened. With one rollout a side no task can be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.outcomes import TaskOutcomes, task_outcomes
from instar_core.base import Frozen
from instar_core.statistics.bootstrap import paired_bootstrap

__all__ = ["BehaviourDiff", "TaskChange", "compare_behaviour", "compare_outcomes", "permutation_p"]

Change = Literal["improved", "worsened", "unchanged", "only_old", "only_new"]
_FDR = 0.10
_LEVEL = 0.95
_MOST_ARRANGEMENTS = 5_000
_DRAWS = 10_000
_CELLS = 1_000_000
_TOLERANCE = 1e-9
METHOD = (
    "Tasks: two-sided permutation test of the difference of mean rewards, false discovery rate "
    "10 % over all shared tasks (Benjamini-Hochberg). Difference: mean over shared tasks, 95 % "
    "percentile bootstrap over tasks. Rollouts of sealed tests are left out."
)


class TaskChange(Frozen):
    """One task under two versions: mean rewards in [0, 1] (higher is better), n and the verdict.

    ``p_value`` is of the permutation test; ``None`` where only one side was measured.
    """

    task_id: str
    split: str
    change: Change
    old_mean: float | None = None
    new_mean: float | None = None
    old_n: int = 0
    new_n: int = 0
    difference: float | None = None
    p_value: float | None = None


class BehaviourDiff(Frozen):
    """How behaviour changed from one agent version to another: tasks, the worst change first.

    ``lower`` and ``upper`` bound the mean difference over the shared tasks (two or more).
    """

    old_digest: str
    new_digest: str
    shared: int
    improved: int
    worsened: int
    unchanged: int
    only_old: int
    only_new: int
    difference: float | None = None
    lower: float | None = None
    upper: float | None = None
    method: str = METHOD
    truncated: bool = False
    tasks: tuple[TaskChange, ...] = ()


async def compare_behaviour(
    session: AsyncSession, project_id: str, old_digest: str, new_digest: str, *, most: int = 1_000
) -> BehaviourDiff:
    """How two candidates came out on tasks of the open splits, in all runs of the project.

    Args:
        session: A project transaction.
        project_id: The project.
        old_digest: Digest of the version to compare from.
        new_digest: Digest of the version to compare to.
        most: The most tasks that are listed; the counts are of all.

    Returns:
        The comparison; without stored rollouts of a side it names no shared task.
    """
    old, cut_old = await task_outcomes(session, project_id, old_digest)
    new, cut_new = await task_outcomes(session, project_id, new_digest)
    found = compare_outcomes(list(old.values()), list(new.values()))
    told = Counter[str](one.change for one in found)
    differences = [one.difference for one in found if one.difference is not None]
    interval: tuple[float | None, float | None] = (None, None)
    if len(differences) > 1:
        interval = paired_bootstrap(differences, level=_LEVEL, seed=0)
    return BehaviourDiff(
        old_digest=old_digest,
        new_digest=new_digest,
        shared=len(differences),
        difference=math.fsum(differences) / len(differences) if differences else None,
        lower=interval[0],
        upper=interval[1],
        truncated=cut_old or cut_new or len(found) > most,
        tasks=tuple(found[:most]),
        improved=told["improved"],
        worsened=told["worsened"],
        unchanged=told["unchanged"],
        only_old=told["only_old"],
        only_new=told["only_new"],
    )


def compare_outcomes(old: Sequence[TaskOutcomes], new: Sequence[TaskOutcomes]) -> list[TaskChange]:
    """Each task's change, the worst difference first, then the tasks that one side alone has.

    A task whose content changed between two task sets is two tasks.
    """
    before = {(one.task_id, one.task_digest): one for one in old}
    after = {(one.task_id, one.task_digest): one for one in new}
    shared = [key for key in before if key in after]
    values = [permutation_p(before[key].rewards, after[key].rewards) for key in shared]
    beyond = _rejected(values)
    changes = [
        _shared(before[key], after[key], p_value, rejected)
        for key, p_value, rejected in zip(shared, values, beyond, strict=True)
    ]
    changes.sort(key=lambda one: (one.difference or 0.0, one.task_id))
    changes += [
        TaskChange(
            task_id=one.task_id, split=one.split, change="only_old", old_mean=one.mean, old_n=one.n
        )
        for key, one in sorted(before.items())
        if key not in after
    ]
    changes += [
        TaskChange(
            task_id=one.task_id, split=one.split, change="only_new", new_mean=one.mean, new_n=one.n
        )
        for key, one in sorted(after.items())
        if key not in before
    ]
    return changes


def permutation_p(old: Sequence[tuple[float, int]], new: Sequence[tuple[float, int]]) -> float:
    """Two-sided p-value of the permutation test of the difference of means.

    Args:
        old: Rewards of one side with their counts.
        new: Rewards of the other side with their counts.

    Returns:
        In (0, 1]: how many arrangements of the rewards over the sides differ at least as much; by
        the hypergeometric law where rewards have two values (Fisher's exact test of means).
    """
    left, right = _flat(old), _flat(new)
    n, m = len(left), len(right)
    pooled = left + right
    total = math.fsum(pooled)
    seen = abs(math.fsum(left) / n - math.fsum(right) / m) - _TOLERANCE
    values = sorted(set(pooled))
    if len(values) == 1:
        return 1.0
    if len(values) == 2:
        return _two_values(pooled.count(values[1]), n, m, seen / (values[1] - values[0]))

    def extreme(first: float) -> bool:
        return abs(first / n - (total - first) / m) >= seen

    if math.comb(n + m, n) <= _MOST_ARRANGEMENTS:
        sums = [math.fsum(one) for one in combinations(pooled, n)]
        return sum(extreme(one) for one in sums) / len(sums)
    return (1 + _drawn_extremes(pooled, n, seen)) / (1 + _DRAWS)


def _drawn_extremes(pooled: Sequence[float], n: int, seen: float) -> int:
    """How many of the drawn arrangements differ at least that much; the same draws every time."""
    import numpy

    values = numpy.asarray(pooled, dtype=numpy.float64)
    total, m = float(values.sum()), len(pooled) - n
    generator = numpy.random.Generator(numpy.random.PCG64(0))
    at_once = max(1, _CELLS // len(pooled))
    hits = 0
    for start in range(0, _DRAWS, at_once):
        rows = numpy.tile(values, (min(at_once, _DRAWS - start), 1))
        first = generator.permuted(rows, axis=1)[:, :n].sum(axis=1)
        hits += int((abs(first / n - (total - first) / m) >= seen).sum())
    return hits


def _two_values(high: int, n: int, m: int, seen: float) -> float:
    """The share of arrangements with at least that difference, ``high`` of n + m being high."""
    ways = 0
    for first in range(max(0, high - m), min(n, high) + 1):
        if abs(first / n - (high - first) / m) >= seen:
            ways += math.comb(n, first) * math.comb(m, high - first)
    return ways / math.comb(n + m, high)


def _flat(rewards: Sequence[tuple[float, int]]) -> list[float]:
    return [reward for reward, count in rewards for _ in range(count)]


def _rejected(values: Sequence[float]) -> list[bool]:
    """Which p-values the step-up procedure rejects."""
    ranked = sorted(values)
    limit = -1.0
    for rank, value in enumerate(ranked, start=1):
        if value <= _FDR * rank / len(ranked):
            limit = value
    return [value <= limit for value in values]


def _shared(old: TaskOutcomes, new: TaskOutcomes, p_value: float, rejected: bool) -> TaskChange:
    difference = new.mean - old.mean
    change: Change = "unchanged"
    if rejected and difference:
        change = "improved" if difference > 0 else "worsened"
    return TaskChange(
        task_id=old.task_id,
        split=new.split,
        change=change,
        old_mean=old.mean,
        new_mean=new.mean,
        old_n=old.n,
        new_n=new.n,
        difference=difference,
        p_value=p_value,
    )
