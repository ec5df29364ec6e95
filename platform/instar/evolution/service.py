"""The evolution service: quote, start, follow and cancel runs; decide proposals; undo promotions.

The functions are what REST and the command line call; both are thin over them. ``by`` is the name
of the person who asks.
"""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution import promotion
from instar.evolution.facts import OVER, budgets_of
from instar.evolution.orphans import settle_orphans
from instar.evolution.quote import Ground, make_quote, read_ground
from instar.evolution.schemas import (
    EvolutionSpec,
    PromotionView,
    ProposalView,
    RunEvent,
    RunStatus,
)
from instar.evolution.views import (
    event_view,
    promotion_view,
    promotion_views,
    proposal_views,
    run_views,
)
from instar.ledger.budgets import read_chain
from instar.settings import Settings, load_settings
from instar.store import promotions as promotion_store
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.budgets import set_limit
from instar.store.evolution import (
    NewEvolution,
    create_evolution_run,
    find_run_by_key,
    list_evolution_runs,
    list_run_events,
    read_evolution_run,
    update_run,
)
from instar.store.jobs import cancel_job, create_job
from instar.store.pages import Page
from instar.store.session import Database
from instar.store.tables import EvolutionRunRow, PromotionRow
from instar_core.base import JsonValue, new_id
from instar_core.errors import BudgetExhausted, ConflictError, StaleProposal
from instar_core.evolution import Quote
from instar_core.usage import Remaining

__all__ = [
    "JOB_KIND",
    "approve_proposal",
    "cancel_run",
    "create_quote",
    "list_events",
    "list_promotions",
    "list_proposals",
    "list_runs",
    "read_promotion",
    "read_proposal",
    "read_run",
    "reject_proposal",
    "resume_run",
    "rollback_promotion",
    "set_budget",
    "start_run",
]

JOB_KIND = "evolution"
_MAX_ATTEMPTS = 50
"""Claims of a run's job: a night may see many restarts, each of which goes on where it stopped."""


async def create_quote(
    db: Database, project_id: str, spec: EvolutionSpec, *, settings: Settings | None = None
) -> Quote:
    """What a run would take and could detect. Nothing of the run itself is spent.

    Where no earlier run measured this harness, a handful of probes on validation tasks does.

    Raises:
        NotFoundError: If agent, version, label or task set do not exist.
        UserError: If the run could not detect anything, does not fit its limits, or a tool has no
            test binding.
        PrerequisiteError: If a model cannot be asked now.
    """
    ground = await read_ground(db, project_id, spec)
    return await make_quote(db, project_id, spec, ground, settings or load_settings())


async def start_run(
    db: Database,
    project_id: str,
    spec: EvolutionSpec,
    *,
    by: str,
    idempotency_key: str | None = None,
    settings: Settings | None = None,
) -> RunStatus:
    """Quotes a run and queues it; the same key starts it once.

    Raises:
        ConflictError: If the key was used for another spec.
        BudgetExhausted: If a budget above the run has nothing left for it.
        UserError: As :func:`create_quote`.
    """
    if idempotency_key:
        found = await _started_before(db, project_id, spec, idempotency_key)
        if found is not None:
            return found
    settings = settings or load_settings()
    ground = await read_ground(db, project_id, spec)
    quote = await make_quote(db, project_id, spec, ground, settings)
    try:
        async with db.transaction(project_id) as session:
            await settle_orphans(session, project_id)
            run_id = await _queue(session, project_id, spec, quote, ground, by, idempotency_key)
    except ConflictError:
        # Two first requests with one key at once: the second finds what the first made.
        found = None
        if idempotency_key:
            found = await _started_before(db, project_id, spec, idempotency_key)
        if found is None:
            raise
        return found
    return await read_run(db, project_id, run_id)


async def _started_before(
    db: Database, project_id: str, spec: EvolutionSpec, key: str
) -> RunStatus | None:
    async with db.transaction(project_id) as session:
        row = await find_run_by_key(session, key)
        if row is None:
            return None
        if EvolutionSpec.model_validate(row.config) != spec:
            raise ConflictError(
                f"the idempotency key {key!r} started run {row.id} with another specification.",
                remedy="Use a new key for a new run.",
            )
        return (await run_views(session, [row]))[0]


