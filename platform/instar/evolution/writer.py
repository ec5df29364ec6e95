"""The group writer: many small durable writes of one process, committed together.

A commit waits for the disk, some milliseconds however little is written. Two dozen rollouts in
flight each want several commits; the writer takes whatever is waiting, applies it in one
transaction and gives every caller its own result. While one group commits, the next one gathers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["GroupWriter", "Outcome"]

Op = TypeVar("Op")

Outcome = BaseException | None
"""What became of one operation: done (``None``), or refused with an exception of its own."""


class GroupWriter(Generic[Op]):
    """Coalesces awaiting operations into one call of ``apply`` after another, never two at once.

    Args:
        apply: Applies a group atomically; one outcome per operation, in order. If it raises, every
            caller of the group gets that exception.
        max_group: Most operations in one group.
    """

    def __init__(
        self, apply: Callable[[Sequence[Op]], Awaitable[list[Outcome]]], *, max_group: int = 256
    ) -> None:
        self._apply = apply
        self._max_group = max_group
        self._waiting: list[tuple[Op, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self.groups = 0
        self.operations = 0

    async def submit(self, op: Op) -> None:
        """Returns once the operation is durable.

        Raises:
            BaseException: The operation's own refusal, or whatever made its group fail.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((op, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        await future

    async def drain(self) -> None:
        """Waits until everything submitted so far is done or refused."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _work(self) -> None:
        # One turn of the loop lets callers that became ready together join the same group.
        await asyncio.sleep(0)
        while self._waiting:
            group = self._waiting[: self._max_group]
            del self._waiting[: self._max_group]
            try:
                outcomes = await self._apply([op for op, _ in group])
            except BaseException as error:  # noqa: BLE001 - handed to every waiting caller
                outcomes = [error] * len(group)
                if isinstance(error, asyncio.CancelledError):
                    _resolve(group, outcomes)
                    raise
            self.groups += 1
            self.operations += len(group)
            _resolve(group, outcomes)


def _resolve(group: Sequence[tuple[Op, asyncio.Future[None]]], outcomes: Sequence[Outcome]) -> None:
    for (_, future), outcome in zip(group, outcomes, strict=True):
        if future.done():
            continue  # its caller was cancelled meanwhile; the write stands all the same
        if outcome is None:
            future.set_result(None)
        else:
            future.set_exception(outcome)
