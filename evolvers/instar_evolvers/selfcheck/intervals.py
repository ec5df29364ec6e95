"""Intervals: exact (Clopper-Pearson) limits for a share of runs.

Clopper & Pearson, Biometrika 26, 1934: the limits are quantiles of beta distributions.
"""

from __future__ import annotations

from instar_core.statistics.beta import beta_quantile

__all__ = ["exact_interval", "upper_limit"]


def exact_interval(count: int, total: int, *, level: float = 0.95) -> tuple[float, float]:
    """The two-sided exact interval for the share that ``count`` of ``total`` estimates.

    Returns:
        (lower, upper); (0, 1) where nothing was counted.
    """
    if total == 0:
        return (0.0, 1.0)
    tail = (1.0 - level) / 2.0
    lower = 0.0 if count == 0 else beta_quantile(tail, count, total - count + 1)
    upper = 1.0 if count == total else beta_quantile(1.0 - tail, count + 1, total - count)
    return (lower, upper)


def upper_limit(count: int, total: int, *, level: float = 0.95) -> float:
    """The exact one-sided upper limit for the share."""
    if count >= total:
        return 1.0
    return beta_quantile(level, count + 1, total - count)
