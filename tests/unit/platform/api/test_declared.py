"""Declared access: a route that says nothing stops the start."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from instar.api.auth import Viewer
from instar.api.declared import PUBLIC, declared_routes
from instar_core.errors import InstarError


def test_a33_a_route_that_declares_nothing_stops_the_start() -> None:
    app = FastAPI()

    async def open_door() -> str:
        return "come in"

    async def guarded(_caller: Viewer) -> str:
        return "in"

    app.router.routes = []
    app.add_api_route("/v1/guarded", guarded)
    assert [one.access for one in declared_routes(app)] == ["viewer"]
    app.add_api_route("/v1/open", open_door)
    with pytest.raises(InstarError, match="'/v1/open' declares no access"):
        declared_routes(app)
    public = FastAPI()
    public.router.routes = []
    public.add_api_route("/healthz", guarded)
    with pytest.raises(InstarError, match="'/healthz' is public"):
        declared_routes(public)
    assert all(path.startswith("/v1/auth/") for path in PUBLIC if path.startswith("/v1"))
