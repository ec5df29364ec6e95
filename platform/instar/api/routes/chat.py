"""Chat completions: the OpenAI-compatible door to agents, ``model="agent/{name}@{label}"``."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse

from instar.api.auth import Operator, Viewer
from instar.api.chat import (
    ChatIn,
    ChatOut,
    ChatRoute,
    ModelList,
    call_of,
    list_models,
    reply_of,
    stream_reply,
)
from instar.api.events import STREAM
from instar.api.problems import documented

router = APIRouter(
    prefix="/v1",
    tags=["compatibility"],
    route_class=ChatRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 502, 503),
)


@router.post("/chat/completions", response_model=ChatOut, responses=STREAM)
async def create_chat_completion(
    body: ChatIn, request: Request, caller: Operator
) -> StreamingResponse | JSONResponse:
    """Answers a conversation with an agent; with ``stream`` as server-sent events."""
    call = call_of(body)
    if body.stream:
        return await stream_reply(body, call, caller, request)
    run = await caller.service.agents.run(caller.project_id, call, caller.author)
    return JSONResponse(reply_of(body, run))


@router.get("/models")
async def list_agent_models(caller: Viewer) -> ModelList:
    """Every agent at each of its labels, as a model's name."""
    return await list_models(caller)
