"""Chat: OpenAI's chat completions in front of an agent's run.

The caller's messages are the conversation; the agent's own instructions, lessons and tools stay its
own. A stream is the role, the answer's text, exactly one terminal chunk, usage if it was asked for,
and ``[DONE]``; comments keep the connection open while the agent works.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Literal

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from instar.api.auth import Caller
from instar.api.events import UNBUFFERED
from instar.api.idempotency import IdempotentRoute
from instar.api.problems import respond_to
from instar.api.views import labels_of
from instar.runtime.service import AgentCall, AgentRun, PreparedRun
from instar.store.agents import AGENT
from instar.store.artifacts import ArtifactRef, list_artifacts
from instar_core.errors import NotFoundError, UserError
from instar_core.messages import Message
from instar_core.rollouts import StopReason, Trajectory
from instar_core.usage import Usage

__all__ = [
    "HEARTBEAT_S",
    "ChatIn",
    "ChatOut",
    "ChatRoute",
    "ModelList",
    "call_of",
    "list_models",
    "reply_of",
    "stream_reply",
]

HEARTBEAT_S = 15.0
_PREFIX = "agent/"
_PIECE = 400
_FINISH: dict[StopReason, str] = {
    "max_tokens": "length",
    "context_overflow": "length",
}


class _Part(BaseModel):
    """A piece of a message's content; only text is understood."""

    type: Literal["text"]
    text: str


class ChatTurn(BaseModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_Part] | None = None
    name: str | None = None


class StreamOptions(BaseModel):
    """Options of a stream."""

    include_usage: bool = False


class ChatIn(BaseModel):
    """A chat completion request.

    Fields of the OpenAI interface that are not named here are accepted and have no effect: sampling
    belongs to the agent version, whose tested form is what runs.
    """

    model_config = ConfigDict(extra="allow")

    model: str = Field(description="agent/{name}@{label or version}; production without '@'")
    messages: list[ChatTurn] = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, description="only 1 is possible")
    tools: list[JsonValue] | None = Field(default=None, description="an agent brings its own")


class ChatMessage(BaseModel):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """The only choice."""

    index: int = 0
    message: ChatMessage
    finish_reason: Literal["stop", "length"]


class ChatUsage(BaseModel):
    """Tokens of all of the run's model calls together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class ChatOut(BaseModel):
    """A chat completion; ``id`` is ``chatcmpl-`` and the run's id."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    system_fingerprint: str = Field(description="the agent version that answered")


class ModelEntry(BaseModel):
    """One agent at one label, as a model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "instar"


class ModelList(BaseModel):
    """The models there are."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class ChatRoute(IdempotentRoute):
    """A route whose errors are also readable by OpenAI's clients (an ``error`` object)."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with errors in OpenAI's shape beside the problem's own members."""
        original = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await original(request)
            except Exception as error:  # noqa: BLE001 - answered as the problem it is
                return _as_openai(respond_to(request, error))

        return handler


def _as_openai(problem: Response) -> Response:
    members = json.loads(bytes(problem.body))
    code = str(members["type"]).rpartition(":")[2]
    kind = "server_error" if problem.status_code >= 500 else "invalid_request_error"
    error = {"message": members["detail"], "type": kind, "param": None, "code": code}
    headers = {
        name: value
        for name, value in problem.headers.items()
        if name in ("retry-after", "www-authenticate")
    }
    return JSONResponse(
        {**members, "error": error},
        status_code=problem.status_code,
        headers=headers,
        media_type=problem.media_type,
    )


def call_of(body: ChatIn) -> AgentCall:
    """Which agent version a request means, and the conversation.

    Raises:
        NotFoundError: If the model is not an agent's name.
        UserError: If the request asks for what an agent cannot do.
    """
    if not body.model.startswith(_PREFIX) or body.model == _PREFIX:
        raise NotFoundError(
            f"There is no model {body.model!r}.",
            remedy="Models are agents: 'agent/{name}@{label}'; GET /v1/models lists them.",
        )
    if body.n not in (None, 1):
        raise UserError(f"n is {body.n}; an agent gives 1 answer.", remedy="Leave n out.")
    if body.tools:
        raise UserError(
            "The request brings tools, but an agent uses those of its own version.",
            remedy="Leave 'tools' out, or save them with the agent.",
        )
    name, _, ref = body.model.removeprefix(_PREFIX).partition("@")
    turns = tuple(_turn(turn) for turn in body.messages)
    return AgentCall(name, ref or "production", turns)


