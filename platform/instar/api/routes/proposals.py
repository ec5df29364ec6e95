"""Proposals: candidates that passed, or did not; people with the right decide."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Query

from instar.api.auth import Approver, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.pages import After, Limit, Page
from instar.api.problems import documented
from instar.api.schemas import DecisionIn
from instar.api.visible import visible_proposal
from instar.evolution import service
from instar.evolution.schemas import PromotionView, ProposalView
from instar_core.evolution import ProposalState

Agent = Annotated[str | None, Query(max_length=255, description="only this agent's")]
State = Annotated[ProposalState | None, Query(description="only in this state")]

Decision = Annotated[DecisionIn, Body(description="why, in words; may be left out")]
_UNSAID = DecisionIn()

router = APIRouter(
    prefix="/v1/proposals",
    tags=["proposals"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)


@router.get("")
async def list_proposals(
    caller: Viewer,
    agent: Agent = None,
    state: State = None,
    limit: Limit = 50,
    after: After = None,
) -> Page[ProposalView]:
    """The project's proposals, newest first."""
    page = await service.list_proposals(
        caller.db, caller.project_id, agent=agent, state=state, limit=limit, cursor=after
    )
    return Page(data=[visible_proposal(caller, one) for one in page.items], next=page.next_cursor)


@router.get("/{proposal_id}")
async def read_proposal(proposal_id: UUID, caller: Viewer) -> ProposalView:
    """One proposal with its evidence in words."""
    found = await service.read_proposal(caller.db, caller.project_id, str(proposal_id))
    return visible_proposal(caller, found)


@router.post("/{proposal_id}/approve")
async def approve_proposal(
    proposal_id: UUID, caller: Approver, decision: Decision = _UNSAID
) -> PromotionView:
    """Promotes what was tested, unless the label moved meanwhile (409, stale)."""
    return await service.approve_proposal(
        caller.db,
        caller.project_id,
        str(proposal_id),
        by=caller.author.name,
        note=decision.note,
    )


@router.post("/{proposal_id}/reject")
async def reject_proposal(
    proposal_id: UUID, caller: Approver, decision: Decision = _UNSAID
) -> ProposalView:
    """Closes a proposal without promoting it."""
    return await service.reject_proposal(
        caller.db,
        caller.project_id,
        str(proposal_id),
        by=caller.author.name,
        note=decision.note,
    )
