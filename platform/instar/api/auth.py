"""Authentication and access: a key or a session says who calls, a route says who may.

The project comes from the credential alone, never from the path or the body. There is no mode
without credentials, whatever address the API listens on, and no route without a declaration: see
:mod:`instar.api.declared`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from instar.api.hosts import host_name, is_loopback, same_origin
from instar.api.problems import ProblemError, Unauthenticated
from instar.api.service import Service
from instar.redaction import scope_redaction
from instar.store.audit import Author
from instar.store.projects import resolve_api_key
from instar.store.session import Database
from instar.store.sessions import find_session
from instar_core.errors import PermissionDenied, UserError

__all__ = [
    "CSRF_HEADER",
    "Access",
    "Admin",
    "Anyone",
    "Approver",
    "Caller",
    "Instance",
    "Operator",
    "Role",
    "SignedIn",
    "Viewer",
    "authenticate",
    "authenticate_anew",
    "caller_of_session",
    "cookie_name",
    "csrf_token",
    "on_loopback",
    "refuse_other_origins",
    "require",
    "service_of",
]

Role = Literal["viewer", "operator", "approver", "admin"]
Access = Literal["anyone", "viewer", "operator", "approver", "admin", "instance"]
"""What a route can ask for: any credential, a role, or the right over the installation."""
CSRF_HEADER: Final = "X-CSRF-Token"
_RANKS: Final = {"viewer": 0, "operator": 1, "approver": 2, "admin": 3}
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Who one is may be asked with any key, however narrow.
_UNSCOPED: Final = "/v1/auth/session"


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The person and the session behind a call from a browser."""

    user_id: str
    email: str
    name: str
    session_id: str
    secret: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and what the call works with. ``role`` is empty where a person has none."""

    project_id: str
    key_id: str
    role: str
    service: Service
    scopes: tuple[str, ...] = ()
    instance: bool = False
    agent: str = ""
    expires_at: datetime | None = None
    session: SignedIn | None = None

    @property
    def db(self) -> Database:
        """The database."""
        return self.service.db

    def has(self, role: Role) -> bool:
        """Whether the caller is of at least this role."""
        return _RANKS.get(self.role, -1) >= _RANKS[role]

    def may(self, access: Access) -> bool:
        """Whether the caller has what a route asks for.

        The right over the installation makes people, who have no scopes: narrow keys lack it.
        """
        if access == "anyone":
            return True
        if access == "instance":
            return self.instance and not self.scopes and self.has("admin")
        return self.has(access)

    @property
    def author(self) -> Author:
        """Who is named as the author of what the call changes."""
        if self.session is not None:
            return Author("person", f"user:{self.session.user_id}")
        return Author("person", f"key:{self.key_id}")


def service_of(request: Request) -> Service:
    """The service of this process."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def cookie_name(request: Request) -> str:
    """What the session's cookie is called: ``__Host-`` binds it to TLS and to this very name."""
    return "instar_session" if on_loopback(request) else "__Host-instar_session"


def on_loopback(request: Request) -> bool:
    """Whether the browser talks to its own machine, where there need be no TLS."""
    return is_loopback(host_name(request.headers.get("host", "")))


def csrf_token(secret: str) -> str:
    """What a page must repeat in a header: derived from the cookie, which no page can read."""
    return hmac.new(secret.encode(), b"instar csrf token", hashlib.sha256).hexdigest()


async def authenticate(request: Request) -> Caller:
    """Who sent the request, by its API key or session; looked up once per request.

    Raises:
        Unauthenticated: If there is no credential, or none that is valid.
        PermissionDenied: If the key's scopes leave the route out, or a session's request does not
            prove that it comes from this service's own pages.
        ProblemError: If the service is not ready.
    """
    known = getattr(request.state, "caller", None)
    if isinstance(known, Caller):
        return known
    if "\x00" in request.scope["path"] or b"%00" in request.scope["query_string"]:
        raise UserError("The address holds a NUL character, which no name can.")
    header = request.headers.get("authorization")
    if header is not None:
        caller = await _by_key(request, header)
    else:
        caller = await _by_session(request)
    scope_redaction(caller.project_id)
    request.state.caller = caller
    return caller


async def authenticate_anew(request: Request) -> Caller:
    """Who sent the request, as the credential stands now: for answers that take a long time.

    Raises:
        Unauthenticated: If the credential was revoked, ran out or was ended since.
        PermissionDenied: As for :func:`authenticate`.
    """
    request.state.caller = None
    return await authenticate(request)


