"""Tool servers and the project's own settings: what only an admin may change.

A stdio server is a command line that this machine runs, so registering one takes an admin's key.
Environment values are written and never read back.
"""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from instar.api.auth import Admin, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.problems import documented
from instar.runtime.tools.config import ToolServerConfig
from instar.store.projects import read_project, update_project_settings
from instar.store.servers import delete_server, list_servers, put_server
from instar.store.servers import read_server as find_server
from instar_core.errors import UserError

__all__ = ["project_router", "router"]

_ERRORS = documented(400, 401, 403, 404, 409, 413, 422, 500, 503)
router = APIRouter(
    prefix="/v1/mcp-servers", tags=["tool servers"], route_class=IdempotentRoute, responses=_ERRORS
)
project_router = APIRouter(
    prefix="/v1/project", tags=["project"], route_class=IdempotentRoute, responses=_ERRORS
)


class ServerOut(BaseModel):
    """A registered tool server; the values of its environment are not shown."""

    name: str
    config: dict[str, Any]


class ServersOut(BaseModel):
    """The project's tool servers."""

    data: list[ServerOut]
    next: None = None


class ProjectIn(BaseModel):
    """The project's rules."""

    model_config = ConfigDict(extra="forbid")

    promotion: Literal["ask", "auto"] = Field(
        description="'ask' waits for a person; 'auto' promotes what the sealed test accepted"
    )


class ProjectOut(BaseModel):
    """The project of the credential."""

    id: str
    name: str
    promotion: Literal["ask", "auto"]


def _shown(name: str, config: dict[str, Any]) -> ServerOut:
    hidden = dict(config)
    hidden["env"] = dict.fromkeys(config.get("env") or {}, "(hidden)")
    hidden["test_bindings"] = {
        binding: {**part, "env": dict.fromkeys(part.get("env") or {}, "(hidden)")}
        for binding, part in (config.get("test_bindings") or {}).items()
    }
    return ServerOut(name=name, config=hidden)


@router.get("")
async def list_tool_servers(caller: Viewer) -> ServersOut:
    """The project's tool servers, by name."""
    async with caller.db.transaction(caller.project_id) as session:
        rows = await list_servers(session, caller.project_id)
        return ServersOut(data=[_shown(row.name, row.config) for row in rows])


@router.get("/{name}")
async def read_tool_server(name: str, caller: Viewer) -> ServerOut:
    """One tool server."""
    async with caller.db.transaction(caller.project_id) as session:
        row = await find_server(session, caller.project_id, name)
        return _shown(row.name, row.config)


@router.put("/{name}")
async def put_tool_server(name: str, new: ToolServerConfig, caller: Admin) -> ServerOut:
    """Registers a tool server, or replaces the one of that name."""
    if name != new.name:
        raise UserError(f"the path names {name!r} and the body {new.name!r}; they must be equal.")
    config = new.model_dump(mode="json")
    async with caller.db.transaction(caller.project_id) as session:
        row = await put_server(session, caller.project_id, name, config, caller.author)
        return _shown(row.name, row.config)


@router.delete("/{name}", status_code=204)
async def delete_tool_server(name: str, caller: Admin) -> None:
    """Takes a tool server out of use."""
    async with caller.db.transaction(caller.project_id) as session:
        await delete_server(session, caller.project_id, name, caller.author)


@project_router.get("")
async def read_own_project(caller: Viewer) -> ProjectOut:
    """The project of the credential, with its promotion rule."""
    async with caller.db.transaction(caller.project_id) as session:
        row = await read_project(session, caller.project_id)
        return ProjectOut(
            id=str(row.id), name=row.name, promotion=row.settings.get("promotion", "ask")
        )


@project_router.put("")
async def put_own_project(new: ProjectIn, caller: Admin) -> ProjectOut:
    """Sets the project's promotion rule."""
    async with caller.db.transaction(caller.project_id) as session:
        row = await update_project_settings(
            session, caller.project_id, {"promotion": new.promotion}, caller.author
        )
        return ProjectOut(id=str(row.id), name=row.name, promotion=new.promotion)
