"""Declared access: deny by default. Every route says who may call it, or it is on a short list.

A route that says nothing stops the service from starting, so that a forgotten check cannot become
an open door.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from instar.api.auth import Access
from instar_core.errors import InstarError

__all__ = ["PUBLIC", "DeclaredRoute", "check_declared", "declared_routes"]

PUBLIC: Final = frozenset(
    {
        "/healthz",
        "/readyz",
        "/version",
        "/openapi.json",
        "/v1/auth/login",
        "/v1/auth/oidc/login",
        "/v1/auth/oidc/callback",
    }
)
"""The routes that need no credential."""


class DeclaredRoute(NamedTuple):
    """One route and what it asks for; ``None`` where it is public."""

    path: str
    route: APIRoute
    access: Access | None


def declared_routes(app: FastAPI) -> list[DeclaredRoute]:
    """Every route of the application with its declared access.

    Raises:
        InstarError: If a route says nothing and is not public, or is of a kind that cannot say.
    """
    found: list[DeclaredRoute] = []
    # Included routers keep their routes: the context knows the whole path and what was added.
    for context in iter_route_contexts(app.routes):
        route, path = context.original_route, str(context.path_format or context.path)
        access = _access(context.dependant) if isinstance(route, APIRoute) else None
        if (access is None) != (path in PUBLIC):
            raise InstarError(
                f"the route {path!r} "
                + ("declares no access." if access is None else "is public and asks for access."),
                remedy="Give it a caller (Viewer, Operator, Approver, Admin, Instance, Anyone), or "
                "list it in instar.api.declared.PUBLIC.",
            )
        if isinstance(route, APIRoute):
            found.append(DeclaredRoute(path, route, access))
    return found


def check_declared(app: FastAPI) -> None:
    """Stops an application in which a route forgot to say who may call it.

    Raises:
        InstarError: Naming the route.
    """
    declared_routes(app)


def _access(dependant: Any) -> Access | None:
    """What a route's own dependencies ask for."""
    for one in dependant.dependencies:
        access: Access | None = getattr(one.call, "access", None) or _access(one)
        if access is not None:
            return access
    return None
