"""Evolution: quote a night, start it, follow it, cancel it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from instar.api.auth import Operator, Viewer
from instar.api.events import STREAM, UNBUFFERED, first_seq, stream_events
from instar.api.idempotency import HEADER, IdempotentRoute
from instar.api.operations import check_rule
from instar.api.pages import After, Limit, Page
from instar.api.problems import documented
from instar.api.schemas import CandidateOut
from instar.api.views import candidates_out
from instar.api.visible import LiveReader, RunReader, visible_run
from instar.evolution import service
from instar.evolution.schemas import EvolutionSpec, RunEvent, RunStatus
from instar_core.evolution import Quote

router = APIRouter(
    prefix="/v1/evolution",
    tags=["evolution"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 502, 503),
)
Key = Annotated[str | None, Header(alias=HEADER, include_in_schema=False)]
Agent = Annotated[str | None, Query(max_length=255, description="only this agent's")]
LastId = Annotated[str | None, Header(description="id of the last event that was received")]
Seq = Annotated[int, Query(ge=0, le=2**62, description="events after this number")]


@router.post("/quote")
async def create_quote(spec: EvolutionSpec, caller: Operator) -> Quote:
    """What a run would take, and the smallest gain it could detect; spends nothing."""
    return await service.create_quote(
        caller.db, caller.project_id, spec, settings=caller.service.settings
    )


@router.post("/runs", status_code=201)
async def start_evolution_run(spec: EvolutionSpec, caller: Operator, key: Key = None) -> RunStatus:
    """Starts a run; a worker takes it up. The same idempotency key starts it once."""
    await check_rule(caller, spec)
    run = await service.start_run(
        caller.db,
        caller.project_id,
        spec,
        by=caller.author.name,
        idempotency_key=key,
        settings=caller.service.settings,
    )
    return visible_run(caller, run)


@router.get("/runs")
async def list_evolution_runs(
    caller: Viewer, agent: Agent = None, limit: Limit = 50, after: After = None
) -> Page[RunStatus]:
    """The project's evolution runs, newest first."""
    page = await service.list_runs(
        caller.db, caller.project_id, agent=agent, limit=limit, cursor=after
    )
    return Page(data=[visible_run(caller, run) for run in page.items], next=page.next_cursor)


@router.get("/runs/{run_id}")
async def read_evolution_run(run_id: UUID, caller: Viewer) -> RunStatus:
    """Where a run stands: phase, spend, scores, verdict."""
    return await RunReader(caller, str(run_id)).status()


@router.get("/runs/{run_id}/candidates")
async def list_run_candidates(run_id: UUID, caller: Viewer) -> list[CandidateOut]:
    """What the run has tried: lessons, demonstrations and scores of every candidate."""
    async with caller.db.transaction(caller.project_id) as session:
        return await candidates_out(session, str(run_id))


@router.post("/runs/{run_id}/cancel")
async def cancel_evolution_run(run_id: UUID, caller: Operator) -> RunStatus:
    """Asks a run to stop; it ends as ``cancelled`` once its worker has seen it."""
    run = await service.cancel_run(caller.db, caller.project_id, str(run_id), by=caller.author.name)
    return visible_run(caller, run)


@router.post("/runs/{run_id}/resume")
async def resume_evolution_run(run_id: UUID, caller: Operator) -> RunStatus:
    """Queues a run again that is ``interrupted`` and that no worker would take up by itself."""
    run = await service.resume_run(caller.db, caller.project_id, str(run_id), by=caller.author.name)
    return visible_run(caller, run)


@router.get("/runs/{run_id}/events")
async def list_run_events(
    run_id: UUID, caller: Viewer, after: Seq = 0, limit: Limit = 200
) -> list[RunEvent]:
    """The run's events after a number, gap-free and in order."""
    return await RunReader(caller, str(run_id)).events(after, limit)


@router.get("/runs/{run_id}/events/stream", response_class=StreamingResponse, responses=STREAM)
async def stream_run_events(
    run_id: UUID, request: Request, caller: Viewer, after: Seq = 0, last_event_id: LastId = None
) -> StreamingResponse:
    """The same events as server-sent events, from ``after`` or ``Last-Event-ID`` on, to the end."""
    reader = LiveReader(request, caller, str(run_id))
    await reader.status()
    events = stream_events(reader.events, reader.status, first_seq(after, last_event_id))
    return StreamingResponse(events, media_type="text/event-stream", headers=UNBUFFERED)
