"""Environment: the tools and state of one rollout, on a slot leased when it is first needed.

A resumed rollout finds its finished calls in the journal while its sandbox copy is new. Before the
copy is used for real, those calls are carried out on it again (a sandbox costs nothing) and must
give what was recorded; a copy that cannot be brought back is a fault of the environment.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType

from instar.rollouts.slots import Slot, SlotPool
from instar.runtime.tools.results import ToolResult
from instar_core.base import JsonValue, short
from instar_core.errors import EnvironmentFault
from instar_core.tasks import Task

__all__ = ["RolloutTools"]


@dataclass(frozen=True, slots=True)
class _Done:
    server: str
    tool: str
    arguments: dict[str, JsonValue]
    result: ToolResult


class RolloutTools:
    """The tool host of one rollout; leave it to give its slot back.

    Args:
        pool: Slots of the agent's servers.
        task: The task whose environment the copy starts from.
    """

    def __init__(self, pool: SlotPool, task: Task) -> None:
        self._pool = pool
        self._task = task
        self._slot: Slot | None = None
        self._stack = AsyncExitStack()
        self._behind: list[_Done] = []

    async def __aenter__(self) -> RolloutTools:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def call(self, server: str, tool: str, arguments: dict[str, JsonValue]) -> ToolResult:
        """Carries a call out on this rollout's own copy, after whatever it is behind with."""
        if not self._pool.is_private(server):
            return await self._pool.call_shared(server, tool, arguments)
        slot = await self._caught_up()
        return await slot.call(server, tool, arguments)

    def replayed(
        self, server: str, tool: str, arguments: dict[str, JsonValue], result: ToolResult
    ) -> None:
        """Notes a call that the journal answered and this copy has not seen."""
        if self._pool.is_private(server):
            self._behind.append(_Done(server, tool, arguments, result))

    async def state(self) -> dict[str, JsonValue]:
        """The state of the environment now, by query name."""
        return await (await self._caught_up()).state(self._task)

    async def _caught_up(self) -> Slot:
        if self._slot is None:
            self._slot = await self._stack.enter_async_context(self._pool.lease(self._task))
        behind, self._behind = self._behind, []
        for done in behind:
            again = await self._slot.call(done.server, done.tool, done.arguments)
            if again != done.result:
                raise EnvironmentFault(
                    f"The sandbox copy of {done.server!r} cannot be brought back to where the "
                    f"rollout stopped: {done.tool!r} gave {short(again.text, 80)!r} where "
                    f"{short(done.result.text, 80)!r} was recorded.",
                    remedy="The rollout is started anew.",
                )
        return self._slot
