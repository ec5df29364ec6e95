"""Agents: save versions, read them, list them, and run them."""

from __future__ import annotations

from fastapi import APIRouter, Response

from instar.api.auth import Operator, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.operations import save_agent_in
from instar.api.pages import After, Limit, Page
from instar.api.problems import documented
from instar.api.schemas import (
    AgentIn,
    AgentOut,
    AgentVersionOut,
    RunIn,
    RunOut,
    VersionOut,
)
from instar.api.views import agent_out, agent_version_out, read_agent_out, run_out, version_out
from instar.runtime.service import AgentCall
from instar.store.agents import AGENT
from instar.store.artifacts import ArtifactRef, list_artifacts, list_versions, read_artifact
from instar.store.runs import list_runs, read_run
from instar_core.base import short
from instar_core.errors import UserError
from instar_core.messages import Message

router = APIRouter(
    prefix="/v1/agents",
    tags=["agents"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)


@router.post("", status_code=201)
async def create_agent(new: AgentIn, caller: Operator) -> AgentVersionOut:
    """Saves a new version of an agent (its first one makes the agent)."""
    async with caller.db.transaction(caller.project_id) as session:
        return await save_agent_in(session, caller, new)


@router.get("")
async def list_agents(caller: Viewer, limit: Limit = 50, after: After = None) -> Page[AgentOut]:
    """The project's agents, newest first."""
    async with caller.db.transaction(caller.project_id) as session:
        page = await list_artifacts(session, caller.project_id, AGENT, limit=limit, cursor=after)
        data = [await agent_out(session, row) for row in page.items]
    return Page(data=data, next=page.next_cursor)


@router.get("/{name}")
async def read_agent(name: str, caller: Viewer, response: Response) -> AgentOut:
    """One agent with its labels."""
    async with caller.db.transaction(caller.project_id) as session:
        return await read_agent_out(session, ArtifactRef(caller.project_id, AGENT, name), response)


@router.get("/{name}/versions")
async def list_agent_versions(
    name: str, caller: Viewer, limit: Limit = 50, after: After = None
) -> Page[VersionOut]:
    """The versions of an agent, highest number first."""
    ref = ArtifactRef(caller.project_id, AGENT, name)
    async with caller.db.transaction(caller.project_id) as session:
        rows = await list_versions(session, ref, limit=limit + 1, before=number_of(after))
    return Page(
        data=[version_out(row) for row in rows[:limit]],
        next=str(rows[limit - 1].number) if len(rows) > limit else None,
    )


@router.get("/{name}/versions/{version}")
async def read_agent_version(name: str, version: str, caller: Viewer) -> AgentVersionOut:
    """One agent version by number, label or ``latest``: exactly what runs."""
    ref = ArtifactRef(caller.project_id, AGENT, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await agent_version_out(session, ref, version)


@router.post("/{name}/runs", responses=documented(502))
async def create_run(name: str, new: RunIn, caller: Operator) -> RunOut:
    """Runs an agent to its answer; the label is resolved once, at the start."""
    turns = new.input
    if isinstance(turns, str):
        turns = [Message(role="user", content=turns)]
    call = AgentCall(name, new.version, tuple(turns))
    run = await caller.service.agents.run(caller.project_id, call, caller.author)
    async with caller.db.transaction(caller.project_id) as session:
        return await run_out(session, await read_run(session, run.id))


@router.get("/{name}/runs")
async def list_agent_runs(
    name: str, caller: Viewer, limit: Limit = 50, after: After = None
) -> Page[RunOut]:
    """The runs of an agent, newest first."""
    async with caller.db.transaction(caller.project_id) as session:
        await read_artifact(session, ArtifactRef(caller.project_id, AGENT, name))
        page = await list_runs(session, caller.project_id, name, limit=limit, cursor=after)
        data = [await run_out(session, row) for row in page.items]
    return Page(data=data, next=page.next_cursor)


def number_of(after: str | None) -> int | None:
    """The version number that a cursor of a list of versions is."""
    if after is None:
        return None
    if not after.isdecimal() or len(after) > 9:
        raise UserError(
            f"after is {short(after, 80)!r}, which no page gave.",
            remedy="Use the ``next`` of a page.",
        )
    return int(after)
