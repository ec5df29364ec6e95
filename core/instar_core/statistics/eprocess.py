"""E-process: evidence on paired differences that may be looked at after every pair.

Bets a mixture of constant fractions (a discretised universal portfolio) on ``d`` in [-1, 1] being
larger than ``mu0`` (or smaller, for harm and futility). The capital is a nonnegative
supermartingale under the null hypothesis, so by Ville's inequality it exceeds ``1/a`` at any time
with probability at most ``a``. Works in logs only, with plain floats: a step costs a few
microseconds, and a saved state goes on bit for bit.

Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSS-B 86(1),
2024, section 4 and supplement B (capital process, mixtures of bets); Ryu & Bhatt, arXiv 2207.12382
(universal-portfolio bets).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from pydantic import Field

from instar_core.base import Frozen

__all__ = [
    "Direction",
    "EProcess",
    "EProcessState",
    "bet_fractions",
    "interval",
    "log_mixture",
    "log_mixture_of_counts",
    "lower_bound",
    "upper_bound",
]

Direction = Literal["better", "worse"]
"""``better``: evidence against E[d] <= mu0. ``worse``: evidence against E[d] >= mu0."""

_STEPS = 60


@lru_cache(maxsize=64)
def bet_fractions(bets: int = 20) -> tuple[float, ...]:
    """The constant fractions (g - 1/2)/G for g = 1..G; the largest stays below 1, so no loss is
    fatal.

    Raises:
        ValueError: If ``bets`` is not positive.
    """
    if bets < 1:
        raise ValueError(f"bets is {bets!r}; it must be at least 1")
    return tuple((g - 0.5) / bets for g in range(1, bets + 1))


def log_mixture(log_capitals: Iterable[float]) -> float:
    """The log of the mean of exp(values): the log e-value of equally weighted bets."""
    values = list(log_capitals)
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values) / len(values))


def _gain(d: float, mu0: float, direction: Direction) -> float:
    """The return of betting everything on one pair; never below -1."""
    if direction == "better":
        return (d - mu0) / (1.0 + mu0)
    return (mu0 - d) / (1.0 - mu0)


@lru_cache(maxsize=4096)
def _log_factors(d: float, mu0: float, direction: Direction, bets: int) -> tuple[float, ...]:
    gain = _gain(d, mu0, direction)
    return tuple(math.log1p(f * gain) for f in bet_fractions(bets))


class EProcessState(Frozen):
    """Everything needed to go on later, bit for bit; JSON keeps its floats exactly.

    ``counts`` is the sufficient history for intervals: each distinct difference and how often it
    came.
    """

    mu0: float = Field(default=0.0, gt=-1.0, lt=1.0)
    direction: Direction = "better"
    log_capitals: tuple[float, ...]
    pairs: int = 0
    wins: int = 0
    losses: int = 0
    ties: int = 0
    sum_d: float = 0.0
    max_log_e: float = 0.0
    counts: tuple[tuple[float, int], ...] = ()


class EProcess:
    """One running e-process. Deterministic; mutated by :meth:`update` alone.

    Args:
        mu0: The null's bound on E[d], in (-1, 1): 0 for "no better", minus a margin for
            non-inferiority, plus a margin for superiority.
        direction: ``better`` gathers evidence that E[d] > mu0, ``worse`` that E[d] < mu0.
        bets: Number of constant bets in the mixture.

    Raises:
        ValueError: If ``mu0`` is outside (-1, 1) or ``bets`` is not positive.
    """

    def __init__(
        self, *, mu0: float = 0.0, direction: Direction = "better", bets: int = 20
    ) -> None:
        if not -1.0 < mu0 < 1.0:
            raise ValueError(f"mu0 is {mu0!r}; it must lie in (-1, 1)")
        self.mu0 = mu0
        self.direction: Direction = direction
        self._fractions = bet_fractions(bets)
        self._logs = [0.0] * bets
        self._counts: dict[float, int] = {}
        self.pairs = self.wins = self.losses = self.ties = 0
        self.sum_d = 0.0
        self.log_e = 0.0
        self._max_log_e = 0.0

    @classmethod
    def resume(cls, state: EProcessState) -> EProcess:
        """A process that continues from a saved state exactly as the original would have."""
        process = cls(mu0=state.mu0, direction=state.direction, bets=len(state.log_capitals))
        process._logs = list(state.log_capitals)
        process._counts = dict(state.counts)
        process.pairs, process.sum_d = state.pairs, state.sum_d
        process.wins, process.losses, process.ties = state.wins, state.losses, state.ties
        process._max_log_e = state.max_log_e
        process.log_e = log_mixture(process._logs)
        return process

    @property
    def state(self) -> EProcessState:
        """The frozen state after the pairs so far."""
        return EProcessState(
            mu0=self.mu0,
            direction=self.direction,
            log_capitals=tuple(self._logs),
            pairs=self.pairs,
            wins=self.wins,
            losses=self.losses,
            ties=self.ties,
            sum_d=self.sum_d,
            max_log_e=self._max_log_e,
            counts=tuple(self._counts.items()),
        )

    @property
    def counts(self) -> Mapping[float, int]:
        """How often each difference came."""
        return self._counts

    def update(self, d: float) -> float:
        """Takes in one paired difference.

        Args:
            d: Candidate's score minus incumbent's, in [-1, 1].

        Returns:
            The log e-value after this pair.

        Raises:
            ValueError: If ``d`` is outside [-1, 1] or not a number: it is never clipped, because
                a clipped difference would test another hypothesis.
        """
        if not -1.0 <= d <= 1.0:
            raise ValueError(
                f"paired difference {d!r} is outside [-1, 1]; scores must lie in [0, 1] "
                "(fix the verifier's bounds before the test)"
            )
        factors = _log_factors(d, self.mu0, self.direction, len(self._logs))
        self._logs = [log + factor for log, factor in zip(self._logs, factors, strict=True)]
        self.pairs += 1
        self.sum_d += d
        self._counts[d] = self._counts.get(d, 0) + 1
        if d > 0.0:
            self.wins += 1
        elif d < 0.0:
            self.losses += 1
        else:
            self.ties += 1
        self.log_e = log_mixture(self._logs)
        if self.log_e > self._max_log_e:
            self._max_log_e = self.log_e
        return self.log_e

    @property
    def e_value(self) -> float:
        """The e-value now (infinite beyond the range of floats); fed to e-LOND at the stop."""
        return math.exp(self.log_e) if self.log_e < 709.0 else math.inf

    @property
    def anytime_p(self) -> float:
        """The anytime-valid p-value 1 / max(1, largest e-value so far); never feed 1/p on."""
        return math.exp(-self._max_log_e)

    @property
    def ever_log_e(self) -> float:
        """The largest log e-value so far (at least 0): for alarms by Ville's inequality only."""
        return self._max_log_e

    def best_attainable(self, max_pairs: int) -> float:
        """The log e-value if every pair that is left were a full win (curtailment bound).

        Args:
            max_pairs: The most pairs this test may use.
        """
        left = max(0, max_pairs - self.pairs)
        best = _log_factors(
            1.0 if self.direction == "better" else -1.0,
            self.mu0,
            self.direction,
            len(self._logs),
        )
        return log_mixture(log + left * gain for log, gain in zip(self._logs, best, strict=True))