async def _queue(
    session: AsyncSession,
    project_id: str,
    spec: EvolutionSpec,
    quote: Quote,
    ground: Ground,
    by: str,
    key: str | None,
) -> str:
    run_id = new_id()
    job = await create_job(
        session, project_id, JOB_KIND, {"run_id": run_id}, max_attempts=_MAX_ATTEMPTS
    )
    row = await create_evolution_run(
        session,
        project_id,
        NewEvolution(
            id=run_id,
            agent=spec.agent,
            label=spec.label,
            evolver=spec.evolver,
            spec=spec.model_dump(mode="json"),
            quote=quote.model_dump(mode="json"),
            seed=spec.seed,
            incumbent_version_id=ground.agent.id,
            incumbent_digest=ground.agent.digest,
            task_set_version_id=ground.task_set.id,
            job_id=job.id,
            created_by=by,
            progress={},
            idempotency_key=key or None,
        ),
    )
    await set_limit(session, project_id, "run", run_id, Remaining(**quote.limit.model_dump()))
    subjects = budgets_of(row)
    chain = await read_chain(session, subjects)
    for line in chain.lines:
        if line.scope != "run" and (lacking := line.lacking(quote.expected)):
            raise BudgetExhausted(
                f"The run does not fit: {lacking}.", remedy="Raise that limit, or ask for less."
            )
    details: dict[str, JsonValue] = {
        "agent": spec.agent,
        "evolver": spec.evolver,
        "limit": quote.limit.model_dump(mode="json"),
    }
    entry = AuditEntry(action="evolution.start", subject=run_id, details=details)
    await append_audit(session, project_id, entry, Author("person", by))
    return run_id


async def read_run(db: Database, project_id: str, run_id: str) -> RunStatus:
    """Where a run stands.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    async with db.transaction(project_id) as session:
        row = await read_evolution_run(session, run_id)
        return (await run_views(session, [row]))[0]


async def list_runs(
    db: Database,
    project_id: str,
    *,
    agent: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[RunStatus]:
    """The project's runs (of one agent), newest first."""
    async with db.transaction(project_id) as session:
        page = await list_evolution_runs(session, project_id, agent, limit=limit, cursor=cursor)
        return Page(await run_views(session, page.items), page.next_cursor)


async def cancel_run(db: Database, project_id: str, run_id: str, *, by: str) -> RunStatus:
    """Asks a run to end; one that no worker holds ends at once. A run that is over stays as it is.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    async with db.transaction(project_id) as session:
        row = await read_evolution_run(session, run_id)
        if row.state not in OVER:
            # The job first, as everybody does who locks both.
            state = "cancelled" if row.job_id is None else await cancel_job(session, row.job_id)
            row = await read_evolution_run(session, run_id, lock=True)
            if row.state not in OVER:
                await _cancel(session, project_id, row, state, by)
    return await read_run(db, project_id, run_id)


async def _cancel(
    session: AsyncSession, project_id: str, row: EvolutionRunRow, job_state: str, by: str
) -> None:
    await update_run(session, row.id, cancel_requested=True)
    if job_state not in ("leased", "running"):
        await update_run(
            session,
            row.id,
            state="cancelled",
            phase="done",
            reason="A person cancelled the run.",
            finished_at=datetime.now(UTC),
        )
        await settle_orphans(session, project_id)
    entry = AuditEntry(action="evolution.cancel", subject=row.id)
    await append_audit(session, project_id, entry, Author("person", by))


async def resume_run(db: Database, project_id: str, run_id: str, *, by: str) -> RunStatus:
    """Queues a run again that waits as ``interrupted`` without a job (for a worker with its code).

    Raises:
        ConflictError: If the run is over, or a worker will take it up by itself.
    """
    async with db.transaction(project_id) as session:
        row = await read_evolution_run(session, run_id, lock=True)
        if row.state in OVER or row.job_id is not None:
            raise ConflictError(
                f"the run {run_id} is {row.state!r} and needs no resuming.",
                remedy="Start a new run, or wait for a worker.",
            )
        job = await create_job(
            session, project_id, JOB_KIND, {"run_id": run_id}, max_attempts=_MAX_ATTEMPTS
        )
        await update_run(session, run_id, job_id=job.id, reason="")
        entry = AuditEntry(action="evolution.resume", subject=run_id)
        await append_audit(session, project_id, entry, Author("person", by))
    return await read_run(db, project_id, run_id)


async def list_events(
    db: Database, project_id: str, run_id: str, *, after_seq: int = 0, limit: int = 500
) -> list[RunEvent]:
    """Events of a run with numbers above ``after_seq``, in order and without gaps."""
    async with db.transaction(project_id) as session:
        await read_evolution_run(session, run_id)
        rows = await list_run_events(session, run_id, after_seq=after_seq, limit=limit)
        return [event_view(row) for row in rows]


async def list_proposals(
    db: Database,
    project_id: str,
    *,
    agent: str | None = None,
    state: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[ProposalView]:
    """The project's proposals, newest first."""
    async with db.transaction(project_id) as session:
        page = await promotion_store.list_proposals(
            session, project_id, agent=agent, state=state, limit=limit, cursor=cursor
        )
        return Page(await proposal_views(session, page.items), page.next_cursor)


