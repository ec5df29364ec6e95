"""Sealed decision: the rule of one sealed test, fed pair by pair and told when to stop.

A pair is one group key: candidate and incumbent run fresh on the same tasks. The decision looks
after every pair and stops early for success, for futility, when the bar is out of reach, or when
the groups are used up; never beyond one pass over them. It is pure: feeding the same pairs in the
same order gives the same result bit for bit, so a paused test goes on by feeding it what was
recorded.

Rule and defaults: ``acceptance-stats.md`` sections 1, 2 and 5; words: section 11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from instar_core.evolution import AcceptanceConfig, SealedOutcome, Verdict
from instar_core.statistics.eprocess import EProcess, interval, lower_bound
from instar_core.statistics.power import rho_of_ties, smallest_effect

__all__ = ["Look", "SealedDecision", "StopReason"]

StopReason = Literal[
    "accepted", "futility", "curtailed", "exhausted", "missing", "unrepresentative"
]
Look = Literal["continue", "stop"]

_VERDICTS: dict[StopReason, Verdict] = {
    "accepted": "accepted",
    "futility": "no_improvement",
    "curtailed": "no_improvement",
    "exhausted": "no_improvement",
    "missing": "undecided",
    "unrepresentative": "undecided",
}


class SealedDecision:
    """The running decision of one sealed test.

    Args:
        config: Level, bets, sizes and limits.
        alpha_t: The level of this test, fixed when it opened (e-LOND).
        slices: The slice (task family) of each group, in the recorded order of the test. Its length
            bounds the test: one pass, no group twice.

    Raises:
        ValueError: If ``alpha_t`` is outside (0, 1) or there are fewer groups than ``min_pairs``.
    """

    def __init__(self, config: AcceptanceConfig, alpha_t: float, *, slices: Sequence[str]) -> None:
        if not 0.0 < alpha_t < 1.0:
            raise ValueError(f"alpha_t is {alpha_t!r}; it must lie in (0, 1)")
        if min(len(slices), config.max_pairs) < config.min_pairs:
            raise ValueError(
                f"{len(slices)} groups and max_pairs {config.max_pairs} cannot give the "
                f"{config.min_pairs} pairs that a decision needs; add sealed groups"
            )
        self.config = config
        self.alpha_t = alpha_t
        self.stop: StopReason | None = None
        self._groups = len(slices)
        self._unseen = set(slices[: config.max_pairs])
        self._bar = math.log(1.0 / alpha_t)
        self._better = EProcess(bets=config.bets)
        self._futility = EProcess(mu0=config.futility_effect, direction="worse", bets=config.bets)
        self._harm = EProcess(direction="worse", bets=config.bets)
        self._attempted = 0
        self._missing = self._missing_candidate = self._missing_incumbent = 0
        self._sum_candidate = self._sum_incumbent = 0.0

    @property
    def evidence(self) -> EProcess:
        """The e-process that the decision rests on (read it, do not feed it)."""
        return self._better

    @property
    def left(self) -> int:
        """Pairs that may still come."""
        return min(self.config.max_pairs - self._better.pairs, self._groups - self._attempted)

    def feed(
        self, candidate: float | None, incumbent: float | None, *, slice_name: str = "default"
    ) -> Look:
        """Takes in the next group, in the recorded order (never in order of completion).

        Args:
            candidate: The candidate's mean score on the group in [0, 1]; ``None`` if infrastructure
                failed for good, which is never a zero.
            incumbent: The same for the incumbent.
            slice_name: The group's slice.

        Returns:
            ``stop`` once the test is decided, else ``continue``.

        Raises:
            ValueError: If a score is outside [0, 1], or the test has already stopped.
        """
        if self.stop is not None:
            raise ValueError(f"this test stopped ({self.stop}); a pair after it is a new test")
        for name, score in (("candidate", candidate), ("incumbent", incumbent)):
            if score is not None and not 0.0 <= score <= 1.0:
                raise ValueError(f"{name}'s score {score!r} is outside [0, 1]")
        self._attempted += 1
        if candidate is None or incumbent is None:
            self._missing += 1
            self._missing_candidate += candidate is None
            self._missing_incumbent += incumbent is None
        else:
            d = candidate - incumbent
            for process in (self._better, self._futility, self._harm):
                process.update(d)
            self._sum_candidate += candidate
            self._sum_incumbent += incumbent
            self._unseen.discard(slice_name)
        self.stop = self._look()
        return "continue" if self.stop is None else "stop"

    def _look(self) -> StopReason | None:
        config, pairs, left = self.config, self._better.pairs, self.left
        enough = pairs >= config.min_pairs
        reached = self._better.log_e >= self._bar
        if reached and enough and not self._unseen and not self._too_many_missing():
            return "accepted"
        if self._missing > config.max_missing * min(self._groups, self._attempted + left):
            return "missing"
        if enough and self._futility.log_e >= math.log(config.futility_evidence):
            return self._if_whole("futility")
        if left > 0 and self._better.best_attainable(pairs + left) < self._bar:
            return self._if_whole("curtailed")
        if left > 0:
            return None
        if reached and not self._too_many_missing():
            return "unrepresentative"
        return self._if_whole("exhausted")

    def _too_many_missing(self) -> bool:
        """More missing than allowed, or one arm's by clearly more than the other's."""
        allowed = self.config.max_missing * self._attempted
        gap = abs(self._missing_candidate - self._missing_incumbent)
        return self._missing > allowed or (gap >= 2 and gap > allowed / 2.0)

    def _if_whole(self, reason: StopReason) -> StopReason:
        """A "no" too needs whole data: pairs missing beyond the limit leave the test undecided."""
        return "missing" if self._too_many_missing() else reason

    def outcome(self) -> SealedOutcome:
        """What the test found so far, with the words for people.

        ``evidence`` is the e-value at the stop, not its maximum. Beside an acceptance the interval
        gives each side the test's own level alpha_t, so that its lower end and the verdict agree;
        otherwise it is the usual 95 % interval.
        """
        process, accepted = self._better, self.stop == "accepted"
        pairs = process.pairs
        level = 1.0 - 2.0 * self.alpha_t if accepted and self.alpha_t < 0.5 else 0.95
        low, high = interval(process.counts, level, bets=self.config.bets)
        mean = process.sum_d / pairs if pairs else 0.0
        return SealedOutcome(
            verdict="undecided" if self.stop is None else _VERDICTS[self.stop],
            reason=self._reason(),
            pairs=pairs,
            wins=process.wins,
            losses=process.losses,
            ties=process.ties,
            missing=self._missing,
            mean_difference=mean,
            interval=(low, high),
            interval_level=level,
            evidence=process.e_value,
            threshold=1.0 / self.alpha_t,
            candidate_mean=self._sum_candidate / pairs if pairs else 0.0,
            incumbent_mean=self._sum_incumbent / pairs if pairs else 0.0,
            words=self._words(mean),
        )

    def _harmful(self) -> bool:
        return self._harm.ever_log_e >= math.log(self.config.harm_evidence)

    def _reason(self) -> str:
        if self.stop is None:
            return "interrupted"
        if self._harmful() and _VERDICTS[self.stop] == "no_improvement":
            return "harm"
        return self.stop

    def _words(self, mean: float) -> str:
        pairs, needed = self._better.pairs, _ratio(1.0 / self.alpha_t)
        if self.stop == "accepted":
            gain = lower_bound(self._better.counts, self.alpha_t, bets=self.config.bets)
            return (
                "Better than the current version on tasks it has never seen. Evidence "
                f"{_ratio(self._better.e_value)} : 1 after {pairs} pairs (needed {needed} : 1). "
                f"The gain is at least {max(gain, 0.0):+.2f} (level used for this decision); the "
                f"average seen, {mean:+.2f}, is likely too high because we stop when it looks good."
            )
        if self.stop is None:
            return f"Not decided yet after {pairs} pairs; the test can go on at its own level."
        if self.stop == "missing":
            return (
                f"Undecided: {self._missing} of {self._attempted} pairs could not be run for "
                f"reasons outside the agent (candidate {self._missing_candidate}, current version "
                f"{self._missing_incumbent}); at most {self.config.max_missing:.0%} may be "
                "missing, and about as many on each side. Repair what failed and propose it again: "
                "that is a new test."
            )
        if self.stop == "unrepresentative":
            unseen = ", ".join(sorted(self._unseen)) or "too few pairs"
            return (
                f"Undecided: the evidence would be enough after {pairs} pairs, but not every task "
                f"family was seen ({unseen})."
            )
        return self._words_of_no()

    def _words_of_no(self) -> str:
        pairs = self._better.pairs
        if self._harmful():
            return f"Shown to be worse (after {pairs} pairs)."
        if self.stop == "futility":
            return (
                f"Stopped after {pairs} pairs: a gain of {self.config.futility_effect:.2f} or more "
                "is unlikely."
            )
        if self.stop == "curtailed":
            return (
                f"Stopped after {pairs} pairs: even winning every remaining pair could not reach "
                "the bar."
            )
        return (
            f"Not shown to be better in {pairs} pairs. That is not proof that it is equal: "
            f"{self._missed_gain(pairs)}"
        )

    def _missed_gain(self, pairs: int) -> str:
        base = self._sum_incumbent / pairs if pairs else 0.5
        rho = rho_of_ties(self._better.ties / pairs if pairs else 0.75, base=base)
        found = smallest_effect(
            pairs, self.alpha_t, base=round(base, 2), rho=round(rho, 2), bets=self.config.bets
        )
        if found is None:
            return "at this size hardly any gain could be found."
        return f"a gain under about {found:+.2f} would usually be missed at this size."


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value < 1e6 else f"{value:.1e}"
