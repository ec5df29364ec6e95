"""Runs: what became of a call of an agent."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter

from instar.api.auth import Viewer
from instar.api.problems import documented
from instar.api.schemas import RunOut
from instar.api.views import run_out
from instar.store.runs import read_run as find_run

router = APIRouter(
    prefix="/v1/runs", tags=["runs"], responses=documented(400, 401, 403, 404, 422, 500, 503)
)


@router.get("/{run_id}")
async def read_run(run_id: UUID, caller: Viewer) -> RunOut:
    """One run, step by step, with the exact version that answered."""
    async with caller.db.transaction(caller.project_id) as session:
        return await run_out(session, await find_run(session, str(run_id)))
