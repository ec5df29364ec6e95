"""Promotions: label moves that proposals caused, and their way back."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from instar.api.auth import Approver, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.pages import After, Limit, Page
from instar.api.problems import documented
from instar.api.schemas import RollbackIn
from instar.evolution import service
from instar.evolution.schemas import PromotionView

Agent = Annotated[str | None, Query(max_length=255, description="only this agent's")]

router = APIRouter(
    prefix="/v1/promotions",
    tags=["promotions"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)


@router.get("")
async def list_promotions(
    caller: Viewer, agent: Agent = None, limit: Limit = 50, after: After = None
) -> Page[PromotionView]:
    """The project's promotions, newest first."""
    page = await service.list_promotions(
        caller.db, caller.project_id, agent=agent, limit=limit, cursor=after
    )
    return Page(data=page.items, next=page.next_cursor)


@router.get("/{promotion_id}")
async def read_promotion(promotion_id: UUID, caller: Viewer) -> PromotionView:
    """One promotion and what became of it."""
    return await service.read_promotion(caller.db, caller.project_id, str(promotion_id))


@router.post("/{promotion_id}/rollback")
async def rollback_promotion(
    promotion_id: UUID, why: RollbackIn, caller: Approver
) -> PromotionView:
    """Points the label back at the version from before."""
    return await service.rollback_promotion(
        caller.db, caller.project_id, str(promotion_id), by=caller.author.name, cause=why.reason
    )
