"""Probing: what one rollout takes, from earlier runs or from a few rollouts made for a quote.

Probes spend before any run exists, so they are booked on the budgets above runs (day, project,
agent), written into the audit stream, and told in the quote. What they measured stands in the audit
event too: the quotes of the next hour for the same candidate and tasks take it from there, so that
a quote and the run started on it do not pay for the same measurement twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from instar.evolution.backends import BackendPlan, open_backend
from instar.ledger.budgets import lock_chain, read_chain, save_chain
from instar.runtime.calls import DirectCalls
from instar.settings import Settings
from instar.store.audit import SYSTEM, AuditEntry, append_audit
from instar.store.outcomes import PROBE, latest_probe
from instar.store.session import Database
from instar_core.base import JsonValue, content_hash
from instar_core.errors import BudgetExhausted
from instar_core.lab import RolloutRequest
from instar_core.rollouts import Rollout
from instar_core.tasks import Task
from instar_core.usage import Amount

__all__ = ["PerRollout", "measured_before", "probe"]

_PROBES = 8
_WARM_UP = 4
_VALID = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class PerRollout:
    """What one rollout takes, the mean score where it is known, and where all this is from."""

    seconds: float
    tokens: float
    cost_usd: float
    cost_known: bool
    mean: float | None
    source: str
    probes: Amount = Amount()


def measured_before(found: Mapping[str, Any], digest: str) -> PerRollout:
    """What an earlier run measured under the same harness.

    Args:
        found: What the run kept.
        digest: The version whose mean score is wanted.
    """
    return PerRollout(
        seconds=float(found["seconds"]),
        tokens=float(found["tokens"]),
        cost_usd=float(found["cost_usd"]),
        cost_known=bool(found.get("cost_known", True)),
        mean=found.get("means", {}).get(digest),
        source="earlier rollouts",
    )


async def probe(
    db: Database, plan: BackendPlan, agent: str, tasks: tuple[Task, ...], settings: Settings
) -> PerRollout:
    """Runs a few rollouts on validation tasks and books what they took; none if just measured.

    Args:
        db: Where budgets and audit are.
        plan: What the backend is opened for; its candidate is the one measured.
        agent: Name of the agent, for its budget.
        tasks: Validation tasks; the first ones are used.
        settings: Models and tools.

    Raises:
        BudgetExhausted: If a budget above the run has no room for the probes.
    """
    tasks = tasks[:_PROBES]
    width = settings.worker.rollout_concurrency
    names: list[JsonValue] = [task.id for task in tasks]
    about = content_hash([content_hash(plan.candidate), dict(plan.bindings), names, width])
    if (found := await _just_measured(db, plan.project_id, about)) is not None:
        return found
    subjects = {
        "day": datetime.now(UTC).date().isoformat(),
        "project": plan.project_id,
        "agent": agent,
    }
    await _require_room(db, plan.project_id, subjects, _WARM_UP + len(tasks))
    done: list[Rollout] = []
    began = time.monotonic()
    try:
        async with open_backend(plan, db, settings) as backend:

            async def one(task: Task, draw: int) -> Rollout:
                request = RolloutRequest(
                    candidate=plan.candidate, task=task, draw=draw, arm="probe"
                )
                rollout = await backend.rollout(request, DirectCalls())
                done.append(rollout)
                return rollout

            # The first ones also start tool servers and fill caches; what they take says little.
            await asyncio.gather(*(one(task, 0) for task in tasks[:_WARM_UP]))
            started = time.monotonic()
            rollouts = await asyncio.gather(*(one(task, 1) for task in tasks))
            elapsed = time.monotonic() - started
    except BaseException:
        await _book(db, plan.project_id, subjects, _amount(done, time.monotonic() - began), None)
        raise
    took = _amount(done, time.monotonic() - began)
    found = _per_rollout(rollouts, elapsed)
    kept = asdict(found)
    del kept["probes"]
    measured: dict[str, JsonValue] = {"about": about, "per_rollout": kept}
    await _book(db, plan.project_id, subjects, took, measured)
    return replace(found, probes=took)


def _per_rollout(rollouts: list[Rollout], elapsed: float) -> PerRollout:
    rewards = [one.score.reward for one in rollouts if one.score is not None]
    count = len(rollouts)
    return PerRollout(
        seconds=max(1e-4, elapsed / count),
        tokens=sum(one.usage.tokens for one in rollouts) / count,
        cost_usd=sum(one.usage.cost_usd for one in rollouts) / count,
        cost_known=all(one.usage.cost_known for one in rollouts),
        # Eight successes of eight are no proof of perfection: drawn a little towards one half.
        mean=(sum(rewards) + 0.5) / (len(rewards) + 1) if rewards else None,
        source=f"a probe of {count} rollouts",
    )


async def _just_measured(db: Database, project_id: str, about: str) -> PerRollout | None:
    """What probes of the last hour measured for the same candidate, tasks and concurrency."""
    async with db.transaction(project_id) as session:
        kept = await latest_probe(session, project_id, about, within=_VALID)
    return None if kept is None else PerRollout(**kept)


def _amount(rollouts: list[Rollout], seconds: float) -> Amount:
    return Amount(
        rollouts=len(rollouts),
        tokens=sum(one.usage.tokens for one in rollouts),
        cost_usd=round(sum(one.usage.cost_usd for one in rollouts), 9),
        wall_s=round(seconds, 3),
    )


async def _require_room(
    db: Database, project_id: str, subjects: Mapping[str, str], count: int
) -> None:
    """Refuses to probe where a budget has no room for that many rollouts, or nothing left."""
    least = Amount(rollouts=count, tokens=count, cost_usd=0.0, wall_s=0.001)
    async with db.transaction(project_id) as session:
        chain = await read_chain(session, subjects)
    for line in chain.lines:
        lacking = line.lacking(least)
        money = line.free("cost_usd")
        if not lacking and money is not None and money <= 0:
            lacking = f"the budget of the {line.scope} {line.subject!r} has 0 USD left"
        if lacking:
            raise BudgetExhausted(
                f"Nothing was measured: {lacking}.", remedy="Raise that limit to go on."
            )


async def _book(
    db: Database,
    project_id: str,
    subjects: Mapping[str, str],
    took: Amount,
    measured: JsonValue,
) -> None:
    if not took.rollouts:
        return
    details: dict[str, JsonValue] = {
        "agent": subjects["agent"],
        "spent": took.model_dump(),
        "measured": measured,
    }

    async def book(session: Any) -> None:
        chain = await lock_chain(session, subjects)
        chain.spend(took)
        await save_chain(session, chain)
        entry = AuditEntry(action=PROBE, subject=subjects["agent"], details=details)
        await append_audit(session, project_id, entry, SYSTEM)

    await db.run(project_id, book)
