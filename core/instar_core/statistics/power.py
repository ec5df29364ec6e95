"""Power: what a sealed test of a given size can find, computed before anything is spent.

For scores of 0 and 1 the mixture's evidence depends on wins and losses alone (ties are neutral at
mu0 = 0), so the chance of acceptance is exact: dynamic programming over losses gives the crossing
probability after m decisive pairs, and the number of decisive pairs among n is binomial. Graded
scores with less spread need fewer pairs than this says. The rule of at least ``min_pairs`` pairs is
left out.

Planning number and tables: ``acceptance-stats.md`` sections 2 and 3 (our own computation).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from instar_core.statistics.eprocess import bet_fractions, log_mixture

__all__ = [
    "PairModel",
    "Plan",
    "pair_model",
    "pairs_for_power",
    "plan",
    "planning_pairs",
    "power",
    "promised_effect",
    "rho_of_ties",
    "smallest_effect",
]

_CAP = 4000
_NEGLIGIBLE = 1e-12
_PLANNED_POWER = 0.9


class PairModel(NamedTuple):
    """How one pair falls: the chances that the candidate wins or loses it; the rest are ties."""

    win: float
    loss: float


class Plan(NamedTuple):
    """What a test of ``pairs`` pairs at a level can find; ``None`` where nothing can be found."""

    pairs: int
    alpha_t: float
    smallest_effect: float | None
    pairs_for_half_power: int | None
    pairs_for_80_power: int | None
    power: float | None


def pair_model(effect: float, *, base: float = 0.5, rho: float = 0.5) -> PairModel:
    """The pair model of 0/1 scores: success ``base`` against ``base + effect``, correlated by
    ``rho``.

    Args:
        effect: True gain, in [-base, 1 - base].
        base: The incumbent's success rate, in [0, 1].
        rho: Correlation of the two outcomes on one task, in [0, 1]; capped where impossible.

    Raises:
        ValueError: If a rate would leave [0, 1].
    """
    other = base + effect
    if not (0.0 <= base <= 1.0 and -1e-12 <= other <= 1.0 + 1e-12):
        raise ValueError(f"base {base!r} and effect {effect!r} give {other!r}; rates lie in [0, 1]")
    other = min(1.0, max(0.0, other))
    spread = math.sqrt(base * (1.0 - base) * other * (1.0 - other))
    both = min(base, other, max(0.0, base + other - 1.0, base * other + rho * spread))
    return PairModel(win=other - both, loss=base - both)


def rho_of_ties(tie_rate: float, *, base: float = 0.5) -> float:
    """The correlation that gives this share of ties between two equal versions, within [0, 1]."""
    spread = 2.0 * base * (1.0 - base)
    if spread <= 0.0:
        return 1.0
    return min(1.0, max(0.0, 1.0 - (1.0 - tie_rate) / spread))


@lru_cache(maxsize=64)
def _wins_needed(log_threshold: float, bets: int, most: int) -> tuple[int, ...]:
    """For each number of losses, the wins at which the evidence reaches the threshold."""
    fractions = bet_fractions(bets)
    up = [math.log1p(f) for f in fractions]
    down = [math.log1p(-f) for f in fractions]
    needed: list[int] = []
    wins = 0
    for losses in range(most + 1):
        while (
            log_mixture(wins * u + losses * v for u, v in zip(up, down, strict=True))
            < log_threshold
        ):
            wins += 1
            if wins + losses > most:
                return tuple(needed)
        needed.append(wins)
    return tuple(needed)


def _crossing_curve(q: float, needed: tuple[int, ...], most: int) -> list[float]:
    """The chance of having crossed within m = 0..most decisive pairs; q = P(win | decisive)."""
    alive = [1.0]  # alive[i]: probability of (first + i) losses, not crossed yet
    first, crossed, curve = 0, 0.0, [0.0]
    for m in range(1, most + 1):
        lost = 1.0 - q
        grown = [0.0] * (len(alive) + 1)
        for i, probability in enumerate(alive):
            grown[i] += probability * q
            grown[i + 1] += probability * lost
        # The crossing states are those with few losses: wins = m - losses reaches what is needed.
        skip = 0
        while (
            skip < len(grown)
            and first + skip < len(needed)
            and m - (first + skip) >= needed[first + skip]
        ):
            crossed += grown[skip]
            skip += 1
        while skip < len(grown) and grown[skip] < _NEGLIGIBLE:
            skip += 1
        # With more losses than the table holds the bar is out of reach for good.
        keep = min(len(grown), max(skip, len(needed) - first))
        while keep > skip and grown[keep - 1] < _NEGLIGIBLE:
            keep -= 1
        alive, first = grown[skip:keep], first + skip
        curve.append(crossed)
        if not alive:
            curve.extend([crossed] * (most - m))
            break
    return curve


def _mix(curve: list[float], n: int, decisive: float) -> float:
    """The curve averaged over the binomial number of decisive pairs among n."""
    if decisive >= 1.0:
        return curve[n]
    if decisive <= 0.0:
        return curve[0]
    sd = math.sqrt(n * decisive * (1.0 - decisive))
    low = max(0, int(n * decisive - 9 * sd - 9))
    high = min(n, int(n * decisive + 9 * sd + 9))
    log_p, log_q, log_n = math.log(decisive), math.log1p(-decisive), math.lgamma(n + 1)
    return math.fsum(
        curve[m]
        * math.exp(
            log_n - math.lgamma(m + 1) - math.lgamma(n - m + 1) + m * log_p + (n - m) * log_q
        )
        for m in range(low, high + 1)
    )


def power(n: int, alpha_t: float, model: PairModel, *, bets: int = 20) -> float:
    """The chance that a test accepts within ``n`` pairs when pairs fall as ``model`` says.

    Args:
        n: Pairs at most, looked at after every one.
        alpha_t: The test's level; it must reach evidence 1/alpha_t.
        model: Chances of a win and of a loss.
        bets: Number of constant bets in the mixture.

    Raises:
        ValueError: If ``n`` is negative or ``alpha_t`` outside (0, 1).
    """
    if n < 0 or not 0.0 < alpha_t < 1.0:
        raise ValueError(f"n is {n!r} and alpha_t {alpha_t!r}; need n >= 0 and 0 < alpha_t < 1")
    decisive = model.win + model.loss
    if decisive <= 0.0:
        return 0.0
    needed = _wins_needed(-math.log(alpha_t), bets, n)
    return _mix(_crossing_curve(model.win / decisive, needed, n), n, decisive)


def planning_pairs(alpha_t: float, model: PairModel) -> float:
    """The mean number of pairs until acceptance, by formula (within 15 to 25 %), or inf."""
    decisive = model.win + model.loss
    if model.win <= model.loss or decisive <= 0.0:
        return math.inf
    q = model.win / decisive
    growth = math.log(2.0) + q * math.log(q) + ((1 - q) * math.log(1 - q) if q < 1.0 else 0.0)
    return (math.log(1.0 / alpha_t) + 0.7) / (decisive * growth)


def pairs_for_power(
    target: float, alpha_t: float, model: PairModel, *, bets: int = 20, cap: int = _CAP
) -> int | None:
    """The fewest pairs that accept with probability ``target``; ``None`` beyond ``cap`` pairs."""
    estimate = planning_pairs(alpha_t, model)
    if math.isinf(estimate) or estimate > 3 * cap:
        return None
    decisive = model.win + model.loss
    most = min(cap, max(40, int(2.5 * estimate)))
    needed = _wins_needed(-math.log(alpha_t), bets, most)
    curve = _crossing_curve(model.win / decisive, needed, most)
    if _mix(curve, most, decisive) < target:
        if most == cap:
            return None
        needed = _wins_needed(-math.log(alpha_t), bets, cap)
        curve = _crossing_curve(model.win / decisive, needed, cap)
        most = cap
        if _mix(curve, most, decisive) < target:
            return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _mix(curve, middle, decisive) >= target else (middle, high)
    return high


@lru_cache(maxsize=256)
def smallest_effect(
    n: int,
    alpha_t: float,
    *,
    target: float = 0.8,
    base: float = 0.5,
    rho: float = 0.5,
    bets: int = 20,
) -> float | None:
    """The smallest gain that ``n`` pairs find with probability ``target``, to about 0.001.

    Returns:
        The gain, or ``None`` when even the largest possible gain (1 - base) would be missed.
    """
    high = 1.0 - base
    if n < 1 or power(n, alpha_t, pair_model(high, base=base, rho=rho), bets=bets) < target:
        return None
    low = 0.0
    while high - low > 0.0005:
        middle = 0.5 * (low + high)
        found = power(n, alpha_t, pair_model(middle, base=base, rho=rho), bets=bets)
        low, high = (low, middle) if found >= target else (middle, high)
    return high


def promised_effect(n: int, alpha_t: float, *, base: float = 0.5, bets: int = 20) -> float | None:
    """The gain that a quote may promise to find with a power of at least 80 %, or ``None``.

    Careful on purpose: it plans with a power of 90 % and with nothing shared between the two arms,
    so that the promise survives a correlation that was hoped for, a base rate that is a little off
    and a few missing pairs. ``instar selfcheck`` holds it to that with its oracle.

    Args:
        n: Pairs that the test may use.
        alpha_t: Its level.
        base: The incumbent's success rate.
        bets: Number of constant bets.
    """
    return smallest_effect(n, alpha_t, target=_PLANNED_POWER, base=base, rho=0.0, bets=bets)


def plan(
    pairs: int,
    alpha_t: float,
    *,
    effect: float | None = None,
    base: float = 0.5,
    rho: float = 0.5,
    bets: int = 20,
) -> Plan:
    """Everything a quote says about a test: what it can find, and what an expected gain needs.

    Args:
        pairs: Pairs that the test may use.
        alpha_t: Its level.
        effect: The gain hoped for; without one, the smallest detectable gain is used.
        base: The incumbent's success rate (its validation mean).
        rho: Correlation of the two outcomes on one task.
        bets: Number of constant bets.
    """
    base = min(1.0, max(0.0, base))
    smallest = smallest_effect(pairs, alpha_t, base=base, rho=rho, bets=bets)
    hoped = smallest if effect is None else min(effect, 1.0 - base)
    if hoped is None or hoped <= 0.0:
        return Plan(pairs, alpha_t, smallest, None, None, None)
    model = pair_model(hoped, base=base, rho=rho)
    return Plan(
        pairs=pairs,
        alpha_t=alpha_t,
        smallest_effect=smallest,
        pairs_for_half_power=pairs_for_power(0.5, alpha_t, model, bets=bets),
        pairs_for_80_power=pairs_for_power(0.8, alpha_t, model, bets=bets),
        power=power(pairs, alpha_t, model, bets=bets),
    )
