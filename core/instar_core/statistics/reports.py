"""Report figures: pass@k, pass^k and Brier scores. For showing; the gate never decides by them.

Chen et al. 2021, arXiv 2107.03374, equation 1 (pass@k); Yao et al. 2024, arXiv 2406.12045, section
3 (pass^k); Brier, Monthly Weather Review 78(1), 1950; Murphy, J. Appl. Meteorol. 12, 1973.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["BrierParts", "brier", "brier_multiclass", "pass_at_k", "pass_hat_k"]


class BrierParts(NamedTuple):
    """A Brier score (0 is best), its skill against the base rate, and Murphy's three parts."""

    score: float
    base_rate: float
    reference: float
    skill: float
    reliability: float
    resolution: float
    uncertainty: float


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"n={n!r}, c={c!r}, k={k!r}: need 0 <= c <= n and 1 <= k <= n")


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that at least one of k attempts succeeds, from c successes in n (unbiased).

    Raises:
        ValueError: Unless 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The chance that all of k attempts succeed (pass^k), from c successes in n (unbiased).

    Raises:
        ValueError: Unless 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def brier(forecasts: Sequence[float], outcomes: Sequence[int]) -> BrierParts:
    """The Brier score of probabilities against 0/1 outcomes, with Murphy's decomposition.

    Raises:
        ValueError: If the lengths differ, nothing is given, or a forecast is outside [0, 1].
    """
    n = len(forecasts)
    if n == 0 or n != len(outcomes):
        raise ValueError(f"{n} forecasts for {len(outcomes)} outcomes: need as many, at least one")
    outside = [p for p in forecasts if not 0.0 <= p <= 1.0]
    if outside:
        raise ValueError(f"forecast {outside[0]!r} is outside [0, 1]")
    score = math.fsum((p - y) ** 2 for p, y in zip(forecasts, outcomes, strict=True)) / n
    base = sum(outcomes) / n
    bins: dict[float, list[int]] = {}
    for p, y in zip(forecasts, outcomes, strict=True):
        bins.setdefault(p, []).append(y)
    means = [(p, len(ys), sum(ys) / len(ys)) for p, ys in bins.items()]
    reference = base * (1.0 - base)
    return BrierParts(
        score=score,
        base_rate=base,
        reference=reference,
        skill=1.0 - score / reference if reference > 0.0 else math.nan,
        reliability=math.fsum(k * (p - mean) ** 2 for p, k, mean in means) / n,
        resolution=math.fsum(k * (mean - base) ** 2 for _, k, mean in means) / n,
        uncertainty=reference,
    )


def brier_multiclass(forecasts: Sequence[Sequence[float]], outcomes: Sequence[int]) -> float:
    """Brier's original score over several classes, in [0, 2]; lower is better."""
    return math.fsum(
        math.fsum((p - (j == y)) ** 2 for j, p in enumerate(row))
        for row, y in zip(forecasts, outcomes, strict=True)
    ) / len(outcomes)
