"""Validation: candidates measured on the same held-out tasks and compared pair by pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from instar_core.candidates import Candidate
from instar_core.errors import EnvironmentFault
from instar_core.rollouts import Rollout

__all__ = ["Measured", "compare"]


class Measured:
    """Rewards of one candidate by task, with the candidate they belong to.

    Raises:
        EnvironmentFault: If infrastructure failed in every rollout, so that nothing was measured.
    """

    def __init__(self, candidate: Candidate, rollouts: Sequence[Rollout]) -> None:
        sums: dict[str, list[float]] = {}
        for rollout in rollouts:
            if rollout.score is not None:
                sums.setdefault(rollout.task_id, []).append(rollout.reward)
        if not sums:
            first = rollouts[0].error if rollouts else "no task was given"
            raise EnvironmentFault(
                f"No validation rollout of {candidate.digest[:12]} gave a score: {first!r}.",
                remedy="Repair the environment or the model, then start the run again.",
            )
        self.candidate = candidate
        self.rewards: Mapping[str, float] = {
            name: sum(values) / len(values) for name, values in sums.items()
        }
        self.rollout_ids = tuple(rollout.id for rollout in rollouts)

    @property
    def mean(self) -> float:
        """Mean reward over tasks, in [0, 1]."""
        return sum(self.rewards.values()) / len(self.rewards)


def compare(new: Measured, old: Measured) -> tuple[float, float]:
    """Mean paired difference (new minus old) over shared tasks, and its standard error."""
    shared = [name for name in new.rewards if name in old.rewards]
    differences = [new.rewards[name] - old.rewards[name] for name in shared]
    if not differences:
        return new.mean - old.mean, 0.0
    count = len(differences)
    mean = sum(differences) / count
    spread = sum((value - mean) ** 2 for value in differences)
    return mean, math.sqrt(spread / count / max(1, count - 1))
