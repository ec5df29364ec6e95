"""The application: routes, errors, size limit and OpenAPI; ``uvicorn instar.api.app:app``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

import instar
from instar.api.declared import check_declared, declared_routes
from instar.api.hosts import HostGuard, is_loopback
from instar.api.idempotency import HEADER, IdempotentRoute
from instar.api.limits import BodyLimit
from instar.api.problems import Problem, install_handlers
from instar.api.routes import ROUTERS
from instar.api.service import Overrides, Service
from instar.redaction import install_log_redaction
from instar.settings import Settings, load_settings, prepare_process
from instar_core.errors import PrerequisiteError

__all__ = ["create_app", "is_loopback"]

_DESCRIPTION = (
    "Agents that get better from their own work. Errors are RFC 9457 problems; POSTs honour "
    f"`{HEADER}`; lists are paged by `limit` and `after`."
)


def create_app(settings: Settings | None = None, overrides: Overrides | None = None) -> FastAPI:
    """The API as an ASGI application; connections are opened when it starts to serve.

    Args:
        settings: Settings; the environment's when omitted.
        overrides: Parts put in place of the service's own, for tests and embedding programs.
    """
    install_log_redaction()
    settings = settings or load_settings()
    overrides = overrides or Overrides()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = Service.open(settings, overrides)
        try:
            await _check_bind(settings, service)
            app.state.service = service
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="Instar",
        version=instar.__version__,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # the pages load scripts from elsewhere; this service runs offline
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.add_middleware(BodyLimit)
    app.add_middleware(HostGuard, settings=settings.api)
    install_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    check_declared(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


async def _check_bind(settings: Settings, service: Service) -> None:
    """Refuses to listen to other machines before anybody could be told from anybody else."""
    if is_loopback(settings.api.host) or await service.has_credential():
        return
    raise PrerequisiteError(
        f"The API would listen on {settings.api.host!r}, reachable from other machines, but there "
        "is no API key and nobody who could sign in yet.",
        remedy="Make a key first (`instar up` does at its first start), or set INSTAR_API__HOST to "
        "127.0.0.1.",
    )


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document: problems as the only errors, the idempotency header on POSTs."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema()
        header = {
            "name": HEADER,
            "in": "header",
            "required": False,
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
            "description": "the same key and request get the same answer; other request: 422",
        }
        # Requests that carry a password are not kept, not even as a hash.
        kept = {one.path for one in declared_routes(app) if _keeps_answers(one.route)}
        for path, methods in document["paths"].items():
            if "post" in methods and path in kept:
                methods["post"].setdefault("parameters", []).append(header)
        app.openapi_schema = document
    return app.openapi_schema


def _keeps_answers(route: APIRoute) -> bool:
    return isinstance(route, IdempotentRoute) and "POST" in (route.methods or ())


def __getattr__(name: str) -> Any:
    """``app`` for uvicorn, made when it is asked for: importing this module has no effect."""
    if name == "app":
        prepare_process()
        made = create_app()
        globals()["app"] = made
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
