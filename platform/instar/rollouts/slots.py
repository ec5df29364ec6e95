"""Slots: private copies of an agent's tool servers, leased to one rollout at a time.

A slot holds one copy of every bound server, each with its own process and its own folder, so that
two rollouts never see each other. Between rollouts the folders are restored from their templates;
the processes go on where the server opens its files for every call, and restart where it does not.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from instar.rollouts.bindings import BoundServer
from instar.rollouts.state import prepare_folder, read_state
from instar.runtime.tools.config import LaunchSpec, TestBinding
from instar.runtime.tools.listing import Listing
from instar.runtime.tools.live import Connection, LiveTools, open_connection
from instar.runtime.tools.python_tools import ToolContext
from instar.runtime.tools.results import ToolResult
from instar.runtime.tools.secrets import SecretReader, fill_spec
from instar_core.base import JsonValue
from instar_core.errors import EnvironmentFault
from instar_core.tasks import Task

__all__ = ["Slot", "SlotPool"]

_PREFIX = "instar-slots-"


class Slot:
    """One private copy of the bound servers.

    Args:
        folder: Created for this slot; holds one folder per server.
        bound: The servers that run under a test binding.
        secrets: Where secrets for rollouts are read from.
    """

    def __init__(
        self,
        folder: Path,
        bound: Mapping[str, BoundServer],
        secrets: SecretReader | None = None,
    ) -> None:
        self.folder = folder
        self._bound = bound
        self._secrets = secrets
        self._connections: dict[str, Connection] = {}
        self._reset_for: str | None = None

    @property
    def usable(self) -> bool:
        """Whether the slot can serve another rollout: nothing died, nothing is still at work."""
        return all(one.alive and not one.dirty for one in self._connections.values())

    async def reset(self, task: Task) -> None:
        """Restores every copy to what the task starts from; starts servers not yet running.

        Raises:
            EnvironmentFault: If files cannot be prepared.
            ToolServerError: If a server does not start.
        """
        for name, server in self._bound.items():
            assert server.binding is not None
            folder = self.folder / name
            folder.mkdir(parents=True, exist_ok=True)
            if server.binding.restart_between and name in self._connections:
                await self._connections.pop(name).stop()
            await asyncio.to_thread(prepare_folder, folder, server.binding, task.environment)
            if name not in self._connections:
                self._connections[name] = await self._start(server, server.binding, folder)

    async def _start(self, server: BoundServer, binding: TestBinding, folder: Path) -> Connection:
        config = server.config
        if config.kind == "python":
            env = {
                name: value.replace("{slot_dir}", str(folder))
                for name, value in binding.env.items()
            }
            filled = await fill_spec(config.name, LaunchSpec(command="", env=env), self._secrets)
            connection = open_connection(config, None, ToolContext(folder, filled.env))
        else:
            spec = config.launch_bound(binding, folder)
            spec = await fill_spec(config.name, spec, self._secrets)
            connection = open_connection(config, spec, ToolContext(folder))
        await connection.start()
        return connection

    def listing(self, server: str) -> Listing:
        """What a server of this slot offers; only after a reset."""
        return self._connections[server].listing

    async def call(self, server: str, tool: str, arguments: dict[str, JsonValue]) -> ToolResult:
        """Carries a call out on this slot's copy."""
        return await self._connections[server].call(tool, arguments)

    async def state(self, task: Task) -> dict[str, JsonValue]:
        """The state of all copies that have a state reader, by query name."""
        found: dict[str, JsonValue] = {}
        for name, server in self._bound.items():
            reader = server.binding.state if server.binding else None
            if reader is not None:
                folder = self.folder / name
                found.update(await asyncio.to_thread(read_state, folder, reader, task.environment))
        return found

    async def close(self) -> None:
        """Ends the processes and removes the folders."""
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.stop() for connection in connections))
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)


