"""Problems: every error as RFC 9457 ``application/problem+json``, with a stable type and the
remedy.

Domain errors do not know HTTP; this module alone maps them. The type of a problem is a URN made of
the error's code, so that clients can switch on it; the detail quotes the value and names the
remedy.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from instar.redaction import redact, redact_text
from instar_core.errors import InstarError

__all__ = [
    "MEDIA_TYPE",
    "Problem",
    "ProblemError",
    "TooManyAttempts",
    "Unauthenticated",
    "documented",
    "install_handlers",
    "problem_response",
    "respond_to",
]

MEDIA_TYPE = "application/problem+json"
_log = logging.getLogger(__name__)

_STATUS = {
    "invalid": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not-found": 404,
    "method-not-allowed": 405,
    "conflict": 409,
    "prerequisite": 409,
    "stale-proposal": 409,
    "budget-exhausted": 409,
    "cancelled": 409,
    "lease-lost": 409,
    "in-progress": 409,
    "precondition-failed": 412,
    "precondition-required": 428,
    "too-large": 413,
    "task-file": 422,
    "validation": 422,
    "idempotency-key-reused": 422,
    "too-many-attempts": 429,
    "parse-failure": 502,
    "model": 502,
    "tool-server": 502,
    "tool": 502,
    "infrastructure": 503,
    "store": 503,
    "environment": 503,
    "not-ready": 503,
}
_TITLES = {
    "invalid": "The request cannot be carried out as it is",
    "unauthenticated": "A valid credential is needed",
    "forbidden": "The credential may not do this",
    "not-found": "There is no such thing",
    "method-not-allowed": "This method does not exist here",
    "conflict": "The thing has changed or exists already",
    "prerequisite": "Something must be set up first",
    "stale-proposal": "The label has moved since the test",
    "budget-exhausted": "The budget does not suffice",
    "cancelled": "It was cancelled",
    "lease-lost": "Another worker holds this now",
    "in-progress": "The same request is still being worked on",
    "precondition-failed": "The thing has changed meanwhile",
    "precondition-required": "A change must name the state that it changes",
    "too-large": "The request is too large",
    "task-file": "The task file is broken",
    "validation": "The request does not have the right form",
    "too-many-attempts": "Too many attempts",
    "idempotency-key-reused": "The idempotency key belongs to another request",
    "parse-failure": "A model's reply could not be used",
    "model": "The model did not answer",
    "tool-server": "A tool server did not answer",
    "tool": "A tool call failed",
    "infrastructure": "Something the service needs is away",
    "store": "The database is away or refuses",
    "environment": "The task's environment failed",
    "not-ready": "The service is not ready",
    "internal": "The service made a mistake",
}
_RETRY_AFTER_S = "5"
_STORE = (
    "The database is away or refused a statement; the service's log says which. Nothing that was "
    "committed is lost. Send the request again in a few seconds."
)


class Problem(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str = Field(description="stable name of the kind of problem: urn:instar:problem:<code>")
    title: str = Field(description="the kind of problem in words")
    status: int = Field(description="HTTP status")
    detail: str = Field(description="what happened, quoting the value, and the remedy")
    instance: str = Field(description="path of the request")
    errors: list[dict[str, Any]] | None = Field(
        default=None, description="for a malformed request: where and what, one entry per place"
    )


class ProblemError(InstarError):
    """An error that only this interface knows, by its code."""

    def __init__(self, code: str, message: str, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.code, self.message, self.remedy))


def _rebuild(code: str, message: str, remedy: str) -> ProblemError:
    return ProblemError(code, message, remedy=remedy)


class Unauthenticated(ProblemError):
    """No credential, or none that is valid; which of the two is not told."""

    def __init__(self) -> None:
        super().__init__(
            "unauthenticated",
            "The request carries no valid API key, and no session that is still open.",
            remedy="Send the header 'Authorization: Bearer <key>' (`instar up` prints the first "
            "key and keeps it in the data directory), or sign in at /v1/auth/login.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (Unauthenticated, ())


class TooManyAttempts(ProblemError):
    """An address has failed to sign in too often; tells how long to wait, not whether it exists."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = max(1, math.ceil(wait_s))
        super().__init__(
            "too-many-attempts",
            "There were too many failed attempts to sign in as this person.",
            remedy=f"Wait {self.wait_s} seconds, then try again.",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (TooManyAttempts, (self.wait_s,))


def problem_response(
    request: Request, code: str, detail: str, *, errors: list[dict[str, Any]] | None = None
) -> JSONResponse:
    """The response for a problem code (``internal`` when the code is unknown)."""
    status = _STATUS.get(code, 500)
    # Whatever an error quotes: no credential leaves in it.
    detail = redact_text(detail)
    code = code if code in _TITLES else "internal"
    problem = Problem(
        type=f"urn:instar:problem:{code}",
        title=_TITLES[code],
        status=status,
        detail=detail,
        instance=redact_text(request.url.path),
        errors=None if errors is None else redact(errors),
    )
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="instar"'
    if status == 503 or code == "in-progress":
        headers["Retry-After"] = _RETRY_AFTER_S
    return JSONResponse(
        problem.model_dump(exclude_none=True),
        status_code=status,
        headers=headers,
        media_type=MEDIA_TYPE,
    )


def respond_to(request: Request, error: Exception) -> Response:
    """The response for any error; unforeseen ones are logged and shown without their inside."""
    if isinstance(error, InstarError):
        if error.code not in _STATUS:
            _log.error("unhandled %s", error.code, exc_info=error)
        if error.code == "store":
            # The message names the database's address, which callers have no business with.
            _log.error("on %s %s: %s", request.method, request.url.path, error)
            return problem_response(request, error.code, _STORE)
        response = problem_response(request, error.code, str(error))
        if isinstance(error, TooManyAttempts):
            response.headers["Retry-After"] = str(error.wait_s)
        return response
    if isinstance(error, RequestValidationError):
        return _malformed(request, error)
    if isinstance(error, HTTPException):
        return _from_http(request, error)
    if isinstance(error, UnicodeEncodeError) and "surrogate" in error.reason:
        # JSON can spell half a character (\\ud800); no text, hash or database can hold it.
        return problem_response(
            request,
            "validation",
            f"The request contains {_half(error)!a}, half of a character (a surrogate without its "
            "partner). Send valid Unicode.",
        )
    _log.error("unforeseen error on %s %s", request.method, request.url.path, exc_info=error)
    return problem_response(
        request,
        "internal",
        "Something went wrong that nobody foresaw; nothing that was committed is lost. The "
        "service's log has the details.",
    )


def _half(error: UnicodeEncodeError) -> str:
    return error.object[error.start : error.start + 1]


def _malformed(request: Request, error: RequestValidationError) -> Response:
    places = [
        {"where": "/".join(str(part) for part in entry["loc"]), "what": _said(entry["msg"])}
        for entry in error.errors()
    ]
    first = places[0] if places else {"where": "body", "what": "invalid"}
    more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
    return problem_response(
        request,
        "validation",
        f"{first['where']}: {first['what']}{more}. Correct it and send the request again.",
        errors=places,
    )


def _said(message: object) -> str:
    """A validator's own words, without the library's mark before them."""
    return str(message).removeprefix("Value error, ")


def _from_http(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        return problem_response(
            request, "not-found", f"There is no route {request.url.path!r}; see /openapi.json."
        )
    if error.status_code == 405:
        response = problem_response(
            request,
            "method-not-allowed",
            f"{request.method} is not possible on {request.url.path!r}; see /openapi.json.",
        )
        response.headers.update(error.headers or {})
        return response
    if error.status_code == 413:
        return problem_response(request, "too-large", "The body is too large. Send less at a time.")
    code = "invalid" if error.status_code < 500 else "internal"
    return problem_response(request, code, str(error.detail))


def install_handlers(app: FastAPI) -> None:
    """Makes every error of the application a problem."""

    async def handle(request: Request, error: Exception) -> Response:
        return respond_to(request, error)

    for kind in (
        InstarError,
        RequestValidationError,
        HTTPException,
        UnicodeEncodeError,
        Exception,
    ):
        app.add_exception_handler(kind, handle)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the error statuses that a route can answer with."""
    words = {
        400: "The request cannot be carried out as it is",
        401: "No valid credential",
        403: "The credential may not do this",
        404: "There is no such thing in this project",
        409: "Conflict with the present state",
        412: "The thing has changed meanwhile (If-Match)",
        413: "The request is too large",
        422: "Malformed request, broken task file, or reused idempotency key",
        428: "A change of something that exists needs If-Match",
        429: "Too many attempts",
        500: "The service made a mistake",
        502: "A model or tool server failed",
        503: "The service is not ready",
    }
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": words[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }
