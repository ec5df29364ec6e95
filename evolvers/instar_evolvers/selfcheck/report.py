"""Report: many runs spread over processes, added up to rates with exact intervals."""

from __future__ import annotations

import multiprocessing
import secrets
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Literal, get_args

from instar_core.base import JsonValue
from instar_core.errors import UserError
from instar_core.evolution import AcceptanceConfig
from instar_evolvers.registry import list_evolvers
from instar_evolvers.selfcheck.controls import quoted_effect
from instar_evolvers.selfcheck.intervals import exact_interval, upper_limit
from instar_evolvers.selfcheck.runs import Job, RunResult, perform
from instar_evolvers.worlds.spec import WorldName

__all__ = ["DEFAULT_RUNS", "run_selfcheck"]

DEFAULT_RUNS = {"null": 200, "lottery": 200, "planted": 24}
_CONTROLS: tuple[Literal["argmax"], Literal["oracle"]] = ("argmax", "oracle")


def run_selfcheck(
    world: str,
    evolvers: Sequence[str],
    *,
    runs: int | None = None,
    nights: int = 1,
    seed: int | None = None,
    processes: int = 2,
) -> dict[str, JsonValue]:
    """How often each evolver promotes something false, or what it finds where there is something.

    The check is conservative: where an evolver returns the seed, its best other candidate is put
    forward all the same. Every run has a world, a Lab and a sealed book of its own. Controls run on
    ``null`` where the world itself offers something to find.

    Args:
        world: ``null``, ``lottery`` or ``planted``.
        evolvers: Names as in the registry.
        runs: Runs per evolver; 200, or 24 on ``planted``, by default.
        nights: Nights per run, all in one epoch of sealed tests.
        seed: Draws laws, constants and outcomes; drawn anew and reported by default.
        processes: Worker processes; 1 runs everything in this one.

    Returns:
        JSON: ``evolvers``, ``controls``, ``pooled_upper`` (one-sided 95 % limit of false promotion
        over all evolvers' runs), ``seed``, ``interval`` (the method of all intervals).

    Raises:
        UserError: If the world or an evolver is unknown, or a number does not fit.
    """
    count = _check(world, evolvers, runs, nights)
    seed = secrets.randbelow(1_000_000_000) if seed is None else seed
    control_world = "null" if world == "planted" else world
    jobs = [
        Job(world=world, kind="evolver", evolver=name, number=number, nights=nights, seed=seed)
        for name in evolvers
        for number in range(count)
    ]
    jobs += [
        Job(world=control_world, kind=kind, evolver=kind, number=number, nights=1, seed=seed)
        for kind in _CONTROLS
        for number in range(_control_runs(world, count))
    ]
    results = _spread(jobs, processes)
    by_name: dict[str, list[RunResult]] = {}
    for result in results:
        by_name.setdefault(result.evolver, []).append(result)
    rows = [_row(name, by_name[name], nights, planted=world == "planted") for name in evolvers]
    report: dict[str, JsonValue] = {
        "world": world,
        "seed": seed,
        "evolvers": list[JsonValue](rows),
        "controls": {name: _rate(by_name[name]) for name in _CONTROLS},
        "control_intervals": {name: _interval(by_name[name]) for name in _CONTROLS},
        "control_runs": len(by_name["argmax"]),
        "control_world": control_world,
        "quoted_effect": round(quoted_effect(AcceptanceConfig()), 4),
        "interval": "exact (Clopper-Pearson), 95 %",
    }
    if world != "planted":
        false = sum(_promoted(by_name[name]) for name in evolvers)
        report["pooled_upper"] = upper_limit(false, count * len(evolvers))
    return report


def _check(world: str, evolvers: Sequence[str], runs: int | None, nights: int) -> int:
    if world not in get_args(WorldName):
        raise UserError(
            f"Unknown world {world!r}.", remedy=f"Worlds: {', '.join(get_args(WorldName))}."
        )
    unknown = [name for name in evolvers if name not in list_evolvers()]
    if unknown or not evolvers:
        raise UserError(
            f"Unknown evolver {unknown[0]!r}." if unknown else "No evolver was named.",
            remedy=f"Known: {', '.join(list_evolvers())}.",
        )
    count = DEFAULT_RUNS[world] if runs is None else runs
    if count < 1 or nights < 1:
        raise UserError(f"runs is {count} and nights {nights}.", remedy="Both must be at least 1.")
    return count


def _control_runs(world: str, count: int) -> int:
    """A few worlds with lessons need a hundred control runs beside them, unless it is a sketch."""
    return max(count, 100) if world == "planted" and count >= 20 else count


def _spread(jobs: Sequence[Job], processes: int) -> list[RunResult]:
    if processes <= 1:
        return [perform(job) for job in jobs]
    # Fresh interpreters: a fork would copy locks and threads of whoever called.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return list(pool.map(perform, jobs, chunksize=max(1, min(16, len(jobs) // 16))))


def _row(
    name: str, results: Sequence[RunResult], nights: int, *, planted: bool
) -> dict[str, JsonValue]:
    pairs = [pairs for result in results for pairs in result.pairs]
    rollouts = [count for result in results for count in result.search_rollouts]
    row: dict[str, JsonValue] = {
        "name": name,
        "runs": len(results),
        "nights": nights,
        "proposals_tested": sum(result.tested for result in results),
        "without_candidate": sum(result.without_candidate for result in results),
        "pairs_median": median(pairs) if pairs else 0,
        "search_rollouts_median": median(rollouts) if rollouts else 0,
        "search_rollouts_least": min(rollouts, default=0),
    }
    if not planted:
        row["false_promotions"] = _promoted(results)
        row["false_promotion_rate"] = _rate(results)
        row["interval"] = _interval(results)
        row["claimed_better"] = sum(result.claimed for result in results) / len(results)
        return row
    row["promotion_rate"] = _rate(results)
    row["interval"] = _interval(results)
    row["true_gain_median"] = median(result.true_gain for result in results)
    if sum(result.helpful_offered for result in results):
        row.update(_lesson_rates(results))
    return row


def _lesson_rates(results: Sequence[RunResult]) -> dict[str, JsonValue]:
    def total(field: str) -> int:
        return sum(int(getattr(result, field)) for result in results)

    rates: dict[str, JsonValue] = {}
    for rate, part, whole in (
        ("helpful_recall", "helpful_kept", "helpful_all"),
        ("helpful_recall_of_offered", "helpful_kept", "helpful_offered"),
        ("harmful_kept", "harmful_kept", "harmful_offered"),
        ("useless_kept", "useless_kept", "useless_offered"),
    ):
        found, of = total(part), total(whole)
        rates[rate] = found / of if of else 0.0
        rates[f"{rate}_interval"] = list(exact_interval(found, of))
        rates[f"{rate}_counts"] = [found, of]
    return rates


def _promoted(results: Sequence[RunResult]) -> int:
    return sum(result.promotions > 0 for result in results)


def _rate(results: Sequence[RunResult]) -> float:
    return _promoted(results) / len(results)


def _interval(results: Sequence[RunResult]) -> list[JsonValue]:
    return list(exact_interval(_promoted(results), len(results)))
