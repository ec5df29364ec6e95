"""Views: rows of runs, proposals and promotions as the frozen models that people and programs
see."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.facts import OVER, budgets_of
from instar.evolution.schemas import (
    EvolutionSpec,
    PromotionView,
    ProposalView,
    RunEvent,
    RunPhase,
    RunStatus,
)
from instar.ledger.budgets import BudgetChain, read_chain
from instar.store import promotions as store
from instar.store.evolution import JobFacts, read_job_facts
from instar.store.tables import EvolutionRunRow, PromotionRow, ProposalRow, RunEventRow
from instar_core.evolution import (
    PromotionState,
    ProposalState,
    Quote,
    RunState,
    SealedOutcome,
    Verdict,
)
from instar_core.usage import Amount

__all__ = ["event_view", "promotion_view", "promotion_views", "proposal_views", "run_views"]


async def run_views(session: AsyncSession, rows: list[EvolutionRunRow]) -> list[RunStatus]:
    """Where runs stand."""
    jobs = await read_job_facts(session, [row.job_id for row in rows if row.job_id is not None])
    proposals = [str(p) for row in rows if (p := row.progress.get("proposal_id"))]
    promotions = await store.promotions_of(session, proposals)
    views = []
    for row in rows:
        chain = await read_chain(session, budgets_of(row))
        promotion = promotions.get(str(row.progress.get("proposal_id")))
        views.append(_run(row, chain, jobs.get(row.job_id or "", JobFacts()), promotion))
    return views


def _run(
    row: EvolutionRunRow, chain: BudgetChain, job: JobFacts, promotion: PromotionRow | None
) -> RunStatus:
    quote = Quote.model_validate(row.quote)
    shown: dict[str, Any] = dict(row.progress)
    spent = _spent(chain)
    state, reason = _state(row, job)
    return RunStatus(
        id=row.id,
        agent=row.agent,
        evolver=row.evolver,
        state=state,
        reason=reason,
        phase=cast("RunPhase", row.phase),
        spec=EvolutionSpec.model_validate(row.config),
        quote=quote,
        rollouts_done=spent.rollouts,
        rollouts_planned=quote.expected.rollouts,
        tokens=spent.tokens,
        cost_usd=spent.cost_usd,
        cost_known=bool((shown.get("per_rollout") or quote.assumptions).get("cost_known", True)),
        wall_s=spent.wall_s,
        remaining=chain.remaining(),
        baseline_mean=shown.get("baseline_mean"),
        best_mean=shown.get("best_mean"),
        candidates=int(shown.get("candidates") or 0),
        verdict=cast("Verdict | None", shown.get("verdict")),
        verdict_words=str(shown.get("verdict_words") or ""),
        proposal_id=shown.get("proposal_id"),
        promotion_id=None if promotion is None else promotion.id,
        in_flight_lost=row.in_flight_lost,
        replayed=row.replayed,
        attempts=row.attempts,
        worker=job.worker if job.state in ("leased", "running") else "",
        heartbeat_at=job.heartbeat_at,
        last_error=job.last_error,
        last_seq=row.event_seq,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
    )


def _spent(chain: BudgetChain) -> Amount:
    for line in chain.lines:
        if line.scope == "run":
            rollouts, tokens, cost_usd, wall_s = line.spent.values()
            return Amount(rollouts=rollouts, tokens=tokens, cost_usd=cost_usd, wall_s=wall_s)
    return Amount()


def _state(row: EvolutionRunRow, job: JobFacts) -> tuple[RunState, str]:
    """The state as it is now: a running run whose job waits again has lost its worker."""
    if row.state == "running" and job.state == "queued":
        return "interrupted", "Its worker is gone; the next free one goes on where it stopped."
    if row.state not in OVER and job.state in ("dead", "failed"):
        return "failed", row.reason or job.last_error or "Its job ended; see the worker's log."
    return cast("RunState", row.state), row.reason


def event_view(row: RunEventRow) -> RunEvent:
    """One event."""
    return RunEvent(
        seq=row.seq,
        kind=row.kind,
        message=str(row.message),
        data=dict(row.data or {}),
        at=row.created_at,
    )


async def proposal_views(session: AsyncSession, rows: list[ProposalRow]) -> list[ProposalView]:
    """Proposals with their evidence."""
    ids = [one for row in rows for one in (row.agent_version_id, row.incumbent_version_id)]
    numbers = await store.version_numbers(session, ids)
    return [_proposal(row, numbers) for row in rows]


def _proposal(row: ProposalRow, numbers: dict[str, int]) -> ProposalView:
    evidence: dict[str, Any] = dict(row.evidence or {})
    return ProposalView(
        id=row.id,
        run_id=row.run_id,
        agent=row.agent,
        label=row.label,
        state=cast("ProposalState", row.state),
        verdict=cast("Verdict | None", row.verdict),
        incumbent_version=numbers[row.incumbent_version_id],
        candidate_version=numbers[row.agent_version_id],
        candidate_digest=row.candidate_digest,
        reason=str(evidence.get("reason", "")),
        outcome=None if row.outcome is None else SealedOutcome.model_validate(row.outcome),
        validation_mean=evidence.get("validation_mean"),
        incumbent_validation_mean=evidence.get("incumbent_validation_mean"),
        decided_by=row.decided_by,
        note=row.decision_reason,
        created_at=row.created_at,
        decided_at=row.decided_at,
    )


async def promotion_views(session: AsyncSession, rows: list[PromotionRow]) -> list[PromotionView]:
    """Promotions."""
    ids = [one for row in rows for one in (row.from_version_id, row.to_version_id)]
    numbers = await store.version_numbers(session, ids)
    runs = await store.runs_of(session, [row.proposal_id for row in rows])
    return [
        PromotionView(
            id=row.id,
            proposal_id=row.proposal_id,
            run_id=runs[row.proposal_id],
            agent=row.agent,
            label=row.label,
            from_version=numbers[row.from_version_id],
            to_version=numbers[row.to_version_id],
            state=cast("PromotionState", row.state),
            by=row.promoted_by,
            cause=row.rolled_back_reason,
            created_at=row.created_at,
            ended_at=row.rolled_back_at,
        )
        for row in rows
    ]


async def promotion_view(session: AsyncSession, row: PromotionRow) -> PromotionView:
    """A promotion."""
    return (await promotion_views(session, [row]))[0]
