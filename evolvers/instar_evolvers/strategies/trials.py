"""Trial: a change earns its place by winning paired fresh rollouts against things as they are.

Both arms run on the same tasks. The differences drive the same e-process as the sealed test, so it
may be looked at after every pair: a change that is no gain is kept with probability at most
1 / ``evidence``, over all its trials together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from instar_core.base import Frozen
from instar_core.candidates import Candidate
from instar_core.lab import Lab
from instar_core.statistics.eprocess import EProcess
from instar_core.tasks import Task
from instar_evolvers.strategies.allowance import Allowance

__all__ = ["Trial", "TrialConfig"]


class TrialConfig(Frozen):
    """When a trial stops. The defaults see a gain of .25 on the home tasks in 9 of 10 trials."""

    pairs_per_look: int = Field(default=10, ge=1, description="pairs run at the same time")
    max_pairs: int = Field(default=200, ge=1, description="pairs per trial at most")
    evidence: float = Field(
        default=50.0, gt=1.0, description="e-value needed; 1/evidence bounds what is kept wrongly"
    )
    worth: float = Field(
        default=0.2, gt=0.0, lt=1.0, description="a trial stops when such a gain is unlikely"
    )
    futility_evidence: float = Field(default=10.0, gt=1.0)
    margin: float = Field(
        default=0.1, gt=0.0, lt=1.0, description="loss that a deletion or merge must exclude"
    )


class Trial:
    """The evidence on one change. Kept and continued when the change is proposed again.

    Args:
        config: When to stop.
        shrinks: Whether the change only takes something away. It then need not show a gain, but
            must exclude a loss of ``config.margin``; it is given up when any loss is likely.
    """

    def __init__(self, config: TrialConfig, *, shrinks: bool = False) -> None:
        self.config = config
        self.runs = 0
        self._gain = EProcess(mu0=-config.margin if shrinks else 0.0)
        self._aim = 0.0 if shrinks else config.worth
        self._bar = math.log(config.evidence)

    @property
    def pairs(self) -> int:
        """Pairs seen so far, over all runs of the trial."""
        return self._gain.pairs

    @property
    def mean(self) -> float:
        """Mean difference so far (changed minus unchanged); 0 before any pair."""
        return self._gain.sum_d / self._gain.pairs if self._gain.pairs else 0.0

    @property
    def won(self) -> bool:
        """Whether the evidence has reached the bar at some time."""
        return self._gain.ever_log_e >= self._bar

    async def run(
        self,
        lab: Lab,
        allowance: Allowance,
        arms: tuple[Candidate, Candidate],
        tasks: Sequence[Task],
    ) -> bool:
        """Runs pairs until the change has won, looks futile, or may spend no more.

        Args:
            lab: Runs the two arms side by side.
            allowance: What may be spent; the trial ends before it would be overrun.
            arms: (changed, unchanged) candidates.
            tasks: Tasks of the trial, gone through again and again in this order.

        Returns:
            Whether the change has won.
        """
        self.runs += 1
        futile = EProcess(mu0=self._aim, direction="worse")
        limit = self._gain.pairs + self.config.max_pairs
        start = 0
        while not self.won and self._gain.pairs < limit:
            count = min(self.config.pairs_per_look, limit - self._gain.pairs)
            if allowance.left < 2 * count:
                break
            chunk = [tasks[(start + step) % len(tasks)] for step in range(count)]
            start += count
            if not self._look(await _differences(lab, allowance, arms, chunk), futile, limit):
                break
        return self.won

    def _look(self, differences: Sequence[float], futile: EProcess, limit: int) -> bool:
        """Takes in a look's pairs one by one; whether it is worth going on."""
        for difference in differences:
            self._gain.update(difference)
            futile.update(difference)
            if self.won:
                return False
            if futile.log_e >= math.log(self.config.futility_evidence):
                return False
        return self._gain.best_attainable(limit) >= self._bar and bool(differences)


async def _differences(
    lab: Lab, allowance: Allowance, arms: tuple[Candidate, Candidate], tasks: Sequence[Task]
) -> list[float]:
    """One difference per task; a pair in which infrastructure failed is dropped."""
    changed, unchanged = await lab.gather("arms", arms, lambda arm: allowance.rollouts(arm, tasks))
    return [
        left.reward - right.reward
        for left, right in zip(changed, unchanged, strict=True)
        if left.score is not None and right.score is not None
    ]
