"""Proposals and promotions: what was put forward, what was decided, and which label moves
followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import SYSTEM, AuditEntry, Author, append_audit
from instar.store.pages import Page, read_page
from instar.store.rows import read_row
from instar.store.tables import EvolutionRunRow, PromotionRow, ProposalRow, VersionRow
from instar_core.base import JsonValue, new_id

__all__ = [
    "NewProposal",
    "create_promotion",
    "create_proposal",
    "decide_proposal",
    "find_proposal",
    "list_promotions",
    "list_proposals",
    "mark_rolled_back",
    "promotions_of",
    "read_promotion",
    "read_proposal",
    "runs_of",
    "settle_proposal",
    "version_numbers",
    "withdraw_orphans",
    "withdraw_proposals",
]


class NewProposal(NamedTuple):
    """A candidate about to be tested against an incumbent."""

    run_id: str
    agent: str
    label: str
    candidate_digest: str
    agent_version_id: str
    incumbent_version_id: str
    evidence: JsonValue
    rule: str


async def find_proposal(
    session: AsyncSession, run_id: str, candidate_digest: str
) -> ProposalRow | None:
    """The proposal that a run made of a candidate."""
    row: ProposalRow | None = await session.scalar(
        select(ProposalRow)
        .where(ProposalRow.run_id == run_id, ProposalRow.candidate_digest == candidate_digest)
        .execution_options(populate_existing=True)
    )
    return row


async def create_proposal(session: AsyncSession, project_id: str, new: NewProposal) -> ProposalRow:
    """Adds a proposal whose test is about to begin; the run's own one is given again."""
    found = await find_proposal(session, new.run_id, new.candidate_digest)
    if found is not None:
        return found
    row = ProposalRow(
        id=new_id(),
        project_id=project_id,
        run_id=new.run_id,
        agent=new.agent,
        label=new.label,
        candidate_digest=new.candidate_digest,
        agent_version_id=new.agent_version_id,
        incumbent_version_id=new.incumbent_version_id,
        state="testing",
        evidence=new.evidence,
        rule=new.rule,
    )
    session.add(row)
    await session.flush()
    details: dict[str, JsonValue] = {
        "candidate": new.candidate_digest,
        "version_id": new.agent_version_id,
        "incumbent_id": new.incumbent_version_id,
    }
    await _audit(session, row, "proposal.create", details, Author("run", new.run_id))
    return row


async def settle_proposal(session: AsyncSession, proposal_id: str, **values: Any) -> None:
    """Sets columns of a proposal that its run tests: verdict, outcome, and the state that
    follows."""
    found = await session.scalars(
        update(ProposalRow)
        .where(ProposalRow.id == proposal_id, ProposalRow.state == "testing")
        .values(**values)
        .returning(ProposalRow)
        .execution_options(populate_existing=True)
    )
    for row in found:
        details: dict[str, JsonValue] = {"verdict": row.verdict, "state": row.state}
        await _audit(session, row, "proposal.settle", details, Author("run", row.run_id))


async def withdraw_proposals(session: AsyncSession, run_id: str, reason: str) -> None:
    """Withdraws what a run that ends was still testing."""
    found = await session.scalars(
        update(ProposalRow)
        .where(ProposalRow.run_id == run_id, ProposalRow.state == "testing")
        .values(state="withdrawn", decision_reason=reason.replace("\x00", ""))
        .returning(ProposalRow)
        .execution_options(populate_existing=True)
    )
    for row in found:
        await _audit(session, row, "proposal.withdraw", {}, Author("run", run_id))


async def withdraw_orphans(session: AsyncSession, states: Sequence[str]) -> None:
    """Withdraws what runs in these states were still testing, with the run's reason."""
    found = await session.scalars(
        update(ProposalRow)
        .where(
            ProposalRow.state == "testing",
            ProposalRow.run_id == EvolutionRunRow.id,
            EvolutionRunRow.state.in_(states),
        )
        .values(state="withdrawn", decision_reason=EvolutionRunRow.reason)
        .returning(ProposalRow)
        .execution_options(synchronize_session=False, populate_existing=True)
    )
    for row in found:
        await _audit(session, row, "proposal.withdraw", {}, SYSTEM)