async def _by_key(request: Request, header: str) -> Caller:
    scheme, _, key = header.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated
    service = service_of(request)
    await service.require_ready()
    try:
        owner = await resolve_api_key(service.db, key.strip())
    except PermissionDenied as error:
        raise Unauthenticated from error
    role = owner.role
    # Whatever the row says, an agent's key never approves.
    if owner.agent and _RANKS.get(role, -1) > _RANKS["operator"]:
        role = "operator"
    _check_scope(request, owner.scopes)
    return Caller(
        owner.project_id,
        owner.key_id,
        role,
        service,
        scopes=owner.scopes,
        instance=owner.instance and not owner.agent,
        agent=owner.agent,
        expires_at=owner.expires_at,
    )


def _check_scope(request: Request, scopes: tuple[str, ...]) -> None:
    """Refuses areas (first part of the path under ``/v1``) that the key was not made for."""
    path = request.scope["path"]
    if not scopes or path == _UNSCOPED and request.method in _SAFE:
        return
    area = path.removeprefix("/v1/").partition("/")[0]
    if area in scopes or f"{area}:read" in scopes and request.method in _SAFE:
        return
    raise PermissionDenied(
        f"This key is for {', '.join(scopes)}; {request.method} on {area!r} is outside.",
        remedy="Use another key.",
    )


async def _by_session(request: Request) -> Caller:
    secret = request.cookies.get(cookie_name(request))
    if not secret:
        raise Unauthenticated
    service = service_of(request)
    await service.require_ready()
    caller = await caller_of_session(service, secret)
    if request.method not in _SAFE:
        _check_csrf(request, secret)
    return caller


async def caller_of_session(service: Service, secret: str) -> Caller:
    """Who holds a session now, with the role that the person has in its project.

    Raises:
        Unauthenticated: If nobody does (any more).
    """
    async with service.db.system() as session:
        held = await find_session(session, secret, service.settings.auth.session_idle_s)
    if held is None:
        raise Unauthenticated
    signed_in = SignedIn(
        held.user_id, held.email, held.name, held.session_id, secret, held.expires_at
    )
    return Caller(
        held.project_id,
        "",
        held.role,
        service,
        instance=held.instance,
        expires_at=held.expires_at,
        session=signed_in,
    )


def _check_csrf(request: Request, secret: str) -> None:
    sent = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(sent.encode(), csrf_token(secret).encode()):
        raise ProblemError(
            "forbidden",
            f"The header {CSRF_HEADER} is missing or wrong.",
            remedy="Send the csrf_token of GET /v1/auth/session with every change.",
        )
    refuse_other_origins(request)


def refuse_other_origins(request: Request) -> None:
    """Refuses what another site's page made a browser send.

    Raises:
        ProblemError: If the Origin or Sec-Fetch-Site header names another site.
    """
    if not same_origin(request.headers):
        raise ProblemError(
            "forbidden",
            f"The request comes from another site ({request.headers.get('origin', '?')[:100]!r}).",
            remedy="Send it from this service's own pages, or use an API key.",
        )


# Only for the OpenAPI document; the credentials are read by `authenticate`, which words refusals.
_bearer = HTTPBearer(auto_error=False, scheme_name="api-key", description="an API key")
_cookie = APIKeyCookie(
    name="instar_session",
    auto_error=False,
    scheme_name="session",
    description=f"a session of /v1/auth/login; changes need the header {CSRF_HEADER} too",
)
_Documented = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
_DocumentedToo = Annotated[str | None, Security(_cookie)]


def require(access: Access) -> Callable[..., Awaitable[Caller]]:
    """A dependency that lets callers in who have at least this role, or the right it names."""

    async def check(request: Request, _: _Documented = None, __: _DocumentedToo = None) -> Caller:
        caller = await authenticate(request)
        if not caller.may(access):
            raise PermissionDenied(_refusal(caller, access), remedy="Use another credential.")
        return caller

    check.access = access  # type: ignore[attr-defined]
    return check


def _refusal(caller: Caller, access: Access) -> str:
    who = "The agent's key" if caller.agent else "The caller"
    if not caller.role:
        return "You have no role in this project (any more); PUT /v1/auth/session names another."
    if access == "instance":
        return (
            f"{who} (role {caller.role!r}) may not do this; it takes an admin with the right over "
            "the installation."
        )
    return (
        f"{who} has the role {caller.role!r} here, which may not do this; it takes {access!r}"
        + ("." if access == "admin" else " or more.")
    )


Anyone = Annotated[Caller, Depends(require("anyone"))]
Viewer = Annotated[Caller, Depends(require("viewer"))]
Operator = Annotated[Caller, Depends(require("operator"))]
Approver = Annotated[Caller, Depends(require("approver"))]
Admin = Annotated[Caller, Depends(require("admin"))]
Instance = Annotated[Caller, Depends(require("instance"))]
