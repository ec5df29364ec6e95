"""The group writer: one group at a time, each caller its own outcome, nothing lost on failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from instar.evolution.writer import GroupWriter, Outcome


def test_waiting_operations_share_a_group_and_keep_their_order() -> None:
    groups: list[list[int]] = []

    async def apply(ops: Sequence[int]) -> list[Outcome]:
        groups.append(list(ops))
        await asyncio.sleep(0)
        return [ValueError(str(op)) if op == 3 else None for op in ops]

    async def work() -> list[BaseException | None]:
        writer: GroupWriter[int] = GroupWriter(apply, max_group=4)
        found = await asyncio.gather(
            *(writer.submit(op) for op in range(6)), return_exceptions=True
        )
        await writer.drain()
        assert (writer.groups, writer.operations) == (2, 6)
        return found

    found = asyncio.run(work())
    assert groups == [[0, 1, 2, 3], [4, 5]]
    assert isinstance(found[3], ValueError) and found.count(None) == 5


def test_a_group_that_fails_tells_everyone_and_the_next_goes_on() -> None:
    tries = 0

    async def apply(ops: Sequence[int]) -> list[Outcome]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("disk")
        return [None] * len(ops)

    async def work() -> None:
        writer: GroupWriter[int] = GroupWriter(apply)
        found = await asyncio.gather(writer.submit(1), writer.submit(2), return_exceptions=True)
        assert all(isinstance(one, OSError) for one in found)
        await writer.submit(3)

    asyncio.run(work())


def test_a_caller_that_is_cancelled_does_not_disturb_the_others() -> None:
    applied: list[int] = []

    async def work() -> None:
        gate = asyncio.Event()

        async def apply(ops: Sequence[int]) -> list[Outcome]:
            await gate.wait()
            applied.extend(ops)
            return [None] * len(ops)

        writer: GroupWriter[int] = GroupWriter(apply)
        first = asyncio.create_task(writer.submit(1))
        second = asyncio.create_task(writer.submit(2))
        await asyncio.sleep(0)
        first.cancel()
        gate.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(work())
    assert applied == [1, 2]
