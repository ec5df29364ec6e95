"""Authentication: an API key in the Authorization header says who calls and in which project.

The project comes from the credential alone, never from the path or the body. There is no mode
without keys, whatever address the API listens on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from instar.api.problems import Unauthenticated
from instar.api.service import Service
from instar.store.audit import Author
from instar.store.projects import resolve_api_key
from instar.store.session import Database
from instar_core.errors import PermissionDenied, UserError

__all__ = [
    "Admin",
    "Approver",
    "Caller",
    "Operator",
    "Role",
    "Viewer",
    "authenticate",
    "service_of",
]

Role = Literal["viewer", "operator", "approver", "admin"]
_RANKS = {"reader": 0, "viewer": 0, "member": 1, "operator": 1, "approver": 2, "admin": 3}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and what the call works with."""

    project_id: str
    key_id: str
    role: str
    service: Service

    @property
    def db(self) -> Database:
        """The database."""
        return self.service.db

    def has(self, role: Role) -> bool:
        """Whether the caller's key is of at least this role."""
        return _RANKS.get(self.role, -1) >= _RANKS[role]

    @property
    def author(self) -> Author:
        """Who is named as the author of what the call changes."""
        return Author("person", f"key:{self.key_id}")


def service_of(request: Request) -> Service:
    """The service of this process."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


async def authenticate(request: Request) -> Caller:
    """Who sent the request, by its API key; looked up once per request.

    Raises:
        Unauthenticated: If there is no key, or none that is valid.
        ProblemError: If the service is not ready.
    """
    known = getattr(request.state, "caller", None)
    if isinstance(known, Caller):
        return known
    if "\x00" in request.scope["path"] or b"%00" in request.scope["query_string"]:
        raise UserError("The address holds a NUL character, which no name can.")
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise Unauthenticated
    service = service_of(request)
    await service.require_ready()
    try:
        owner = await resolve_api_key(service.db, key.strip())
    except PermissionDenied as error:
        raise Unauthenticated from error
    caller = Caller(owner.project_id, owner.key_id, owner.role, service)
    request.state.caller = caller
    return caller


# Only for the OpenAPI document; the header is read by `authenticate`, which words the refusal.
_bearer = HTTPBearer(auto_error=False, scheme_name="api-key", description="an API key")
_Documented = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


def require(role: Role) -> Callable[..., Awaitable[Caller]]:
    """A dependency that lets callers of at least this role in."""

    async def check(request: Request, _: _Documented = None) -> Caller:
        caller = await authenticate(request)
        if not caller.has(role):
            raise PermissionDenied(
                f"A key of role {caller.role!r} may not do this; it takes {role!r} or more.",
                remedy="Use another key.",
            )
        return caller

    return check


Viewer = Annotated[Caller, Depends(require("viewer"))]
Operator = Annotated[Caller, Depends(require("operator"))]
Approver = Annotated[Caller, Depends(require("approver"))]
Admin = Annotated[Caller, Depends(require("admin"))]
