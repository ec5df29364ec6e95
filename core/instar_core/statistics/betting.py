"""Betting rules other than the default mixture, for comparison and for the option list.

All bet on x = (d + 1)/2 in [0, 1] against the mean m; the capital is prod(1 + lambda_i (x_i - m))
and bet i uses pairs before i only. The gate does not use them (``acceptance-stats.md`` section 3
says why); plug-in rules also lose their validity in reshuffled passes.

Waudby-Smith & Ramdas, JRSS-B 86(1), 2024 (arXiv 2010.09686): predictable plug-in section 3.2,
hedged capital section 4, aGRAPA, LBOW and dKelly supplement B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

__all__ = [
    "agrapa_bets",
    "capital",
    "dkelly_capital",
    "hedged_capital",
    "hedged_interval",
    "lbow_bets",
    "plug_in",
    "prpl_eb_bets",
    "prpl_eb_interval",
    "prpl_hoeffding_interval",
]


def plug_in(x: Sequence[float]) -> tuple[list[float], list[float]]:
    """Regularised running mean and variance *before* each pair: entry i uses x[:i] only."""
    means, variances = [0.5], [0.25]
    total, spread = 0.5, 0.25
    for i, value in enumerate(x, start=1):
        total += value
        mean = total / (i + 1)
        spread += (value - mean) ** 2
        means.append(mean)
        variances.append(spread / (i + 1))
    return means[:-1], variances[:-1]


def capital(x: Sequence[float], m: float, bets: Sequence[float]) -> list[float]:
    """The capital after each pair when ``bets[i]`` is staked on pair i against mean ``m``."""
    values, product = [], 1.0
    for value, bet in zip(x, bets, strict=True):
        product *= 1.0 + bet * (value - m)
        values.append(product)
    return values


def prpl_eb_bets(x: Sequence[float], alpha: float = 0.05) -> list[float]:
    """Predictable plug-in empirical-Bernstein bets, untruncated. ``alpha`` only tunes them."""
    _, variances = plug_in(x)
    return [
        math.sqrt(2.0 * math.log(1.0 / alpha) / (variance * t * math.log(1 + t)))
        for t, variance in enumerate(variances, start=1)
    ]


def agrapa_bets(x: Sequence[float], m: float) -> list[float]:
    """Approximate growth-rate adaptive bets, signed and before truncation."""
    means, variances = plug_in(x)
    return [
        (mean - m) / (variance + (mean - m) ** 2)
        for mean, variance in zip(means, variances, strict=True)
    ]


def lbow_bets(x: Sequence[float], m: float, variances: Sequence[float]) -> list[float]:
    """Lower-bound-on-the-wealth bets, signed, with the given predictable variances.

    A bet is 0 where mean and variance leave nothing to bet on (0/0 in the authors' package).
    """
    means, _ = plug_in(x)
    bets = []
    for mean, variance in zip(means, variances, strict=True):
        gap = mean - m
        edge = m if mean > m else 1.0 - m
        denominator = edge * abs(gap) + variance + gap * gap
        bets.append(gap / denominator if denominator > 0.0 else 0.0)
    return bets


def dkelly_capital(x: Sequence[float], m: float, bets: int = 10) -> list[float]:
    """Diversified Kelly, positive part: the mean capital of the fractions i/(D+1) of 1/m."""
    products = [1.0] * bets
    values = []
    for value in x:
        products = [
            p * (1.0 + (i / (bets + 1)) / m * (value - m)) for i, p in enumerate(products, start=1)
        ]
        values.append(math.fsum(products) / bets)
    return values


def hedged_capital(
    x: Sequence[float], m: float, *, alpha: float = 0.05, c: float = 0.5
) -> tuple[list[float], list[float]]:
    """The two halves (upward and downward) of the hedged capital with PrPl-EB bets at alpha/2."""
    bets = prpl_eb_bets(x, alpha / 2.0)
    up = capital(x, m, [min(bet, c / m) for bet in bets])
    down = capital(x, m, [-min(bet, c / (1.0 - m)) for bet in bets])
    return up, down


def hedged_interval(x: Sequence[float], *, alpha: float = 0.05) -> tuple[float, float]:
    """Hedged interval for the mean of x at its end, by bisection (may be empty: l > u)."""

    def smallest(accepts: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if accepts(middle) else (middle, high)
        return high

    limit = 2.0 / alpha
    lower = smallest(lambda m: hedged_capital(x, m, alpha=alpha)[0][-1] <= limit)
    mirrored = [1.0 - value for value in x]
    upper = 1.0 - smallest(lambda m: hedged_capital(mirrored, m, alpha=alpha)[0][-1] <= limit)
    return lower, upper


def prpl_eb_interval(x: Sequence[float], *, alpha: float = 0.05) -> tuple[float, float]:
    """Closed-form predictable plug-in empirical-Bernstein interval for the mean of x at its end."""
    means, _ = plug_in(x)
    bets = [min(bet, 0.5) for bet in prpl_eb_bets(x, alpha / 2.0)]
    total = math.fsum(bets)
    centre = math.fsum(b * v for b, v in zip(bets, x, strict=True)) / total
    penalty = math.fsum(
        (v - mean) ** 2 * (-math.log1p(-b) - b) for v, mean, b in zip(x, means, bets, strict=True)
    )
    half = (math.log(2.0 / alpha) + penalty) / total
    return max(0.0, centre - half), min(1.0, centre + half)


def prpl_hoeffding_interval(x: Sequence[float], *, alpha: float = 0.05) -> tuple[float, float]:
    """Closed-form predictable plug-in Hoeffding interval for the mean of x at its end."""
    bets = [
        min(math.sqrt(8.0 * math.log(2.0 / alpha) / (t * math.log(1 + t))), 1.0)
        for t in range(1, len(x) + 1)
    ]
    total = math.fsum(bets)
    centre = math.fsum(b * v for b, v in zip(bets, x, strict=True)) / total
    half = (math.log(2.0 / alpha) + math.fsum(b * b / 8.0 for b in bets)) / total
    return max(0.0, centre - half), min(1.0, centre + half)
