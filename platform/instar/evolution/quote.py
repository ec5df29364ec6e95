"""Quotes: what a run will take and what it could detect, before anything is spent.

A quote refuses, with the reason, a run that could not work: no sealed tasks, a budget that cannot
detect the gain asked for, a tool without a test binding, a model that does not answer.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from instar.evolution.backends import BackendPlan, check_backend, check_proposer
from instar.evolution.probing import PerRollout, measured_before, probe
from instar.evolution.schemas import EvolutionSpec
from instar.settings import Settings
from instar.store.agents import (
    AgentVersion,
    list_closed_parts,
    load_candidate_version,
    read_agent,
)
from instar.store.evolution import latest_measurement
from instar.store.sealed import read_epoch
from instar.store.session import Database
from instar.store.task_sets import (
    TaskSetVersion,
    count_sealed_missing,
    count_tasks,
    read_bindings,
    read_splits,
    read_task_set,
)
from instar_core.base import JsonValue, content_hash
from instar_core.candidates import Candidate
from instar_core.errors import UserError
from instar_core.evolution import Quote
from instar_core.lab import Evolver
from instar_core.statistics.elond import level
from instar_core.statistics.power import plan, promised_effect
from instar_core.tasks import Splits
from instar_core.usage import Amount, Remaining
from instar_evolvers.registry import check_seed, least_rollouts, open_evolver

__all__ = ["Ground", "harness_digest", "make_quote", "read_ground"]

_LEAST_SEARCH = 16
_RHO = 0.0
"""Correlation of the two arms that is planned with: none, so that the promise holds anyway."""
_DEFAULT_SEARCH = 400
_GROWS = ("demonstrations", "lessons")
_SLACK = 1.5
"""How far a run may exceed what is expected; tokens and money twice that, since what is learned
makes prompts longer than the probes' were."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a spec refers to, resolved: agent version, tasks, bindings, and the epoch's state."""

    agent: AgentVersion
    candidate: Candidate
    task_set: TaskSetVersion
    splits: Splits
    sealed_groups: int
    sealed_missing: int
    closed: list[str]
    bindings: dict[str, JsonValue]
    epoch_tests: int
    epoch_accepted: int
    measured: dict[str, Any] | None
    search_wanted: int | None
    search_least: int
    evolver: Evolver

    def plan(self, project_id: str, spec: EvolutionSpec) -> BackendPlan:
        """What the backend of this run is opened for."""
        return BackendPlan(project_id, self.candidate, self.bindings, spec.model or "")


def harness_digest(candidate: Candidate) -> str:
    """Names everything that decides what a rollout costs, except the text under evolution."""
    return content_hash(candidate.harness)


async def read_ground(db: Database, project_id: str, spec: EvolutionSpec) -> Ground:
    """Resolves what a spec names.

    Raises:
        NotFoundError: If agent, version, label or task set do not exist.
        UserError: If the evolver is unknown or its configuration does not fit.
    """
    evolver = open_evolver(spec.evolver, spec.evolver_config)
    config = getattr(evolver, "config", None)
    async with db.transaction(project_id) as session:
        agent = await read_agent(session, project_id, spec.agent, spec.version)
        candidate = await load_candidate_version(session, agent.id)
        trainable = [name for name, part in candidate.components.items() if part.trainable]
        ref = "latest" if spec.task_set_version is None else spec.task_set_version
        task_set = await read_task_set(session, project_id, spec.task_set, ref)
        counts = await count_tasks(session, task_set.id)
        splits = await read_splits(session, task_set.id)
        tests, accepted = await read_epoch(session, spec.agent, spec.acceptance.epoch_tests)
        return Ground(
            agent=agent,
            candidate=candidate,
            task_set=task_set,
            splits=splits,
            sealed_groups=counts["sealed"].groups,
            sealed_missing=await count_sealed_missing(session, task_set.id),
            closed=await list_closed_parts(session, agent.id, trainable),
            bindings=await read_bindings(session, task_set.id),
            epoch_tests=tests,
            epoch_accepted=accepted,
            measured=await latest_measurement(session, project_id, harness_digest(candidate)),
            search_wanted=getattr(config, "search_rollouts", None),
            search_least=max(_LEAST_SEARCH, least_rollouts(evolver, splits)),
            evolver=evolver,
        )


async def make_quote(
    db: Database, project_id: str, spec: EvolutionSpec, ground: Ground, settings: Settings
) -> Quote:
    """The quote of a run, or the reason why it is refused.

    Raises:
        UserError: If the run could not detect anything, does not fit its limits, or cannot run.
        PrerequisiteError: If a model cannot be asked now.
    """
    _check_open(spec, ground)
    _check_tasks(spec, ground)
    check_seed(ground.evolver, ground.candidate, ground.splits)
    check_proposer(ground.evolver, ground.plan(project_id, spec), settings)
    tasks = (*ground.splits.train, *ground.splits.validation)
    await check_backend(ground.plan(project_id, spec), db, settings, tasks)
    sizes = _plan_sizes(spec, ground)
    per = await _measure(db, project_id, spec, ground, settings)
    seconds = spec.seconds_per_rollout or per.seconds
    rollouts = sizes["baseline"] + sizes["search"] + sizes["sealed"]
    expected = Amount(
        rollouts=rollouts,
        tokens=math.ceil(rollouts * per.tokens),
        cost_usd=round(rollouts * per.cost_usd, 6),
        wall_s=round(rollouts * seconds, 1),
    )
    _check_limits(spec.limit, expected)
    alpha_t = level(
        ground.epoch_tests + 1,
        ground.epoch_accepted,
        alpha=spec.acceptance.alpha,
        horizon=spec.acceptance.epoch_tests,
    )
    base, bets = 0.5 if per.mean is None else per.mean, spec.acceptance.bets
    # The promised number is the careful one, which `instar selfcheck` holds the tests to.
    smallest = await asyncio.to_thread(
        promised_effect, sizes["pairs"], alpha_t, base=base, bets=bets
    )
    hoped = spec.target_effect or smallest
    found = await asyncio.to_thread(
        plan, sizes["pairs"], alpha_t, effect=hoped, base=base, rho=_RHO, bets=bets
    )
    _check_power(spec, sizes["pairs"], alpha_t, smallest, found.pairs_for_80_power, base)
    return Quote(
        expected=expected,
        limit=_limit(spec.limit, expected, ground.candidate, settings),
        seconds_per_rollout=round(seconds, 4),
        sealed_pairs=sizes["pairs"],
        alpha_t=alpha_t,
        pairs_for_half_power=found.pairs_for_half_power,
        pairs_for_80_power=found.pairs_for_80_power,
        smallest_detectable_effect=smallest,
        probes=per.probes,
        assumptions=_assumptions(ground, sizes, per, base),
        warnings=_warnings(spec, ground, sizes, per),
        made_at=datetime.now(UTC),
    )


def _assumptions(
    ground: Ground, sizes: dict[str, int], per: PerRollout, base: float
) -> dict[str, JsonValue]:
    """What the quote counted with, for those who check it."""
    return {
        "baseline_rollouts": sizes["baseline"],
        "search_rollouts": sizes["search"],
        "sealed_rollouts": sizes["sealed"],
        "seconds_from": per.source,
        "tokens_per_rollout": round(per.tokens, 1),
        "cost_usd_per_rollout": round(per.cost_usd, 6),
        "cost_known": per.cost_known,
        "base_rate": round(base, 3),
        "base_rate_from": "assumed" if per.mean is None else per.source,
        "correlation": _RHO,
        "agent_version": ground.agent.version,
        "agent_digest": ground.agent.digest,
        "task_set_version": ground.task_set.version,
        "index_in_epoch": ground.epoch_tests + 1,
    }


def _check_open(spec: EvolutionSpec, ground: Ground) -> None:
    """Refuses a run that could save nothing of what it learns, before it spends anything."""
    if not ground.closed:
        return
    parts = [f"its component {name!r}" if name else "the agent itself" for name in ground.closed]
    raise UserError(
        f"The agent {spec.agent!r} is closed to runs: {', '.join(parts)} may only be read by them "
        "(job_access 'none').",
        remedy="Open it (`instar artifact describe KIND NAME --job-access overlay`; a component is "
        "named 'agent/component'), or save the agent with 'trainable': false on what runs shall "
        "leave alone.",
    )


def _check_tasks(spec: EvolutionSpec, ground: Ground) -> None:
    name = f"The task set {spec.task_set!r}"
    if not ground.splits.train or not ground.splits.validation:
        raise UserError(
            f"{name} has {len(ground.splits.train)} train and {len(ground.splits.validation)} "
            "validation tasks; a search needs both.",
            remedy="Import tasks with these splits.",
        )
    if ground.sealed_groups < spec.acceptance.min_pairs:
        raise UserError(
            f"{name} has {ground.sealed_groups} sealed groups; a sealed test needs at least "
            f"{spec.acceptance.min_pairs}, so no gain could be shown.",
            remedy="Add sealed tasks in new groups.",
        )
    if ground.sealed_missing:
        raise UserError(
            f"{name} has {ground.sealed_missing} sealed tasks without content: they were imported "
            "without it, so no sealed test can run.",
            remedy="Import an export that was made with --with-sealed, or import the tasks anew.",
        )


def _plan_sizes(spec: EvolutionSpec, ground: Ground) -> dict[str, int]:
    """How many rollouts go to which part; the search gets what the sealed test leaves over."""
    rules = spec.acceptance
    per_pair = 2 * rules.repeats
    baseline = min(spec.validation_tasks, len(ground.splits.validation))
    pairs = min(rules.max_pairs, ground.sealed_groups)
    wanted, fewest = ground.search_wanted or _DEFAULT_SEARCH, ground.search_least
    if ground.search_wanted is None:
        wanted = max(wanted, fewest)
    elif wanted < fewest:
        raise UserError(
            f"A search of {wanted} rollouts is too small: below {fewest} {spec.evolver} can tell "
            "nothing on these tasks.",
            remedy=f"Set search_rollouts of the evolver to {fewest} or more.",
        )
    limit = spec.limit.rollouts
    if limit is None:
        search = wanted
    else:
        least = baseline + fewest + rules.min_pairs * per_pair
        if limit < least:
            raise UserError(
                f"A budget of {limit} rollouts cannot show any gain: {baseline} measure the "
                f"present version, at least {fewest} search, and the smallest sealed test "
                f"of {rules.min_pairs} pairs takes {rules.min_pairs * per_pair}.",
                remedy=f"Allow at least {least} rollouts.",
            )
        # A sealed test that sees little is of no use, so the search yields first, to a third.
        spare = limit - baseline
        search = min(wanted, max(fewest, spare - pairs * per_pair, spare // 3))
        pairs = min(pairs, (spare - search) // per_pair)
        if pairs < rules.min_pairs:
            pairs = rules.min_pairs
            search = spare - pairs * per_pair
    return {
        "baseline": baseline,
        "search": search,
        "pairs": pairs,
        "sealed": pairs * per_pair,
    }


def _check_limits(limit: Remaining, expected: Amount) -> None:
    units = {"tokens": "tokens", "cost_usd": "USD", "wall_s": "seconds"}
    for name, unit in units.items():
        allowed, needed = getattr(limit, name), getattr(expected, name)
        if allowed is not None and needed > allowed:
            raise UserError(
                f"The run is expected to take {needed:g} {unit}, and its limit is {allowed:g}.",
                remedy=f"Allow at least {needed:g} {unit}, or fewer rollouts.",
            )


def _check_power(  # noqa: PLR0913 - what the two refusals quote
    spec: EvolutionSpec,
    pairs: int,
    alpha_t: float,
    smallest: float | None,
    needed: int | None,
    base: float,
) -> None:
    if smallest is None:
        raise UserError(
            f"The present version scores about {base:.2f}, so a gain is at most {1 - base:.2f}; "
            f"with {pairs} pairs at level {alpha_t:.2g} (evidence {1 / alpha_t:.0f} : 1) not even "
            "that would be found 4 times in 5.",
            remedy="Add harder tasks, or more sealed tasks and rollouts.",
        )
    target = spec.target_effect
    if target is not None and smallest > target + 1e-9:
        more = f"about {needed} pairs" if needed is not None else "more pairs than can be planned"
        raise UserError(
            f"A gain of {target:+.3f} could not be detected: {pairs} pairs find gains of "
            f"{smallest:+.3f} or more with 80 % power.",
            remedy=f"It takes {more}: add sealed tasks, allow more rollouts, or aim higher.",
        )


def _limit(limit: Remaining, expected: Amount, candidate: Candidate, settings: Settings) -> Amount:
    """Limits as asked for; what was left open is bounded by what is expected, with slack."""
    width = settings.worker.rollout_concurrency
    bounds = candidate.harness.limits
    # Reservations are upper bounds: the calls in flight hold far more than they will use.
    in_flight = width * bounds.max_tokens
    per_rollout = expected.cost_usd / max(1, expected.rollouts)
    cost = 2 * _SLACK * expected.cost_usd + width * min(bounds.max_cost_usd, 20 * per_rollout)
    wall = max(600.0, 4.0 * expected.wall_s) + bounds.timeout_s
    return Amount(
        rollouts=expected.rollouts + width if limit.rollouts is None else limit.rollouts,
        tokens=math.ceil(2 * _SLACK * expected.tokens) + in_flight
        if limit.tokens is None
        else limit.tokens,
        cost_usd=round(cost, 6) if limit.cost_usd is None else limit.cost_usd,
        wall_s=round(wall, 1) if limit.wall_s is None else limit.wall_s,
    )


def _warnings(
    spec: EvolutionSpec, ground: Ground, sizes: dict[str, int], per: PerRollout
) -> tuple[str, ...]:
    words: list[str] = []
    if ground.search_wanted is not None and sizes["search"] < ground.search_wanted:
        words.append(
            f"The search gets {sizes['search']} of the {ground.search_wanted} rollouts that "
            f"{spec.evolver} would use."
        )
    full = min(spec.acceptance.max_pairs, ground.sealed_groups)
    if sizes["pairs"] < full:
        words.append(f"The sealed test gets {sizes['pairs']} of {full} possible pairs.")
    if not per.cost_known:
        words.append("The price of this model is unknown; the cost is a careful estimate.")
    if per.tokens and any(part.kind in _GROWS for part in ground.candidate.components.values()):
        words.append(
            "Demonstrations and lessons make prompts longer than the present version's: expect up "
            "to twice the tokens."
        )
    if ground.sealed_groups < 3 * sizes["pairs"]:
        words.append(
            f"The sealed pool has {ground.sealed_groups} groups; with 3 to 5 times the "
            f"{sizes['pairs']} pairs of a test it lasts for more nights."
        )
    return tuple(words)


async def _measure(
    db: Database, project_id: str, spec: EvolutionSpec, ground: Ground, settings: Settings
) -> PerRollout:
    """What one rollout takes: measured before, or by a few probes now."""
    if ground.measured is not None:
        return measured_before(ground.measured, ground.agent.digest)
    plan_ = ground.plan(project_id, spec)
    return await probe(db, plan_, spec.agent, ground.splits.validation, settings)