def _turn(turn: ChatTurn) -> Message:
    content = turn.content or ""
    if not isinstance(content, str):
        content = "".join(part.text for part in content)
    role = "system" if turn.role == "developer" else turn.role
    return Message(role=role, content=content, name=turn.name)


def _usage(usage: Usage) -> dict[str, Any]:
    """OpenAI counts cached tokens within the prompt's; ours are disjoint."""
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output_tokens,
        "total_tokens": prompt + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
    }


def _head(body: ChatIn, run: AgentRun, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{run.id}",
        "object": kind,
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": f"version-{run.version}",
    }


def finish_of(trajectory: Trajectory) -> str:
    """``length`` where a limit of the run or of the reply cut the answer short, else ``stop``."""
    if trajectory.stop == "answered":
        said = [step for step in trajectory.steps if step.kind == "model"]
        if said and said[-1].finish_reason == "length":
            return "length"
    return _FINISH.get(trajectory.stop, "stop")


def reply_of(body: ChatIn, run: AgentRun) -> dict[str, Any]:
    """The whole answer of a finished run."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": run.trajectory.answer},
        "finish_reason": finish_of(run.trajectory),
    }
    return {
        **_head(body, run, "chat.completion"),
        "choices": [choice],
        "usage": _usage(run.usage),
    }


async def stream_reply(
    body: ChatIn, call: AgentCall, caller: Caller, request: Request
) -> StreamingResponse:
    """The answer as server-sent events. The run ends when the client goes away."""
    # What cannot even start (no such agent, no such label) is an ordinary error with its status.
    prepared = await caller.service.agents.prepare(caller.project_id, call, caller.author)
    return StreamingResponse(
        _events(body, prepared, caller, request), media_type="text/event-stream", headers=UNBUFFERED
    )


async def _events(
    body: ChatIn, prepared: PreparedRun, caller: Caller, request: Request
) -> AsyncIterator[str]:
    run = asyncio.create_task(caller.service.agents.perform(prepared))
    try:
        while not run.done():
            await asyncio.wait({run}, timeout=HEARTBEAT_S)
            if not run.done():
                yield ": the agent works\n\n"
        try:
            finished = run.result()
        except Exception as error:  # noqa: BLE001 - the status is sent already; told in the stream
            problem = json.loads(bytes(_as_openai(respond_to(request, error)).body))
            yield _event({"error": problem["error"]})
            yield "data: [DONE]\n\n"
            return
        for chunk in _chunks(body, finished):
            yield _event(chunk)
        yield "data: [DONE]\n\n"
    finally:
        if not run.done():
            run.cancel()


def _chunks(body: ChatIn, run: AgentRun) -> list[dict[str, Any]]:
    wants_usage = body.stream_options is not None and body.stream_options.include_usage
    head = _head(body, run, "chat.completion.chunk")
    # With usage asked for, every chunk carries the member and only the last one a value.
    extra: dict[str, Any] = {"usage": None} if wants_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**head, "choices": [choice], **extra}

    answer = run.trajectory.answer
    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"content": answer[at : at + _PIECE]}) for at in range(0, len(answer), _PIECE)]
    chunks.append(chunk({}, finish_of(run.trajectory)))
    if wants_usage:
        chunks.append({**head, "choices": [], "usage": _usage(run.usage)})
    return chunks


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def list_models(caller: Caller) -> ModelList:
    """Every agent of the project at each of its labels."""
    entries: list[ModelEntry] = []
    cursor: str | None = None
    async with caller.db.transaction(caller.project_id) as session:
        while True:
            page = await list_artifacts(session, caller.project_id, AGENT, limit=200, cursor=cursor)
            for row in page.items:
                labels = await labels_of(session, ArtifactRef(caller.project_id, AGENT, row.name))
                created = int(row.created_at.timestamp())
                entries += [
                    ModelEntry(id=f"{_PREFIX}{row.name}@{label}", created=created)
                    for label in labels
                ]
            cursor = page.next_cursor
            if cursor is None:
                return ModelList(data=entries)
