"""E-LOND: spends a false discovery rate over a stream of tests, each told by one e-value.

Test t of an epoch gets the level ``alpha gamma_t (R + 1)``, R being the acceptances so far, and
accepts when its e-value at the stopping time reaches 1/level. The false discovery rate stays at
most alpha under any dependence between the tests, also when decisions arrive late (the level is
fixed when the test opens).

Xu & Ramdas, "Online multiple testing with e-values", AISTATS 2024 (arXiv 2311.06412), e-LOND.
Weights ``lond``: Javanmard & Montanari, Ann. Stat. 46(2), 2018. The default, half flat and half
quadratic, keeps the 40th proposal alive and lets the first night succeed (our choice).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from instar_core.base import Frozen

__all__ = ["ELond", "GammaName", "gamma", "level"]

GammaName = Literal["half-flat-half-quadratic", "quadratic", "flat", "lond", "power"]


def _half(t: int, horizon: int) -> float:
    return 0.5 * _flat(t, horizon) + 0.5 * _quadratic(t, horizon)


def _quadratic(t: int, horizon: int) -> float:
    return 1.0 / (t * (t + 1))


def _flat(t: int, horizon: int) -> float:
    return 1.0 / horizon if t <= horizon else 0.0


def _lond(t: int, horizon: int) -> float:
    return 0.07720838 * math.log(max(t, 2)) / (t * math.exp(math.sqrt(math.log(t))))


def _power(t: int, horizon: int) -> float:
    # 1/zeta(1.6), so that the weights sum to 1.
    return 0.4374901658 * math.pow(t, -1.6)


_GAMMAS: dict[GammaName, Callable[[int, int], float]] = {
    "half-flat-half-quadratic": _half,
    "quadratic": _quadratic,
    "flat": _flat,
    "lond": _lond,
    "power": _power,
}


def gamma(t: int, *, horizon: int = 50, name: GammaName = "half-flat-half-quadratic") -> float:
    """The share of alpha that test ``t`` of an epoch gets before any acceptance; sums to at most 1.

    Args:
        t: Index of the test in its epoch, from 1.
        horizon: Number of tests in an epoch.
        name: Which weights.

    Raises:
        ValueError: If ``t`` or ``horizon`` is below 1.
    """
    if t < 1 or horizon < 1:
        raise ValueError(f"t is {t!r} and horizon {horizon!r}; both must be at least 1")
    return _GAMMAS[name](t, horizon)


def level(
    t: int,
    accepted_before: int,
    *,
    alpha: float = 0.05,
    horizon: int = 50,
    name: GammaName = "half-flat-half-quadratic",
) -> float:
    """The level alpha_t of test ``t`` given the acceptances known when it opens.

    Raises:
        ValueError: If ``alpha`` is outside (0, 1), an index is below its range, or more tests
            were accepted than were opened before ``t``.
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is {alpha!r}; it must lie in (0, 1)")
    if not 0 <= accepted_before < t:
        raise ValueError(f"accepted_before is {accepted_before!r}; it must lie in [0, {t - 1}]")
    return alpha * gamma(t, horizon=horizon, name=name) * (accepted_before + 1)


class ELond(Frozen):
    """The state of one epoch: how many tests were opened and how many accepted. A value."""

    alpha: float = 0.05
    horizon: int = 50
    gamma: GammaName = "half-flat-half-quadratic"
    opened: int = 0
    accepted: int = 0

    @property
    def next_level(self) -> float:
        """alpha_t of the test that would open next."""
        return level(
            self.opened + 1,
            self.accepted,
            alpha=self.alpha,
            horizon=self.horizon,
            name=self.gamma,
        )

    @property
    def next_threshold(self) -> float:
        """The e-value that the next test has to reach (infinite when its level is 0)."""
        alpha_t = self.next_level
        return 1.0 / alpha_t if alpha_t > 0.0 else math.inf

    def decide(self, e_value: float) -> tuple[bool, ELond]:
        """Judges the next test by its e-value at the stopping time.

        Args:
            e_value: Evidence at the stop, never its running maximum and never 1/p of a p-value:
                those are no e-values, and the promise would be void.

        Returns:
            Whether it is accepted, and the state after it.

        Raises:
            ValueError: If the e-value is negative or not a number.
        """
        if not e_value >= 0.0:
            raise ValueError(f"e-value {e_value!r} must be a number of at least 0")
        accepted = e_value >= self.next_threshold
        after = self.model_copy(
            update={"opened": self.opened + 1, "accepted": self.accepted + accepted}
        )
        return accepted, after
