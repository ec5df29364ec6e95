"""Branches: running things at the same time without letting their order show.

``pool`` runs numbered jobs with a bound on their number; ``Gathering`` runs the branches of one
``gather`` or ``completed``. A branch's failure never depends on when another one failed: all
branches run to their own end, then the failure with the lowest index (or the first in the
journalled order) is raised. Only what makes going on pointless (a lost lease, a diverged replay,
cancellation) stops the others at once. No task outlives the call that started it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar, cast

from instar_core.base import content_hash
from instar_core.errors import LabMisuse, LeaseLost, ReplayDiverged
from instar_evolvers.lab.effects import EffectDoor
from instar_evolvers.lab.scope import CURRENT, Group, Scope

__all__ = ["Arrivals", "Gathering", "pool", "settle"]

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
_UNSET = object()


async def settle(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Waits for all tasks; the first exception (or an outer cancellation) cancels the rest.

    Raises:
        BaseException: The first task's exception, after every task has ended.
    """
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def pool(
    door: EffectDoor, count: int, width: int, job: Callable[[int], Awaitable[T]]
) -> list[T]:
    """Runs ``job(0) … job(count-1)``, at most ``width`` at once; results in order.

    After a failure nothing new is started; what is in flight ends and is recorded first.

    Raises:
        Exception: The failure with the lowest index.
    """
    results: list[object] = [_UNSET] * count
    failures: dict[int, Exception] = {}
    numbers = iter(range(count))

    async def work() -> None:
        for index in numbers:
            try:
                results[index] = await job(index)
            except Exception as error:  # noqa: BLE001 - raised below, once the others have ended
                if door.fatal is not None:
                    raise
                failures[index] = error
            if failures:
                return

    if min(width, count) <= 1:
        await work()
    else:
        await settle([asyncio.create_task(work()) for _ in range(min(width, count))])
    if failures:
        raise failures[min(failures)]
    return cast(list[T], results)


class Gathering(Generic[A, B]):
    """The running branches of one ``gather`` or ``completed``.

    Args:
        door: The Lab's effects.
        group: The branches' scopes.
        items: One item per branch.
        fn: What each branch does.
    """

    def __init__(
        self, door: EffectDoor, group: Group, items: Sequence[A], fn: Callable[[A], Awaitable[B]]
    ) -> None:
        self.group = group
        self.results: list[object] = [_UNSET] * len(items)
        self.failures: dict[int, Exception] = {}
        self.arrived: deque[int] = deque()
        self._door = door
        self._fn = fn
        self._changed = asyncio.Event()
        self.tasks = [
            asyncio.create_task(self._branch(index, item)) for index, item in enumerate(items)
        ]
        for task in self.tasks:
            task.add_done_callback(lambda _: self._changed.set())

    async def _branch(self, index: int, item: A) -> None:
        scope = self.group.scopes[index]
        CURRENT.set(scope)
        try:
            self.results[index] = await self._fn(item)
        except Exception as error:  # noqa: BLE001 - raised by whoever takes this branch's result
            if isinstance(error, (LabMisuse, LeaseLost, ReplayDiverged)):
                self._door.fail(error)
            self._door.check_fatal()
            self.failures[index] = error
        await drain(scope)
        if self.group.live:
            self.group.end(index)
        self.arrived.append(index)

    async def all(self) -> list[B]:
        """Every branch's result in order, after the last one ended.

        Raises:
            Exception: The failure of the branch with the lowest index.
        """
        await settle(self.tasks)
        for index in range(len(self.tasks)):
            self.group.merge(index)
        if self.failures:
            raise self.failures[min(self.failures)]
        return cast(list[B], self.results)

    async def arrival(self, index: int | None) -> int:
        """Waits for a branch (the given one, else the next to arrive) and takes it from the
        queue."""
        while True:
            if any(task.done() and _broken(task) for task in self.tasks):
                await settle(self.tasks)
                raise asyncio.CancelledError
            if index is None and self.arrived:
                return self.arrived.popleft()
            if index is not None and index in self.arrived:
                self.arrived.remove(index)
                return index
            self._changed.clear()
            await self._changed.wait()

    async def cancel(self) -> None:
        """Ends all branches now."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def finish(self) -> None:
        """Lets all branches run to their end (what they find is not used)."""
        await settle(self.tasks)


class Arrivals(Generic[A, B]):
    """The iterator that ``lab.completed`` gives: (index, result) in order of arrival, journalled.

    Iterate it to its end. Whoever leaves early lets the remaining branches run to their end; they
    are waited for when the strand of code that started them ends.
    """

    def __init__(
        self,
        door: EffectDoor,
        scope: Scope,
        key: str,
        start: Callable[[], Gathering[A, B]],
    ) -> None:
        self._door = door
        self._scope = scope
        self._key = key
        self._start = start
        self._running: Gathering[A, B] | None = None
        self._taken = 0
        self._over = False

    def __aiter__(self) -> Arrivals[A, B]:
        return self

    async def __anext__(self) -> tuple[int, B]:
        """The next branch in the journalled order.

        Raises:
            StopAsyncIteration: After the last branch.
            Exception: What the branch raised, after all the others have ended.
        """
        if self._over:
            raise StopAsyncIteration
        if self._running is None:
            self._running = self._start()
            self._scope.open_groups.append(self._running.group)
            self._scope.open_arrivals.append(self)
        running = self._running
        if self._taken == len(running.tasks):
            self._leave()
            raise StopAsyncIteration
        try:
            index = await self._next_index(running)
        except BaseException:
            await self.abort()
            raise
        self._taken += 1
        running.group.merge(index)
        if index in running.failures:
            await self.aclose()
            raise running.failures[index]
        return index, cast(B, running.results[index])

    async def _next_index(self, running: Gathering[A, B]) -> int:
        key = f"{self._key}~{self._taken}"
        content = content_hash(["order", self._taken])
        record = self._door.recorded(key, "order", content)
        if record is not None:
            return await running.arrival(cast(dict[str, int], record.result)["index"])
        index = await running.arrival(None)

        async def arrived() -> object:
            return {"index": index}

        await self._door.simple(key, "order", content, arrived)
        return index

    async def aclose(self) -> None:
        """Lets the remaining branches run to their end."""
        if not self._over and self._running is not None:
            self._leave()
            await self._running.finish()
        self._over = True

    async def abort(self) -> None:
        """Ends the remaining branches now; their calls in flight are booked as spent."""
        if not self._over and self._running is not None:
            self._leave()
            await self._running.cancel()
        self._over = True

    def _leave(self) -> None:
        self._over = True
        if self._running is not None:
            self._scope.open_groups.remove(self._running.group)
            self._scope.open_arrivals.remove(self)


def _broken(task: asyncio.Task[None]) -> bool:
    return task.cancelled() or task.exception() is not None


async def drain(scope: Scope) -> None:
    """Waits for what a strand started with ``completed`` and left before its end."""
    while scope.open_arrivals:
        await scope.open_arrivals[-1].aclose()