def log_mixture_of_counts(
    counts: Mapping[float, int], mu0: float, direction: Direction, *, bets: int = 20
) -> float:
    """The log e-value of a history at another ``mu0``; nonincreasing in it for ``better``."""
    gains = [(_gain(d, mu0, direction), n) for d, n in counts.items()]
    return log_mixture(
        math.fsum(n * math.log1p(f * gain) for gain, n in gains) for f in bet_fractions(bets)
    )


def lower_bound(counts: Mapping[float, int], a: float, *, bets: int = 20) -> float:
    """The anytime-valid one-sided lower bound of E[d] at level 1 - a.

    The infimum of mu0 whose "no better than mu0" has at most evidence 1/a, by bisection; rounded
    outwards, so that the bound is never too high. It is above 0 exactly where the test accepts at
    a.

    Raises:
        ValueError: If ``a`` is outside (0, 1).
    """
    if not 0.0 < a < 1.0:
        raise ValueError(f"a is {a!r}; it must lie in (0, 1)")
    limit = -math.log(a)
    low, high = -1.0, 1.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if log_mixture_of_counts(counts, middle, "better", bets=bets) <= limit:
            high = middle
        else:
            low = middle
    return low


def upper_bound(counts: Mapping[float, int], a: float, *, bets: int = 20) -> float:
    """The anytime-valid one-sided upper bound of E[d] at level 1 - a (see :func:`lower_bound`)."""
    mirrored = {-d: n for d, n in counts.items()}
    return -lower_bound(mirrored, a, bets=bets)


def interval(
    counts: Mapping[float, int], level: float = 0.95, *, bets: int = 20
) -> tuple[float, float]:
    """The two-sided anytime-valid interval for E[d]; both sides take half of 1 - level.

    Args:
        counts: How often each difference came (``EProcess.counts``).
        level: Coverage, in (0, 1); holds at every stopping time at once.
        bets: Number of constant bets.

    Returns:
        (lower, upper); (-1, 1) before any pair.

    Raises:
        ValueError: If ``level`` is outside (0, 1).
    """
    half = (1.0 - level) / 2.0
    if not counts:
        return (-1.0, 1.0)
    return (lower_bound(counts, half, bets=bets), upper_bound(counts, half, bets=bets))
