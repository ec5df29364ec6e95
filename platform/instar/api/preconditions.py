"""Preconditions: a change names the state it changes (``If-Match``), a read the state it knows.

PUT and PATCH on something that exists take the ETag under which it was read: without one they are
refused (428), with another state's they are too (412), and ``*`` means whatever is there. A reader
who sends ``If-None-Match`` with the present ETag gets 304 and no body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Header, Request, Response
from pydantic import BaseModel

from instar.api.problems import ProblemError
from instar_core.base import content_hash

__all__ = ["IfMatch", "IfNoneMatch", "check_match", "model_etag", "quoted", "unchanged"]

IfMatch = Annotated[
    str | None,
    Header(description="ETag of the state that is changed, as it was read; or *", max_length=400),
]
IfNoneMatch = Annotated[
    str | None, Header(description="ETags of states that the reader has", max_length=400)
]


def quoted(etag: str | int) -> str:
    """An ETag as headers carry it."""
    return f'"{etag}"'


def model_etag(shown: BaseModel) -> str:
    """An ETag that changes with anything that is shown."""
    return content_hash(shown)[:32]


def check_match(
    sent: str | None, now: str | int | Sequence[str] | None, what: str, *, required: bool = True
) -> None:
    """Lets a change through only where it names the present state.

    Args:
        sent: The ``If-Match`` header.
        now: ETag of what is there (or each of those under which it can be read); ``None`` where
            there is nothing yet, so that nothing can be overwritten.
        what: What is changed, for the message.
        required: Whether a change without the header is refused.

    Raises:
        ProblemError: ``precondition-required`` or ``precondition-failed``; nothing was changed.
    """
    known = [now] if isinstance(now, str | int) else list(now or ())
    if sent is None:
        if required and known:
            raise ProblemError(
                "precondition-required",
                f"{what} exists; a change of it must say which state it changes.",
                remedy="Read it first and send its ETag as If-Match; '*' changes whatever is "
                "there.",
            )
        return
    seen = _parts(sent)
    if known and ("*" in seen or any(quoted(one) in seen for one in known)):
        return
    present = quoted(known[0]) if known else "absent"
    raise ProblemError(
        "precondition-failed",
        f"{what} is {present} now, not {sent} as If-Match says; nothing was changed.",
        remedy="Read it again and decide anew.",
    )


def unchanged(request: Request, response: Response, etag: str | int) -> bool:
    """Sets the ETag of an answer; tells whether the reader has that state already.

    Then the answer is 304 without a body: return ``Response(304, headers=response.headers)``.
    """
    response.headers["ETag"] = quoted(etag)
    # Kept by the reader, and asked about each time: archiving and moving hold from the next read.
    response.headers["Cache-Control"] = "private, no-cache"
    seen = _parts(request.headers.get("if-none-match", ""))
    return "*" in seen or quoted(etag) in seen or f"W/{quoted(etag)}" in seen


def _parts(header: str) -> list[str]:
    return [part.strip() for part in header.split(",") if part.strip()]