class SlotPool:
    """Slots for one set of bound servers, made as they are needed, up to ``size``.

    Args:
        bound: Server name → how it runs; servers free of effects are shared by all slots.
        size: Most slots at once; further rollouts wait.
        work_dir: Where the slots' folders go; the system's temporary folder by default.
        secrets: Where secrets for rollouts are read from; those for production are refused there.
    """

    def __init__(
        self,
        bound: Mapping[str, BoundServer],
        size: int,
        work_dir: Path | None = None,
        secrets: SecretReader | None = None,
    ) -> None:
        self._private = {name: one for name, one in bound.items() if one.binding is not None}
        # A server free of effects runs as it is registered, but in a copy of its own and without
        # its environment: production credentials are never resolved in rollouts.
        self._shared = LiveTools(
            (
                one.config.model_copy(update={"env": {}})
                for one in bound.values()
                if one.binding is None
            ),
            secrets,
        )
        self._secrets = secrets
        self._names = tuple(bound)
        self._work_dir = work_dir
        self._root: Path | None = None
        self._places = asyncio.Semaphore(size)
        self._free: list[Slot] = []
        self._made = 0
        self._closed = False
        self._listings: dict[str, Listing] | None = None
        self._listing_lock = asyncio.Lock()

    def is_private(self, server: str) -> bool:
        """Whether rollouts get their own copy of the server."""
        return server in self._private

    def offers(self, server: str) -> bool:
        """Whether the pool has the server at all (an agent without tools has none)."""
        return server in self._names

    @property
    def has_state(self) -> bool:
        """Whether any copy's final state can be read."""
        return any(one.binding and one.binding.state for one in self._private.values())

    async def listings(self, task: Task) -> dict[str, Listing]:
        """What each server offers, asked once from a copy prepared for some task."""
        async with self._listing_lock:
            if self._listings is None:
                found: dict[str, Listing] = {}
                if self._private:
                    async with self.lease(task) as slot:
                        found = {name: slot.listing(name) for name in self._private}
                for name in self._names:
                    if name not in found:
                        found[name] = await self._shared.listing(name)
                self._listings = found
        return self._listings

    @asynccontextmanager
    async def lease(self, task: Task) -> AsyncIterator[Slot]:
        """A slot prepared for the task, for the caller alone; one that broke is thrown away."""
        async with self._places:
            slot = self._free.pop() if self._free else self._new()
            try:
                await slot.reset(task)
                yield slot
            finally:
                if slot.usable and not self._closed:
                    self._free.append(slot)
                else:
                    await asyncio.shield(slot.close())

    async def call_shared(
        self, server: str, tool: str, arguments: dict[str, JsonValue]
    ) -> ToolResult:
        """Carries a call out on a server free of effects."""
        return await self._shared.call(server, tool, arguments)

    async def close(self) -> None:
        """Ends every process and removes every folder; leased slots end when given back."""
        self._closed = True
        slots, self._free = self._free, []
        await asyncio.gather(self._shared.stop(), *(slot.close() for slot in slots))
        if self._root is not None:
            await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)
            self._root = None

    def _new(self) -> Slot:
        if self._root is None:
            self._root = _make_root(self._work_dir)
        self._made += 1
        folder = self._root / f"slot-{self._made}"
        folder.mkdir()
        return Slot(folder, self._private, self._secrets)


def _make_root(work_dir: Path | None) -> Path:
    """A fresh folder named after this process; folders of processes that are gone are removed."""
    parent = Path(work_dir or tempfile.gettempdir())
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for old in parent.glob(f"{_PREFIX}*-*"):
            pid = old.name.removeprefix(_PREFIX).split("-")[0]
            if pid.isdigit() and not _runs(int(pid)):
                shutil.rmtree(old, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
    except OSError as error:
        raise EnvironmentFault(
            f"No folder for sandbox copies can be made in {str(parent)!r}: {error}.",
            remedy="Free disk space, or set another work folder.",
        ) from error


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
