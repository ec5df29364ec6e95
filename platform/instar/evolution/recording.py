"""Recording: what a run's candidates scored, seen at the Lab's door and kept in the database.

The recorder stands between the evolver and its Lab. It passes everything on unchanged, adds scores
up per candidate and split, keeps back the rollouts that the sealed test will need, and writes what
it saw every now and then. On a replay it sees the recorded rollouts again and arrives at the same
sums.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.journal import PostgresJournal
from instar.store.evolution import (
    Scores,
    change_progress,
    list_rollout_ids,
    save_candidate,
    save_scores,
)
from instar.store.rollouts import RolloutLink, save_rollouts
from instar_core.base import JsonValue, content_hash
from instar_core.candidates import Candidate
from instar_core.errors import BudgetExhausted
from instar_core.evolution import Evidence, Prediction, Verdict
from instar_core.lab import Lab
from instar_core.rollouts import Rollout
from instar_core.tasks import Splits, Task
from instar_core.usage import Remaining
from instar_evolvers.lab.passing import PassingLab

__all__ = ["RecordingLab", "Tally", "stored_rollout_id"]

Propose = Callable[[Candidate, Evidence, Prediction | None], Awaitable[Verdict]]
_WRITE_EVERY_S = 1.0
_MOST_SOURCES = 500
_ATTEMPT_ARMS = frozenset({"", "leaveout"})
"""Arms in which the agent itself tries; a replayed reference is no attempt of it."""


def stored_rollout_id(run_id: str, rollout_id: str) -> str:
    """The id under which a rollout of a run is stored: of the run's month, and of this run
    alone."""
    digest = content_hash([run_id, rollout_id])
    return f"{run_id[:13]}-7{digest[:3]}-8{digest[3:6]}-{digest[6:18]}"


@dataclass(slots=True)
class Tally:
    """Sums of one candidate's rewards on one split, by task."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, task_id: str, reward: float) -> None:
        """Adds one scored rollout."""
        self.sums[task_id] = self.sums.get(task_id, 0.0) + reward
        self.counts[task_id] = self.counts.get(task_id, 0) + 1

    @property
    def rollouts(self) -> int:
        """How many scored rollouts there are."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float | None:
        """The mean over tasks of each task's mean reward; ``None`` before the first."""
        if not self.counts:
            return None
        return sum(self.sums[t] / self.counts[t] for t in self.counts) / len(self.counts)

    def by_task(self) -> dict[str, float]:
        """Task id → mean reward."""
        return {task: self.sums[task] / self.counts[task] for task in sorted(self.counts)}