async def read_proposal(db: Database, project_id: str, proposal_id: str) -> ProposalView:
    """A proposal with its evidence.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    async with db.transaction(project_id) as session:
        row = await promotion_store.read_proposal(session, proposal_id)
        return (await proposal_views(session, [row]))[0]


async def approve_proposal(
    db: Database, project_id: str, proposal_id: str, *, by: str, note: str = ""
) -> PromotionView:
    """Approves a proposal and moves its label.

    Raises:
        StaleProposal: If the label moved since the test; the proposal is ``stale`` now.
        ConflictError: If the proposal does not wait for a decision.
    """
    async with db.transaction(project_id) as session:
        made = await promotion.promote(session, proposal_id, Author("person", by), note=note)
        if made is not None:
            if made.state == "rolled_back":
                raise ConflictError(
                    f"the proposal {proposal_id} was approved, and its promotion {made.id} was "
                    "rolled back since; the label stays where it is.",
                    remedy="Start another run from the present version.",
                )
            return await _view(session, made)
        row = await promotion_store.read_proposal(session, proposal_id)
        words = row.decision_reason
    # Raised after the commit: that the proposal is stale is kept.
    raise StaleProposal(
        f"the proposal {proposal_id} is stale: {words}",
        remedy="Start another run from the present version; its test counts for that one.",
    )


async def reject_proposal(
    db: Database, project_id: str, proposal_id: str, *, by: str, note: str = ""
) -> ProposalView:
    """Rejects a waiting or stale proposal.

    Raises:
        ConflictError: If it was approved, or its test still runs.
    """
    async with db.transaction(project_id) as session:
        row = await promotion.reject(session, proposal_id, Author("person", by), note=note)
        return (await proposal_views(session, [row]))[0]


async def list_promotions(
    db: Database,
    project_id: str,
    *,
    agent: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[PromotionView]:
    """The project's promotions, newest first."""
    async with db.transaction(project_id) as session:
        page = await promotion_store.list_promotions(
            session, project_id, agent=agent, limit=limit, cursor=cursor
        )
        return Page(await promotion_views(session, page.items), page.next_cursor)


async def read_promotion(db: Database, project_id: str, promotion_id: str) -> PromotionView:
    """A promotion.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    async with db.transaction(project_id) as session:
        return await _view(session, await promotion_store.read_promotion(session, promotion_id))


async def rollback_promotion(
    db: Database, project_id: str, promotion_id: str, *, by: str, cause: str
) -> PromotionView:
    """Moves the label back to what it was before a promotion.

    Raises:
        ConflictError: If the label has moved on since.
    """
    async with db.transaction(project_id) as session:
        row = await promotion.roll_back(session, promotion_id, Author("person", by), cause=cause)
        return await _view(session, row)


async def set_budget(
    db: Database, project_id: str, kind: str, subject: str, limit: Remaining, *, by: str
) -> None:
    """Sets the limits of a project, of an agent, or of a day (``2026-11-30``); audited.

    What is reserved and spent already stays and counts.
    """
    async with db.transaction(project_id) as session:
        await set_limit(session, project_id, kind, subject, limit)
        details: dict[str, JsonValue] = {"limit": limit.model_dump(mode="json")}
        entry = AuditEntry(action="budget.set", subject=f"{kind}/{subject}", details=details)
        await append_audit(session, project_id, entry, Author("person", by))


async def _view(session: AsyncSession, row: PromotionRow) -> PromotionView:
    return await promotion_view(session, row)
