"""Live tools: the real servers, one connection each, for production runs.

One pool per process and event loop. A server starts at its first use and is started again when it
died; calls of many runs share its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType

from instar.runtime.tools.config import LaunchSpec, ToolServerConfig
from instar.runtime.tools.listing import Listing
from instar.runtime.tools.mcp_client import McpConnection
from instar.runtime.tools.python_tools import PythonTools, ToolContext
from instar.runtime.tools.results import ToolResult
from instar_core.base import JsonValue
from instar_core.errors import UserError

__all__ = ["Connection", "LiveTools", "open_connection"]

Connection = McpConnection | PythonTools


def open_connection(
    config: ToolServerConfig, spec: LaunchSpec | None, context: ToolContext
) -> Connection:
    """A connection (not started) to a tool source: a server process, or functions in this one.

    Args:
        config: The registered source.
        spec: What to start, for an MCP server.
        context: Where calls run, for Python functions.
    """
    if config.kind == "python":
        return PythonTools(config, context)
    assert spec is not None, "an MCP server needs a launch specification"
    return McpConnection(config, spec)


class LiveTools:
    """The registered tool sources of one project, started as they are needed.

    Args:
        configs: Registered sources; names are unique.
    """

    def __init__(self, configs: Iterable[ToolServerConfig]) -> None:
        self._configs = {config.name: config for config in configs}
        self._connections: dict[str, Connection] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> LiveTools:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def register(self, config: ToolServerConfig) -> None:
        """Adds a source, or takes a changed registration over from its next call on."""
        if self._configs.get(config.name) != config:
            self._configs[config.name] = config

    async def listing(self, server: str) -> Listing:
        """What the server offers; starts it when needed.

        Raises:
            UserError: If no source of that name is registered.
            ToolServerError: If the server does not start.
        """
        return (await self._connection(server)).listing

    async def call(self, server: str, tool: str, arguments: dict[str, JsonValue]) -> ToolResult:
        """Carries a call out on the live server."""
        return await (await self._connection(server)).call(tool, arguments)

    def replayed(
        self, server: str, tool: str, arguments: dict[str, JsonValue], result: ToolResult
    ) -> None:
        """Nothing to do: production calls are never carried out again."""

    async def stop(self) -> None:
        """Ends all servers."""
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.stop() for connection in connections))

    async def _connection(self, server: str) -> Connection:
        config = self._configs.get(server)
        if config is None:
            known = ", ".join(map(repr, sorted(self._configs))) or "none"
            raise UserError(
                f"No tool server is registered as {server!r}; registered: {known}.",
                remedy="Register it, or correct the agent's tools.",
            )
        async with self._locks.setdefault(server, asyncio.Lock()):
            connection = self._connections.get(server)
            if connection is not None and connection.alive and connection.config == config:
                return connection
            if connection is not None:
                await connection.stop()
            spec = config.launch_live() if config.kind == "mcp_stdio" else None
            connection = open_connection(config, spec, ToolContext(env=config.env))
            await connection.start()
            self._connections[server] = connection
            return connection