class RecordingLab(PassingLab):
    """A Lab that notes what passes through it; see the module.

    Args:
        lab: The Lab that does the work.
        journal: Where notes are written, under the run's lock.
        splits: The tasks that the evolver sees.
        incumbent: Digest of the version that the run started from.
        keep_back: Rollouts that the search may not spend, for the sealed test.
        propose: Puts a candidate forward: keeps it as a version and opens the sealed test.
    """

    def __init__(
        self,
        lab: Lab,
        journal: PostgresJournal,
        splits: Splits,
        *,
        incumbent: str,
        keep_back: int,
        propose: Propose,
    ) -> None:
        super().__init__(lab)
        self.candidates: dict[str, Candidate] = {}
        self.scores: dict[tuple[str, str], Tally] = {}
        self._journal = journal
        self._split_of = {task.id: task.split for task in (*splits.train, *splits.validation)}
        self._incumbent = incumbent
        self._keep_back = keep_back
        self._propose = propose
        self._fresh: list[Candidate] = []
        self._changed: set[tuple[str, str]] = set()
        self._rollouts: list[tuple[Rollout, RolloutLink]] = []
        self._stored: set[str] = set()
        self._practice: dict[str, dict[str, None]] = {}
        self._written_at = 0.0

    async def load(self, session: AsyncSession) -> None:
        """Reads which rollouts of the run are stored already."""
        self._stored = await list_rollout_ids(session, self._journal.config.run_id)

    def mean(self, digest: str, split: str = "validation") -> float | None:
        """A candidate's mean reward on a split; ``None`` when it was not tried there."""
        tally = self.scores.get((digest, split))
        return None if tally is None else tally.mean

    def best(self) -> str | None:
        """The candidate with the best validation mean, the incumbent left out."""
        means = {
            digest: mean
            for digest in self.candidates
            if digest != self._incumbent and (mean := self.mean(digest)) is not None
        }
        # The one seen first wins a tie: dictionaries keep their order.
        return max(means, key=means.__getitem__) if means else None

    def learned_from(self, candidate: Candidate) -> tuple[str, ...]:
        """Stored ids of the rollouts that a candidate was derived from, the nearest 500 of them.

        These are the rollouts of its ancestors on training tasks: what the search had seen of its
        line when it made the candidate. Its own rollouts judge it and are no source of it.
        """
        found: dict[str, None] = {}
        line: set[str] = set()
        waiting = list(candidate.parents)
        while waiting:
            digest = waiting.pop(0)
            if digest in line or digest == candidate.digest:
                continue
            line.add(digest)
            # Nearest ancestor first; of each the newest first.
            found.update(dict.fromkeys(reversed(self._practice.get(digest, {}))))
            if digest in self.candidates:
                waiting.extend(self.candidates[digest].parents)
        return tuple(found)[:_MOST_SOURCES]

    async def rollouts(
        self, candidate: Candidate, tasks: Sequence[Task], *, n: int = 1, arm: str = ""
    ) -> list[Rollout]:
        """See :class:`instar_core.lab.Lab`."""
        left = self.budget().rollouts
        if left is not None and arm in _ATTEMPT_ARMS and n * len(tasks) > left:
            raise BudgetExhausted(
                f"The search has {left} rollouts left and asked for {n * len(tasks)}; "
                f"{self._keep_back} are kept back for the sealed test.",
                remedy="Raise the rollout limit.",
            )
        found = await self._lab.rollouts(candidate, tasks, n=n, arm=arm)
        self._note(candidate, tasks, n, arm, found)
        if time.monotonic() - self._written_at > _WRITE_EVERY_S:
            await self.write()
        return found

    def _note(
        self, candidate: Candidate, tasks: Sequence[Task], n: int, arm: str, found: list[Rollout]
    ) -> None:
        if candidate.digest not in self.candidates:
            self.candidates[candidate.digest] = candidate
            self._fresh.append(candidate)
        for index, rollout in enumerate(found):
            task = tasks[index // n]
            stored = self._keep(rollout, task)
            if self._split_of.get(task.id, task.split) == "train":
                self._practice.setdefault(candidate.digest, {})[stored] = None
            if rollout.score is None or arm not in _ATTEMPT_ARMS:
                continue
            key = (candidate.digest, self._split_of.get(rollout.task_id, task.split))
            self.scores.setdefault(key, Tally()).add(rollout.task_id, rollout.score.reward)
            self._changed.add(key)

    def _keep(self, rollout: Rollout, task: Task) -> str:
        """Takes a rollout down for the next write, once; the id under which it is stored."""
        run_id = self._journal.config.run_id
        stored = stored_rollout_id(run_id, rollout.id)
        if stored in self._stored:
            return stored
        self._stored.add(stored)
        link = RolloutLink(run_id=run_id, task_digest=task.content_digest)
        self._rollouts.append((rollout.model_copy(update={"id": stored}), link))
        return stored

    async def write(self, **progress: JsonValue) -> None:
        """Writes what was noted since the last time, and further values of the run's progress."""
        fresh, self._fresh = self._fresh, []
        changed, self._changed = sorted(self._changed), set()
        rollouts, self._rollouts = self._rollouts, []
        scores = [
            Scores(digest, split, tally.rollouts, tally.mean, tally.by_task())
            for digest, split in changed
            if (tally := self.scores[digest, split])
        ]
        best = self.best()
        shown: dict[str, JsonValue] = {
            "candidates": sum(digest != self._incumbent for digest in self.candidates),
            "baseline_mean": self.mean(self._incumbent),
            "best_mean": None if best is None else self.mean(best),
            **progress,
        }
        config = self._journal.config

        async def write(session: AsyncSession) -> None:
            for candidate in fresh:
                await save_candidate(session, config.project_id, config.run_id, candidate)
            for one in scores:
                await save_scores(session, config.project_id, config.run_id, one)
            if rollouts:
                await save_rollouts(session, config.project_id, rollouts)
            await change_progress(session, config.run_id, shown)

        await self._journal.write(write)
        self._written_at = time.monotonic()

    async def propose(
        self, candidate: Candidate, because: Evidence, predicts: Prediction | None = None
    ) -> Verdict:
        """See :class:`instar_core.lab.Lab`."""
        return await self._propose(candidate, because, predicts)

    def budget(self) -> Remaining:
        """What the search may still spend: the sealed test's share is not in it."""
        left = self._lab.budget()
        if left.rollouts is None:
            return left
        return left.model_copy(update={"rollouts": max(0, left.rollouts - self._keep_back)})
