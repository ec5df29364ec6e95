"""App: the engine's HTTP face, OpenAI-compatible; thin over the host."""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from instar.engine.host import EngineConfig, EngineHost, EngineRefusal, Plan
from instar.engine.limits import BodyLimit
from instar.engine.schemas import ChatBody, CompletionBody, EmbeddingBody, SamplingBody
from instar.engine.weights import CHAT_MODEL, EMBEDDING_MODEL
from instar_core.base import new_id

if TYPE_CHECKING:
    from instar.engine.scheduler import Generation

__all__ = ["MAX_BODY_BYTES", "create_app"]

MAX_BODY_BYTES = 4 * 2**20
_DEFAULT_MAX_TOKENS = 256
T = TypeVar("T")


def create_app(config: EngineConfig) -> FastAPI:
    """The engine as an ASGI application; models load in the background once it has started."""
    host = EngineHost(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        host.start()
        yield
        await asyncio.to_thread(host.stop)

    app = FastAPI(title="Instar engine", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(BodyLimit, limit=MAX_BODY_BYTES)
    app.state.host = host
    _add_error_handlers(app)
    _add_generation_routes(app, host)
    _add_other_routes(app, host)
    return app


def _add_generation_routes(app: FastAPI, host: EngineHost) -> None:
    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> dict[str, Any]:
        _require_model(body.model, CHAT_MODEL)
        if body.tools:
            raise EngineRefusal(
                400,
                "tools_unsupported",
                f"{CHAT_MODEL} has no native tool calls; use the text tool protocol",
            )
        prompt = host.tokenize_chat([m.model_dump() for m in body.messages])
        finished = await _until_gone(request, host.generate(_plan(body, prompt)))
        choices = []
        for index, one in enumerate(finished):
            choice = _choice(index, one, body)
            choice["message"] = {"role": "assistant", "content": one.text}
            if body.logprobs:
                texts = host.token_text(one.tokens)
                choice["logprobs"] = {
                    "content": [
                        {"token": text, "logprob": value, "bytes": None, "top_logprobs": []}
                        for text, value in zip(texts, one.logprobs, strict=True)
                    ]
                }
            choices.append(choice)
        return _completion("chat.completion", host, choices, finished)

    @app.post("/v1/completions")
    async def complete(body: CompletionBody, request: Request) -> dict[str, Any]:
        _require_model(body.model, CHAT_MODEL)
        prompt = body.prompt if isinstance(body.prompt, list) else host.tokenize(body.prompt)
        finished = await _until_gone(request, host.generate(_plan(body, prompt)))
        choices = []
        for index, one in enumerate(finished):
            choice = _choice(index, one, body)
            choice["text"] = one.text
            if body.logprobs is not None:
                choice["logprobs"] = {
                    "tokens": host.token_text(one.tokens),
                    "token_logprobs": one.logprobs,
                }
            choices.append(choice)
        return _completion("text_completion", host, choices, finished)


def _add_other_routes(app: FastAPI, host: EngineHost) -> None:
    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingBody, request: Request) -> dict[str, Any]:
        _require_model(body.model, EMBEDDING_MODEL)
        vectors = await _until_gone(request, host.embed(body.input))
        packed = body.encoding_format == "base64"
        tokens = sum(-(-len(text) // 4) for text in body.input)
        return {
            "object": "list",
            "model": EMBEDDING_MODEL,
            "data": [
                {"object": "embedding", "index": i, "embedding": _pack(v) if packed else v}
                for i, v in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        listed = [
            {"id": name, "object": "model", "created": 0, "owned_by": "instar"}
            for name in host.models()
        ]
        return {"object": "list", "data": listed}

    @app.get("/healthz")
    async def health(wait_s: Annotated[float, Query(ge=0.0, le=60.0)] = 0.0) -> JSONResponse:
        if wait_s and host.state == "loading":
            await host.wait_settled(wait_s)
        report = host.health()
        return JSONResponse(report, status_code=200 if report["state"] == "ready" else 503)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(EngineRefusal)
    async def refused(_: Request, error: EngineRefusal) -> JSONResponse:
        headers = {"Retry-After": "1"} if error.status == 503 else None
        return _error(error.status, error.code, error.message, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        parts = [
            f"{'.'.join(str(p) for p in e['loc'][1:]) or 'body'}: {e['msg']}"
            for e in error.errors()
        ]
        return _error(400, "invalid_request", "; ".join(parts))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, "http_error", str(error.detail))


def _error(
    status: int, code: str, message: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "code": code, "param": None}}
    return JSONResponse(body, status_code=status, headers=headers)


def _require_model(name: str, served: str) -> None:
    if name != served:
        raise EngineRefusal(404, "model_not_found", f"model {name!r} is not served; use {served!r}")


def _plan(body: SamplingBody, prompt: list[int]) -> Plan:
    if body.stream:
        raise EngineRefusal(400, "stream_unsupported", "the engine does not stream; drop 'stream'")
    return Plan(
        prompt=prompt,
        temperature=body.temperature,
        top_p=body.top_p,
        max_tokens=body.limit or _DEFAULT_MAX_TOKENS,
        stop=tuple(s for s in body.stop if s),
        seed=body.seed,
        n=body.n,
    )


async def _until_gone(request: Request, work: Awaitable[T]) -> T:
    """Awaits the work, and cancels it when the client hangs up."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise EngineRefusal(499, "client_closed_request", "the client hung up")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _choice(index: int, one: Generation, body: SamplingBody) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index, "finish_reason": one.finish, "logprobs": None}
    if body.return_tokens:
        choice["instar"] = {
            "prompt_token_ids": one.prompt,
            "token_ids": one.tokens,
            "logprobs": one.logprobs,
        }
    return choice


def _completion(
    kind: str, host: EngineHost, choices: list[dict[str, Any]], finished: list[Generation]
) -> dict[str, Any]:
    prompt = len(finished[0].prompt)
    output = sum(len(one.tokens) for one in finished)
    return {
        "id": f"cmpl-{new_id()}",
        "object": kind,
        "created": int(time.time()),
        "model": CHAT_MODEL,
        "system_fingerprint": host.fingerprint,
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": min(o.cached_tokens for o in finished)},
        },
    }


def _pack(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
