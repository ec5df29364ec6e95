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
from instar.runtime.tools.secrets import SecretReader, fill_spec, references_of
from instar_core.base import JsonValue
from instar_core.errors import UserError

__all__ = ["Connection", "LiveTools", "open_connection"]

Connection = McpConnection | PythonTools
Revisions = tuple[tuple[str, int], ...]


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
        secrets: Where the secrets that they refer to are read from, when they start.
    """

    def __init__(
        self, configs: Iterable[ToolServerConfig], secrets: SecretReader | None = None
    ) -> None:
        self._configs = {config.name: config for config in configs}
        self._secrets = secrets
        self._connections: dict[str, Connection] = {}
        self._started_with: dict[str, Revisions] = {}
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
        """What the server offers; starts it when needed, anew when one of its secrets has changed.

        Raises:
            UserError: If no source of that name is registered, or a secret of it does not exist.
            ToolServerError: If the server does not start.
        """
        return (await self._connection(server, look=True)).listing

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

    async def _connection(self, server: str, *, look: bool = False) -> Connection:
        config = self._configs.get(server)
        if config is None:
            known = ", ".join(map(repr, sorted(self._configs))) or "none"
            raise UserError(
                f"No tool server is registered as {server!r}; registered: {known}.",
                remedy="Register it, or correct the agent's tools.",
            )
        async with self._locks.setdefault(server, asyncio.Lock()):
            connection = self._connections.get(server)
            same = connection is not None and connection.alive and connection.config == config
            revisions = await self._revisions(config) if look or not same else ()
            if connection is not None:
                if same and (not look or revisions == self._started_with.get(server)):
                    return connection
                await connection.stop()
            connection = await self._open(config)
            await connection.start()
            self._connections[server] = connection
            self._started_with[server] = revisions
            return connection

    async def _revisions(self, config: ToolServerConfig) -> Revisions:
        ids = references_of(config)
        return await self._secrets.revisions(ids) if ids and self._secrets else ()

    async def _open(self, config: ToolServerConfig) -> Connection:
        """A connection whose secrets are filled in; they are kept by what is started alone."""
        if config.kind == "mcp_stdio":
            spec = await fill_spec(config.name, config.launch_live(), self._secrets)
            return open_connection(config, spec, ToolContext())
        bare = LaunchSpec(command="", env=config.env)
        filled = await fill_spec(config.name, bare, self._secrets)
        return open_connection(config, None, ToolContext(env=filled.env))
