"""Facts: what a run is about, as stored when it was started; the same on every attempt."""

from __future__ import annotations

from dataclasses import dataclass

from instar.evolution.backends import BackendPlan
from instar.evolution.context import JobContext
from instar.evolution.schemas import EvolutionSpec, PromotionRule
from instar.store.agents import load_candidate_version
from instar.store.evolution import read_evolution_run
from instar.store.projects import read_project
from instar.store.tables import EvolutionRunRow
from instar.store.task_sets import read_bindings, read_splits
from instar_core.candidates import Candidate
from instar_core.evolution import Quote, RunState
from instar_core.tasks import Splits

__all__ = ["OVER", "Ending", "RunFacts", "budgets_of", "promotion_rule", "read_facts"]

OVER = frozenset({"succeeded", "no_improvement", "failed", "cancelled", "budget_exhausted"})
"""The terminal states of a run."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends: the terminal state and the reason in words.

    ``plain`` says it without what a sealed test estimated, for those who may not approve; empty
    when the reason holds no estimate.
    """

    state: RunState
    reason: str
    plain: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run is about, as stored; the same on every attempt."""

    agent: str
    label: str
    spec: EvolutionSpec
    quote: Quote
    seed: int
    evolver_digest: str
    incumbent: Candidate
    incumbent_version_id: str
    task_set_version_id: str
    splits: Splits
    backend: BackendPlan
    budgets: dict[str, str]
    rule: PromotionRule


async def read_facts(context: JobContext) -> RunFacts | None:
    """The run's facts; ``None`` when it is over already."""
    async with context.db.transaction(context.project_id) as session:
        row = await read_evolution_run(session, context.run_id)
        if row.state in OVER:
            return None
        spec = EvolutionSpec.model_validate(row.config)
        incumbent = await load_candidate_version(session, row.incumbent_version_id)
        task_set = str(row.task_set_version_id)
        project = await read_project(session, context.project_id)
        return RunFacts(
            agent=row.agent,
            label=row.label,
            spec=spec,
            quote=Quote.model_validate(row.quote),
            seed=row.seed,
            evolver_digest=row.evolver_digest,
            incumbent=incumbent,
            incumbent_version_id=row.incumbent_version_id,
            task_set_version_id=task_set,
            splits=await read_splits(session, task_set),
            backend=BackendPlan(
                context.project_id,
                incumbent,
                await read_bindings(session, task_set),
                spec.model or "",
            ),
            budgets=budgets_of(row),
            rule=spec.promotion or promotion_rule(project.settings),
        )


def budgets_of(row: EvolutionRunRow) -> dict[str, str]:
    """Kind → subject of the budgets that a run draws on."""
    # A run draws on the day on which it was started, also when it goes on after midnight: what it
    # reserved is then settled where it was reserved.
    return {
        "day": row.created_at.date().isoformat(),
        "project": row.project_id,
        "agent": row.agent,
        "run": row.id,
    }


def promotion_rule(settings: dict[str, object]) -> PromotionRule:
    """A project's rule: a person decides, unless the project says ``auto``."""
    return "auto" if settings.get("promotion_rule") == "auto" else "ask"
