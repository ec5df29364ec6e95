"""Idempotency: a POST sent again with the same ``Idempotency-Key`` gets the first answer again.

The same key with another request is refused (422); a request whose first try is still running gets
409 and is to be repeated. Only success is kept: a refused request changed nothing, and once its
cause is repaired the same request may succeed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.responses import StreamingResponse

from instar.api.auth import Caller, authenticate
from instar.api.problems import ProblemError, respond_to
from instar.store.idempotency import claim_key, release_key, settle_key
from instar_core.base import content_hash
from instar_core.errors import UserError

__all__ = ["HEADER", "IdempotentRoute", "ShownOnceRoute"]

HEADER = "Idempotency-Key"
_LONGEST = 200
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class IdempotentRoute(APIRoute):
    """A route whose POST honours ``Idempotency-Key``."""

    shown_once: ClassVar[tuple[str, ...]] = ()
    """Members of the answer that are not kept: a repeated request gets null in their place."""

    def get_route_handler(self) -> Handler:
        """The handler, wrapped where the method is POST."""
        original = super().get_route_handler()
        if "POST" not in (self.methods or ()):
            return original

        async def handler(request: Request) -> Response:
            key = request.headers.get(HEADER)
            if key is None:
                return await original(request)
            return await _once(request, key, original, self.shown_once)

        return handler


class ShownOnceRoute(IdempotentRoute):
    """A route whose answer holds a secret that is shown once, and never kept."""

    shown_once = ("key",)


async def _once(
    request: Request,
    key: str,
    perform: Callable[[Request], Awaitable[Response]],
    shown_once: tuple[str, ...],
) -> Response:
    if not 1 <= len(key) <= _LONGEST:
        raise UserError(
            f"The {HEADER} has {len(key)} characters.",
            remedy=f"Use 1 to {_LONGEST}, for instance a UUID.",
        )
    caller = await authenticate(request)
    # Another caller with the same key gets no answer that its own role might not allow.
    where = [request.method, request.url.path, request.url.query, caller.author.name, caller.role]
    hashed = content_hash([*where, content_hash(await request.body())])
    async with caller.db.transaction(caller.project_id) as session:
        claim = await claim_key(session, caller.project_id, key, hashed)
    if claim.state == "other":
        raise ProblemError(
            "idempotency-key-reused",
            f"The {HEADER} {key!r} was sent before with another request.",
            remedy="Use a new key for a new request.",
        )
    if claim.state == "busy":
        raise ProblemError(
            "in-progress",
            f"The request with the {HEADER} {key!r} is still being worked on.",
            remedy="Send it again with the same key in a few seconds.",
        )
    if claim.state == "done":
        return Response(
            claim.answer,
            status_code=claim.status,
            media_type="application/json",
            headers={"Idempotency-Replayed": "true"},
        )
    return await _perform(request, caller, key, perform, shown_once)


async def _perform(
    request: Request,
    caller: Caller,
    key: str,
    perform: Callable[[Request], Awaitable[Response]],
    shown_once: tuple[str, ...],
) -> Response:
    kept = False
    try:
        try:
            response = await perform(request)
        except Exception as error:  # noqa: BLE001 - becomes the problem it would become anyway
            response = respond_to(request, error)
        if isinstance(response, StreamingResponse):
            raise UserError(
                f"A streamed answer cannot be kept under an {HEADER}.",
                remedy="Leave the header out, or ask without streaming.",
            )
        if response.status_code < 400:
            async with caller.db.transaction(caller.project_id) as session:
                answer = _without(bytes(response.body).decode(), shown_once)
                await settle_key(session, caller.project_id, key, response.status_code, answer)
            kept = True
        return response
    finally:
        if not kept:
            async with caller.db.transaction(caller.project_id) as session:
                await release_key(session, caller.project_id, key)


def _without(answer: str, names: tuple[str, ...]) -> str:
    """A JSON answer with null in place of what is shown once."""
    if not names or not answer:
        return answer
    members = json.loads(answer)
    return json.dumps({**members, **{name: None for name in names if name in members}})
