"""MCP client: one connection to one server process, listed once and called many times.

The SDK's client must be entered and left by the same task, while calls come from many; so a
connection is owned by a task of its own from start to stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from instar.redaction import mask_known, redact_text
from instar.runtime.tools.config import LaunchSpec, ToolServerConfig
from instar.runtime.tools.listing import Listing, check_listing
from instar.runtime.tools.results import ToolResult, tool_result
from instar.runtime.tools.stdio import StdioServer
from instar_core.base import JsonValue, canonical_json
from instar_core.errors import InstarError, ToolServerError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

__all__ = ["McpConnection"]

logger = logging.getLogger(__name__)
MAX_PAGES = 50
MAX_TOOLS = 1_000


class McpConnection:
    """A running MCP server and the official client connected to it.

    Args:
        config: The registered server, for its name and limits.
        spec: What to start: the live server or a sandbox copy.
    """

    def __init__(self, config: ToolServerConfig, spec: LaunchSpec) -> None:
        self.config = config
        self.server = StdioServer(config.name, spec, config.max_message_bytes)
        self.listing = Listing(())
        self.dirty = False  # a call was abandoned and may still be at work
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._failure = ""

    @property
    def alive(self) -> bool:
        """Whether calls can be made: connected, and the process is running."""
        ended = self.server.closed or self.server.exit_code is not None
        return self._client is not None and not ended

    async def start(self) -> Listing:
        """Starts the server, agrees on a protocol era and lists its tools.

        Raises:
            ToolServerError: If that does not work within the start timeout; names the command, the
                exit code and the server's last words.
        """
        ready: asyncio.Future[Listing] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(ready), name=f"mcp:{self.config.name}")
        try:
            async with asyncio.timeout(self.config.start_timeout_s):
                self.listing = await ready
            for warning in self.listing.warnings:
                logger.warning("%s", warning)
        except TimeoutError as error:
            await self.stop()
            raise self._failed_to_start(
                f"it did not answer within {self.config.start_timeout_s:g} s"
            ) from error
        except asyncio.CancelledError:
            await self.stop()
            raise
        except InstarError:
            await self.stop()
            raise
        except Exception as error:
            await self.stop()
            raise self._failed_to_start(_words(error)) from error
        return self.listing

    async def stop(self) -> None:
        """Ends the connection and the process; safe to call twice."""
        self._stop.set()
        owner, self._owner = self._owner, None
        if owner is None:
            return
        if self._client is None:
            owner.cancel()
        await asyncio.gather(owner, return_exceptions=True)

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> ToolResult:
        """Calls a tool. What goes wrong inside the tool, time-outs included, is an error result.

        Args:
            tool: The server's own name of the tool.
            arguments: An object; sent even when empty.

        Raises:
            ToolServerError: If the server is gone or dies during the call.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED

        client = self._client
        if client is None or not self.alive:
            raise await self._gone(tool)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.config.call_timeout_s
        idle = self.config.idle_timeout_s
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + idle)) as limit:

                async def heard(progress: float, total: float | None, message: str | None) -> None:
                    limit.reschedule(min(deadline, loop.time() + idle))

                result = await client.call_tool(tool, arguments, progress_callback=heard)
        except asyncio.CancelledError:
            self.dirty = True
            raise
        except TimeoutError:
            self.dirty = True
            waited = "an answer" if loop.time() >= deadline else "any sign of life"
            seconds = self.config.call_timeout_s if loop.time() >= deadline else idle
            return self._error(f"{tool} timed out: {seconds:g} s without {waited}")
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or not self.alive:
                raise await self._gone(tool) from error
            return self._error(f"{tool} failed: {error.message}")
        except (RuntimeError, ValueError) as error:
            return self._error(f"{tool} gave an unusable result: {error}")
        return self._result(result)

    def _error(self, text: str) -> ToolResult:
        return tool_result(text, self.config.max_output_bytes, is_error=True)

    def _result(self, result: CallToolResult) -> ToolResult:
        structured: JsonValue = result.structured_content
        text = "\n".join(_block_texts(result))
        if not text and structured is not None:
            text = canonical_json(structured).decode()
        limit = self.config.max_output_bytes
        shown = tool_result(text, limit, is_error=result.is_error, structured=structured)
        return shown if shown.cut_bytes == 0 else shown.model_copy(update={"structured": None})

    async def _own(self, ready: asyncio.Future[Listing]) -> None:
        """Enters and leaves the SDK's client in this one task."""
        from mcp import Client

        try:
            async with Client(self.server.connect(), cache=None) as client:
                listing = await self._list(client)
                self._client = client
                if not ready.done():
                    ready.set_result(listing)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for the start
            if not ready.done():
                ready.set_exception(error)
            elif not self._stop.is_set():
                self._failure = _words(error)
        finally:
            self._client = None
            if not ready.done():
                ready.cancel()

    async def _list(self, client: Client) -> Listing:
        """All pages of the listing; a repeated cursor or an endless list ends with a warning."""
        warnings: list[str] = []
        seen: set[str] = set()
        cursor: str | None = None
        for page_number in range(1, MAX_PAGES + 1):
            page = await client.list_tools(cursor=cursor)
            cursor = page.next_cursor
            if cursor is None:
                break
            if cursor in seen:
                warnings.append(f"server {self.config.name!r} repeats the list cursor {cursor!r}")
                break
            if page_number == MAX_PAGES or len(self.server.listed) >= MAX_TOOLS:
                warnings.append(
                    f"server {self.config.name!r} lists more than {MAX_PAGES} pages or "
                    f"{MAX_TOOLS} tools; the rest is ignored"
                )
                break
            seen.add(cursor)
        warnings.extend(f"server {self.config.name!r}: {note}" for note in self.server.set_aside)
        # What a tool says of itself goes to models and pages as well.
        tools = [
            replace(tool, description=mask_known(tool.description))
            for tool in list(self.server.listed.values())[:MAX_TOOLS]
        ]
        return check_listing(self.config.name, tools, warnings)

    def _failed_to_start(self, cause: str) -> ToolServerError:
        code = self.server.exit_code
        ended = f"; its exit code was {code}" if code is not None and code >= 0 else ""
        words = self.server.last_words()
        said = f" Its last words: {words!r}." if words else " It wrote nothing to stderr."
        return ToolServerError(
            f"MCP server {self.config.name!r} did not start ({self.server.command_line()}): "
            f"{redact_text(cause)}{ended}.{said}",
            remedy="Run that command by hand to see why, then correct the registration.",
        )

    async def _gone(self, tool: str) -> ToolServerError:
        code = await self.server.wait(1.0)
        words = self.server.last_words() or redact_text(self._failure)
        said = f" Its last words: {words!r}." if words else ""
        return ToolServerError(
            f"MCP server {self.config.name!r} is gone (exit code {code}) "
            f"and could not carry out {tool!r}.{said}",
            remedy="See the server's own log; it is started again for the next call.",
        )


def _block_texts(result: CallToolResult) -> Iterator[str]:
    """Each content block as text; what is not text is named with its type and size."""
    from mcp_types import EmbeddedResource, ResourceLink, TextContent, TextResourceContents

    for block in result.content:
        if isinstance(block, TextContent):
            yield block.text
        elif isinstance(block, ResourceLink):
            yield f"[resource {block.uri}]"
        elif not isinstance(block, EmbeddedResource):
            yield f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
        elif isinstance(block.resource, TextResourceContents):
            yield block.resource.text
        else:
            yield f"[resource {block.resource.uri}, binary, not shown]"


def _words(error: BaseException) -> str:
    """The innermost cause of a task group's error, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error}" or type(error).__name__
