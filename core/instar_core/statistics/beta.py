"""Beta distributions: incomplete beta function, posteriors of success rates, sign-test e-values.

For allocation and finished samples only: a posterior probability is no licence to stop when it
looks good. Written in plain Python so that the core needs no scipy.

Continued fraction: DLMF 8.17.22, evaluated by Lentz's method. Posteriors: Thompson, Biometrika 25,
1933; closed form of P(better): Miller, "Formulas for Bayesian A/B testing". Sign-test e-values:
Robbins 1970 (method of mixtures); Ramdas et al., Stat. Sci. 38(4), 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = [
    "beta_cdf",
    "beta_quantile",
    "log_beta",
    "log_beta_cdf",
    "probability_best",
    "probability_better",
    "sign_test_e_value",
]

_TINY = 1e-300


def log_beta(a: float, b: float) -> float:
    """The log of the beta function."""
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, for x below (a+1)/(a+b+2)."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, 10_000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + numerator / c
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    return value


def log_beta_cdf(x: float, a: float, b: float) -> float:
    """The log of P(X <= x) for X ~ Beta(a, b); exact in the far tail too."""
    if x <= 0.0:
        return -math.inf
    if x >= 1.0:
        return 0.0
    if x > (a + 1.0) / (a + b + 2.0):
        return math.log1p(-math.exp(log_beta_cdf(1.0 - x, b, a)))
    front = a * math.log(x) + b * math.log1p(-x) - math.log(a) - log_beta(a, b)
    return front + math.log(_fraction(a, b, x))


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X <= x) for X ~ Beta(a, b)."""
    return math.exp(log_beta_cdf(x, a, b))


def beta_quantile(p: float, a: float, b: float) -> float:
    """The p-quantile of Beta(a, b), by bisection.

    Raises:
        ValueError: If ``p`` is outside [0, 1].
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p is {p!r}; it must lie in [0, 1]")
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if beta_cdf(middle, a, b) < p else (low, middle)
    return 0.5 * (low + high)


def probability_better(a1: int, b1: int, a2: float, b2: float) -> float:
    """P(X1 > X2) for independent X1 ~ Beta(a1, b1) (a1 a whole number) and X2 ~ Beta(a2, b2)."""
    return math.fsum(
        math.exp(
            log_beta(a2 + i, b1 + b2) - math.log(b1 + i) - log_beta(1 + i, b1) - log_beta(a2, b2)
        )
        for i in range(a1)
    )


def probability_best(arms: Sequence[tuple[float, float]], *, points: int = 2000) -> list[float]:
    """P(arm is best) for each Beta(a, b) arm: the chance that Thompson sampling picks it.

    Simpson's rule over (0, 1) with ``points`` (even) intervals; about 1e-10 exact.
    """
    totals = [0.0] * len(arms)
    for k in range(1, points):
        t = k / points
        weight = (4.0 if k % 2 else 2.0) / (3.0 * points)
        logs = [log_beta_cdf(t, a, b) for a, b in arms]
        total = math.fsum(logs)
        for i, (a, b) in enumerate(arms):
            density = (a - 1) * math.log(t) + (b - 1) * math.log1p(-t) - log_beta(a, b)
            totals[i] += weight * math.exp(total - logs[i] + density)
    # The ends matter only where a density is not 0 there (a or b of 1); all other cdfs at 0 are 0.
    ends = [1.0 / (3.0 * points) * (b == 1) / math.exp(log_beta(a, b)) for a, b in arms]
    start = [
        1.0 / (3.0 * points) * (a == 1) * (len(arms) == 1) / math.exp(log_beta(a, b))
        for a, b in arms
    ]
    return [total + end + first for total, end, first in zip(totals, ends, start, strict=True)]


def sign_test_e_value(
    wins: int, losses: int, *, a: float = 1.0, b: float = 1.0, one_sided: bool = True
) -> float:
    """The Beta-binomial sign-test e-value against P(win | no tie) <= 1/2 (or = 1/2, two-sided).

    For differences in {-1, 0, 1} and the uniform prior, the one-sided value is the limit of the
    default mixture as its number of bets grows.
    """
    n = wins + losses
    log_e = n * math.log(2.0) + log_beta(a + wins, b + losses) - log_beta(a, b)
    if one_sided:
        log_e += log_beta_cdf(0.5, b + losses, a + wins) - log_beta_cdf(0.5, b, a)
    return math.exp(log_e)
