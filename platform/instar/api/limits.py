"""Limits: a request body beyond the limit is refused before it fills the memory."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instar.api.problems import problem_response

__all__ = ["MAX_BODY_BYTES", "BodyLimit"]

MAX_BODY_BYTES = 64 * 2**20


class BodyLimit:
    """Middleware that answers 413 when a body is announced, or turns out, to be too large.

    Args:
        app: The application behind it.
        limit: Bytes allowed.
    """

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self.limit:
            await self._refuse(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                # Whoever reads the body lets this pass, and the error handler words it.
                raise HTTPException(413)
            return message

        await self.app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = problem_response(
            Request(scope),
            "too-large",
            f"The body has more than {self.limit} bytes. Send less at a time.",
        )
        response.headers["Connection"] = "close"
        await response(scope, receive, send)
