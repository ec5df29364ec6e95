"""Tool servers: register what agents may use. Says what runs on this machine: admins only."""

from __future__ import annotations

from fastapi import APIRouter, Response

from instar.api.auth import Admin, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.operations import save_server
from instar.api.preconditions import IfMatch
from instar.api.problems import documented
from instar.api.schemas import ServerOut
from instar.api.schemas_secrets import ServerSaved
from instar.api.views import server_etag, server_out, set_etag
from instar.runtime.tools.config import ToolServerConfig
from instar.store.servers import delete_server, list_servers, read_server

router = APIRouter(
    prefix="/v1/mcp-servers",
    tags=["tool servers"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)


@router.get("")
async def list_mcp_servers(caller: Viewer) -> list[ServerOut]:
    """The registered servers, by name; values of their environment are never shown."""
    async with caller.db.transaction(caller.project_id) as session:
        return [server_out(row) for row in await list_servers(session, caller.project_id)]


@router.get("/{name}")
async def read_mcp_server(name: str, caller: Viewer, response: Response) -> ServerOut:
    """One registered server; its ETag is for ``If-Match``."""
    async with caller.db.transaction(caller.project_id) as session:
        row = await read_server(session, caller.project_id, name)
    set_etag(response, server_etag(row))
    return server_out(row)


@router.put("/{name}", responses=documented(412, 428))
async def put_mcp_server(
    name: str, config: ToolServerConfig, caller: Admin, if_match: IfMatch = None
) -> ServerSaved:
    """Registers a server or replaces a known registration; nothing is started.

    What looks like a secret in `env` and `args` is kept as one, and a reference takes its place.
    """
    async with caller.db.transaction(caller.project_id) as session:
        return await save_server(session, caller, name, config, if_match)


@router.delete("/{name}", status_code=204)
async def remove_mcp_server(name: str, caller: Admin) -> None:
    """Takes a server out of use."""
    async with caller.db.transaction(caller.project_id) as session:
        await delete_server(session, caller.project_id, name, caller.author)
