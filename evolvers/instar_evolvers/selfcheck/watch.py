"""Watch: a Lab that passes everything on and remembers how each candidate did.

An honest evolver returns the seed where nothing helps, and a test that is never opened cannot go
wrong. The selfcheck is stricter: it puts the best other candidate forward all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from instar_core.candidates import Candidate
from instar_core.lab import Lab
from instar_core.rollouts import Rollout
from instar_core.tasks import Task
from instar_evolvers.lab.passing import PassingLab

__all__ = ["Watch"]


class Watch(PassingLab):
    """A Lab around another.

    Args:
        lab: Does the work.

    Attributes:
        rollouts_seen: Search rollouts asked for, replays of references left out.
    """

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self._candidates: dict[str, Candidate] = {}
        self._scores: dict[tuple[str, str], list[float]] = {}
        self.rollouts_seen = 0

    def best_other(self, seed: Candidate) -> Candidate | None:
        """The candidate with the best mean on validation, or on train tasks if none was validated.

        Args:
            seed: The candidate that does not count.

        Returns:
            ``None`` if no other candidate was ever rolled out.
        """
        for split in ("validation", "train"):
            means = {
                digest: sum(rewards) / len(rewards)
                for (digest, where), rewards in self._scores.items()
                if where == split and digest != seed.digest and rewards
            }
            if means:
                return self._candidates[max(means, key=lambda digest: means[digest])]
        return None

    async def rollouts(
        self, candidate: Candidate, tasks: Sequence[Task], *, n: int = 1, arm: str = ""
    ) -> list[Rollout]:
        """See :class:`instar_core.lab.Lab`."""
        done = await self._lab.rollouts(candidate, tasks, n=n, arm=arm)
        if arm:
            return done
        self.rollouts_seen += len(done)
        self._candidates[candidate.digest] = candidate
        split_of = {task.id: task.split for task in tasks}
        for rollout in done:
            if rollout.score is not None:
                key = (candidate.digest, split_of[rollout.task_id])
                self._scores.setdefault(key, []).append(rollout.score.reward)
        return done
