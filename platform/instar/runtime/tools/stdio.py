"""Stdio transport: runs an MCP server as a child that cannot outlive us, and reads it with a bound.

The official SDK has a transport of its own; this one adds what a service needs around unknown
servers: the exec shim (children die with their parent), the exit code and last words of a server
that failed, a bound on the size of one message, and listings whose unusable entries are set aside
alone instead of failing the whole listing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from instar.redaction import redact_text
from instar.runtime.tools.config import LaunchSpec
from instar.runtime.tools.listing import ListedTool
from instar_core.base import short
from instar_core.errors import ToolServerError

if TYPE_CHECKING:
    import anyio.streams.memory
    from mcp.shared.message import SessionMessage

    Inbox = anyio.streams.memory.MemoryObjectSendStream[SessionMessage | Exception]
    Outbox = anyio.streams.memory.MemoryObjectReceiveStream[SessionMessage]
    Streams = tuple[
        anyio.streams.memory.MemoryObjectReceiveStream[SessionMessage | Exception],
        anyio.streams.memory.MemoryObjectSendStream[SessionMessage],
    ]

__all__ = ["StdioServer"]

_SHIM = str(Path(__file__).with_name("_shim.py"))
_INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "TMPDIR", "TZ")
_EXIT_GRACE_S = 2.0
_TAIL_BYTES = 4_000
_CHUNK = 65_536
_MESSAGE_ID = re.compile(rb'"id"\s*:\s*(\d+|"[^"\\]{0,64}")')


class StdioServer:
    """One server process and the pipe to it.

    Args:
        name: The registered name, for messages.
        spec: What to start.
        max_message_bytes: Longest message read; a longer one becomes an error reply.
    """

    def __init__(self, name: str, spec: LaunchSpec, max_message_bytes: int) -> None:
        self.name = name
        self.spec = spec
        self.max_message_bytes = max_message_bytes
        self.listed: dict[str, ListedTool] = {}
        self.set_aside: list[str] = []
        self.closed = False  # the server closed its end of the pipe
        self._process: asyncio.subprocess.Process | None = None
        self._last_words: deque[bytes] = deque()
        self._last_size = 0

    @property
    def exit_code(self) -> int | None:
        """The server's exit code; ``None`` while it runs or before it was started."""
        return None if self._process is None else self._process.returncode

    @property
    def pid(self) -> int | None:
        """Process id of the server, which is also its process group."""
        return None if self._process is None else self._process.pid

    async def wait(self, timeout_s: float) -> int | None:
        """The exit code, waiting a moment for a server that is just ending."""
        if self._process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), timeout_s)
        return self.exit_code

    def last_words(self) -> str:
        """The end of what the server wrote to stderr (and of stray output on stdout)."""
        said = b"".join(self._last_words).decode("utf-8", errors="replace")
        # Masked before it is cut: half a secret is known to nobody.
        return redact_text(said)[-1_500:].strip()

    def command_line(self) -> str:
        """The command as a person would type it, cut to a readable length."""
        return short(redact_text(" ".join((self.spec.command, *self.spec.args))), 300)

    def environment(self) -> dict[str, str]:
        """What the server sees: a minimal environment, UTF-8, and what its registration says."""
        base = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return base | {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8"} | self.spec.env

    def check_program(self) -> None:
        """Raises ``ToolServerError`` naming the program when it cannot be found or started."""
        path = self.environment().get("PATH", os.defpath)
        found = shutil.which(self.spec.command, path=path)
        if found is None and self.spec.cwd:
            found = shutil.which(str(Path(self.spec.cwd) / self.spec.command))
        if found is None:
            raise ToolServerError(
                f"MCP server {self.name!r} cannot start: there is no program "
                f"{self.spec.command!r} on the PATH ({short(path)}).",
                remedy="Install it, or give its full path as the server's command.",
            )
        if self.spec.cwd and not Path(self.spec.cwd).is_dir():
            raise ToolServerError(
                f"MCP server {self.name!r} cannot start: its folder {self.spec.cwd!r} is missing.",
                remedy="Create it, or correct 'cwd'.",
            )

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Streams]:
        """Starts the process and gives the two streams the SDK's client talks over."""
        import anyio
        from mcp.shared.message import SessionMessage

        self.check_program()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            _SHIM,
            str(os.getpid()),
            self.spec.command,
            *self.spec.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment(),
            cwd=self.spec.cwd,
            start_new_session=True,
        )
        inbox, client_reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        client_writes, outbox = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(inbox)),
            asyncio.create_task(self._write(outbox)),
            asyncio.create_task(self._listen_to_errors()),
        ]
        try:
            yield client_reads, client_writes
        finally:
            await asyncio.shield(self._stop(tasks))
            for stream in (inbox, client_reads, client_writes, outbox):
                stream.close()

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """Closes stdin, waits, then ends the process group: TERM first, KILL after the grace."""
        process = self._process
        assert process is not None and process.stdin is not None
        tasks[1].cancel()
        process.stdin.close()
        for signal_number in (None, signal.SIGTERM, signal.SIGKILL):
            if signal_number is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal_number)
            try:
                await asyncio.wait_for(process.wait(), _EXIT_GRACE_S)
                break
            except TimeoutError:
                continue
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever it started and left behind
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, inbox: Inbox) -> None:
        """Turns lines of stdout into messages until the pipe closes."""
        import anyio

        process = self._process
        assert process is not None and process.stdout is not None
        buffer = bytearray()
        skipping = False
        try:
            while chunk := await process.stdout.read(_CHUNK):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    buffer += line
                    if not skipping:
                        await self._deliver(bytes(buffer), inbox)
                    buffer.clear()
                    skipping = False
                if not skipping:
                    buffer += rest
                if len(buffer) > self.max_message_bytes:
                    await self._refuse(bytes(buffer[:4_096]), inbox)
                    buffer.clear()
                    skipping = True
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the client is gone; stopping is under way
        finally:
            self.closed = True
            inbox.close()

    async def _deliver(self, line: bytes, inbox: Inbox) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        if not line.strip():
            return
        if len(line) > self.max_message_bytes:
            await self._refuse(line[:4_096], inbox)
            return
        try:
            value = json.loads(line)
            if isinstance(value, dict):
                self._set_aside_bad_tools(value)
            message = jsonrpc_message_adapter.validate_python(value, by_name=False)
        except ValueError:
            self._remember(b"(on stdout) " + line[:500] + b"\n")
            return
        await inbox.send(SessionMessage(message))

    async def _refuse(self, head: bytes, inbox: Inbox) -> None:
        """Answers the caller in the server's place when its message is too long to be read."""
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        found = _MESSAGE_ID.search(head)
        if found is None:
            self._remember(b"(a message without a recognisable id was too long and skipped)\n")
            return
        error = {
            "code": -32603,
            "message": f"the result is larger than {self.max_message_bytes} bytes and was not read",
        }
        reply = {"jsonrpc": "2.0", "id": json.loads(found.group(1)), "error": error}
        await inbox.send(
            SessionMessage(jsonrpc_message_adapter.validate_python(reply, by_name=False))
        )

    def _set_aside_bad_tools(self, value: dict[str, Any]) -> None:
        """Keeps each tool as its author wrote it, and shows the SDK only what it can read."""
        result = value.get("result")
        tools = result.get("tools") if isinstance(result, dict) else None
        if not isinstance(tools, list):
            return
        kept = []
        for entry in tools:
            name = entry.get("name") if isinstance(entry, dict) else None
            if not isinstance(entry, dict) or not isinstance(name, str) or not name:
                self.set_aside.append(
                    f"an entry without a name is left out: {short(repr(entry), 80)}"
                )
                continue
            schema = entry.get("inputSchema", {})
            description = entry.get("description")
            text = description if isinstance(description, str) else ""
            key = name if name not in self.listed else f"{name}\0{len(self.listed)}"
            self.listed[key] = ListedTool(name, text, schema)
            shown: dict[str, Any] = {"name": name, "inputSchema": {"type": "object"}}
            if isinstance(entry.get("outputSchema"), dict):
                shown["outputSchema"] = entry["outputSchema"]
            kept.append(shown)
        assert isinstance(result, dict)
        result["tools"] = kept

    async def _write(self, outbox: Outbox) -> None:
        process = self._process
        assert process is not None and process.stdin is not None
        with suppress(ConnectionError):
            async for message in outbox:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()

    async def _listen_to_errors(self) -> None:
        process = self._process
        assert process is not None and process.stderr is not None
        while chunk := await process.stderr.read(_CHUNK):
            self._remember(chunk[-_TAIL_BYTES:])

    def _remember(self, chunk: bytes) -> None:
        self._last_words.append(chunk)
        self._last_size += len(chunk)
        while self._last_size > _TAIL_BYTES and len(self._last_words) > 1:
            self._last_size -= len(self._last_words.popleft())