async def _audit(
    session: AsyncSession, row: ProposalRow, action: str, details: dict[str, JsonValue], by: Author
) -> None:
    facts: dict[str, JsonValue] = {"proposal": row.id, **details}
    entry = AuditEntry(
        action=action, subject=f"agent/{row.agent}", details=facts, stream=row.run_id
    )
    await append_audit(session, row.project_id, entry, by)


async def read_proposal(
    session: AsyncSession, proposal_id: str, *, lock: bool = False
) -> ProposalRow:
    """The proposal.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    return await read_row(session, ProposalRow, proposal_id, "proposal", lock=lock)


async def decide_proposal(
    session: AsyncSession, row: ProposalRow, state: str, by: Author, reason: str
) -> None:
    """Notes a decision on a locked proposal."""
    row.state = state
    row.decided_by = by.name
    row.decision_reason = reason
    row.decided_at = await session.scalar(select(func.clock_timestamp()))
    await session.flush()


async def list_proposals(
    session: AsyncSession,
    project_id: str,
    *,
    agent: str | None = None,
    state: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[ProposalRow]:
    """The project's proposals, newest first."""
    query = select(ProposalRow).where(ProposalRow.project_id == project_id)
    if agent is not None:
        query = query.where(ProposalRow.agent == agent)
    if state is not None:
        query = query.where(ProposalRow.state == state)
    return await read_page(session, query, ProposalRow, limit=limit, cursor=cursor)


async def create_promotion(
    session: AsyncSession, proposal: ProposalRow, by: Author, details: dict[str, Any]
) -> PromotionRow:
    """Adds the promotion that an approved proposal caused; it is being watched from now on."""
    row = PromotionRow(
        id=new_id(),
        project_id=proposal.project_id,
        proposal_id=proposal.id,
        agent=proposal.agent,
        label=proposal.label,
        from_version_id=proposal.incumbent_version_id,
        to_version_id=proposal.agent_version_id,
        state="watching",
        promoted_by=by.name,
        details=details,
    )
    session.add(row)
    await session.flush()
    return row


async def read_promotion(
    session: AsyncSession, promotion_id: str, *, lock: bool = False
) -> PromotionRow:
    """The promotion.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    return await read_row(session, PromotionRow, promotion_id, "promotion", lock=lock)


async def promotions_of(session: AsyncSession, proposal_ids: list[str]) -> dict[str, PromotionRow]:
    """Proposal id → its promotion, where there is one."""
    rows = await session.scalars(
        select(PromotionRow).where(PromotionRow.proposal_id.in_(proposal_ids))
    )
    return {row.proposal_id: row for row in rows}


async def runs_of(session: AsyncSession, proposal_ids: list[str]) -> dict[str, str]:
    """Proposal id → the run that made it."""
    rows = await session.execute(
        select(ProposalRow.id, ProposalRow.run_id).where(ProposalRow.id.in_(proposal_ids))
    )
    return {str(row[0]): str(row[1]) for row in rows}


async def mark_rolled_back(
    session: AsyncSession, row: PromotionRow, by: Author, cause: str
) -> None:
    """Notes that a locked promotion was undone, by whom and why."""
    row.state = "rolled_back"
    row.rolled_back_by = by.name
    row.rolled_back_reason = cause
    row.rolled_back_at = await session.scalar(select(func.clock_timestamp()))
    await session.flush()


async def list_promotions(
    session: AsyncSession,
    project_id: str,
    *,
    agent: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[PromotionRow]:
    """The project's promotions, newest first."""
    query = select(PromotionRow).where(PromotionRow.project_id == project_id)
    if agent is not None:
        query = query.where(PromotionRow.agent == agent)
    return await read_page(session, query, PromotionRow, limit=limit, cursor=cursor)


async def version_numbers(session: AsyncSession, version_ids: list[str]) -> dict[str, int]:
    """Version id → number."""
    rows = await session.execute(
        select(VersionRow.id, VersionRow.number).where(VersionRow.id.in_(version_ids))
    )
    return {str(row[0]): int(row[1]) for row in rows}
