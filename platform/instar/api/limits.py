"""Limits: a request body that is too large, too deep or no text is refused before it is parsed.

A parser that meets a hundred thousand brackets runs out of stack, so JSON is looked at first.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from instar.api.problems import problem_response
from instar.store.contents import MAX_DEPTH, is_too_deep

__all__ = ["MAX_BODY_BYTES", "BodyLimit"]

MAX_BODY_BYTES = 64 * 2**20


class BodyLimit:
    """Middleware that answers 413 to a body that is announced, or turns out, to be too large, and
    422 to JSON that is no UTF-8 or nests too deeply.

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
        headers = dict(scope["headers"])
        announced = headers.get(b"content-length", b"0")
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

        if b"json" not in headers.get(b"content-type", b"json").lower():
            await self.app(scope, counted, send)
            return
        try:
            messages = await _read(counted)
        except HTTPException:
            await self._refuse(scope, receive, send)
            return
        wrong = _wrong(b"".join(message.get("body", b"") for message in messages))
        if wrong:
            await problem_response(Request(scope), "validation", wrong)(scope, receive, send)
            return
        messages.reverse()

        async def again() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, again, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = problem_response(
            Request(scope),
            "too-large",
            f"The body has more than {self.limit} bytes. Send less at a time.",
        )
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


async def _read(receive: Receive) -> list[Message]:
    """Every message of a body, or those before the client went away."""
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        messages.append(await receive())
    return messages


def _wrong(body: bytes) -> str:
    """What is wrong with a JSON text before it is parsed, with the remedy; empty if nothing is."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        return (
            f"The body is not UTF-8: byte {error.start} is 0x{body[error.start]:02x}. "
            "Send JSON as UTF-8."
        )
    if is_too_deep(body):
        return (
            f"The body has more than {MAX_DEPTH} objects and arrays inside each other, which is "
            "the limit. Flatten it."
        )
    return ""
