"""Thompson sampling over combinations of discrete choices, with Beta beliefs that share strength.

A combination seen twice says little; its relatives (same choice of a factor) say more. Each arm's
prior mean is therefore the success rate of the arms that share a factor with it, shrunk level by
level from the whole to its nearest relatives.

Thompson, Biometrika 25, 1933. The sharing of strength is ours: an empirical-Bayes prior in the
manner of Beta-binomial shrinkage.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random

__all__ = ["FactorBandit"]


class FactorBandit:
    """Beliefs about arms that are tuples of choices.

    Args:
        arms: Each arm as its factors, most telling first; arms that share a prefix are relatives.
        strength: How many observations the relatives' rate counts for.
    """

    def __init__(self, arms: Sequence[tuple[Hashable, ...]], strength: float = 4.0) -> None:
        self._arms = tuple(arms)
        self._strength = strength
        self._seen = [[0.0, 0.0] for _ in arms]

    def tries(self, index: int) -> float:
        """How many rewards the arm has given so far."""
        return self._seen[index][1]

    def update(self, index: int, rewards: Sequence[float]) -> None:
        """Takes in rewards in [0, 1] of one arm."""
        self._seen[index][0] += sum(rewards)
        self._seen[index][1] += len(rewards)

    def posterior(self, index: int) -> tuple[float, float]:
        """The Beta posterior (a, b) of the arm's success rate."""
        mean = self._prior_mean(index)
        passed, tried = self._seen[index]
        return (
            self._strength * mean + passed,
            self._strength * (1.0 - mean) + tried - passed,
        )

    def mean(self, index: int) -> float:
        """The posterior mean of the arm's success rate."""
        a, b = self.posterior(index)
        return a / (a + b)

    def choose(self, count: int, rng: Random) -> list[int]:
        """The ``count`` arms with the highest draws from their posteriors, best first."""
        draws = [
            (rng.betavariate(*self.posterior(index)), index) for index in range(len(self._arms))
        ]
        return [index for _, index in sorted(draws, key=lambda draw: (-draw[0], draw[1]))[:count]]

    def spread(self, count: int, rng: Random) -> list[int]:
        """``count`` arms for a first look: values of the first factor in turn, at random within."""
        order = list(range(len(self._arms)))
        rng.shuffle(order)
        turns: dict[Hashable, int] = {}
        ranked = []
        for index in order:
            value = self._arms[index][0]
            turns[value] = turns.get(value, 0) + 1
            ranked.append((turns[value], index))
        return [index for _, index in sorted(ranked, key=lambda one: one[0])[:count]]

    def _prior_mean(self, index: int) -> float:
        """The relatives' rate; the arm's own rewards are left out, they count in the posterior."""
        arm, mean = self._arms[index], 0.5
        for depth in range(len(arm)):
            passed, tried = 1.0, 2.0
            if depth:
                passed, tried = self._strength * mean, self._strength
            for other, (good, all_of) in enumerate(self._seen):
                if other != index and self._arms[other][:depth] == arm[:depth]:
                    passed, tried = passed + good, tried + all_of
            mean = passed / tried
        return mean
