"""Paired bootstrap: an interval for a mean difference of a finished sample of fixed size.

Efron & Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3 (percentile interval).
Not valid under peeking: the gate's own interval is
:func:`instar_core.statistics.eprocess.interval`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["paired_bootstrap"]


def paired_bootstrap(
    differences: Sequence[float], *, level: float = 0.95, resamples: int = 10_000, seed: int
) -> tuple[float, float]:
    """The percentile interval of the mean of paired differences.

    Args:
        differences: One difference per pair, at least two.
        level: Coverage aimed at, in (0, 1).
        resamples: Number of resamples.
        seed: Seed of numpy's PCG64; the same seed gives the same interval.

    Returns:
        (lower, upper).

    Raises:
        ValueError: If fewer than two pairs are given or ``level`` is outside (0, 1).
    """
    if len(differences) < 2:
        raise ValueError(f"{len(differences)} pairs given; a bootstrap needs at least 2")
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level!r}; it must lie in (0, 1)")
    import numpy

    sample = numpy.asarray(differences, dtype=numpy.float64)
    generator = numpy.random.Generator(numpy.random.PCG64(seed))
    picks = generator.integers(0, len(sample), size=(resamples, len(sample)))
    means = sample[picks].mean(axis=1)
    tail = 50.0 * (1.0 - level)
    lower, upper = numpy.percentile(means, [tail, 100.0 - tail])
    return float(lower), float(upper)
