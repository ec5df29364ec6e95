"""DurableLab: strands of concurrency, what they share and how they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from instar_core.candidates import Candidate
from instar_core.errors import (
    BudgetExhausted,
    LabMisuse,
)
from instar_core.lab import CallOutcome, Calls, RolloutRequest
from instar_core.messages import Message
from instar_core.rollouts import Rollout
from instar_core.usage import Amount, Remaining, Usage

ASK = (Message(role="user", content="a number?"),)


def test_siblings_in_flight_end_and_are_recorded_when_one_is_refused(bench: Any) -> None:
    bench.limit(Remaining(tokens=25))
    ended = []

    class Slow(type(bench.backend)):  # type: ignore[misc]
        async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
            async def perform() -> CallOutcome:
                for _ in range(5):
                    await asyncio.sleep(0)
                return CallOutcome(value=1, usage=Usage(output_tokens=10))

            await calls.call("model_call", request.task.id, perform, reserve=Amount(tokens=10))
            ended.append(request.task.id)
            rollout: Rollout = await super().rollout(request, calls)
            return rollout

    bench.backend = Slow()

    async def run() -> None:
        lab = await bench.lab(concurrency=6)
        with pytest.raises(BudgetExhausted):
            await lab.rollouts(bench.start, bench.tasks)

    asyncio.run(run())
    assert sorted(ended) == ["train-0", "train-1"]
    assert bench.budget.spent.tokens == 20 and bench.budget.remaining().tokens == 5


def test_a_branch_that_fails_lets_the_others_end_and_leaves_no_task(bench: Any) -> None:
    ended = []

    async def run() -> None:
        lab = await bench.lab()

        async def branch(index: int) -> None:
            if index == 1:
                raise RuntimeError("branch 1")
            await lab.rollouts(bench.start.with_component("text", f"{index}"), bench.tasks)
            ended.append(index)
            if index == 2:
                raise RuntimeError("branch 2")

        with pytest.raises(RuntimeError, match="branch 1"):
            await lab.gather("some", range(4), branch)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert sorted(ended) == [0, 2, 3]


def test_misuse_in_a_branch_stops_the_others_at_once(bench: Any) -> None:
    async def run() -> None:
        lab = await bench.lab(concurrency=2)

        async def branch(index: int) -> None:
            if index == 0:
                await asyncio.Event().wait()  # only cancellation ends this
            await lab.rollouts(bench.start, bench.tasks[:1])

        with pytest.raises(LabMisuse, match="both roll out"):
            await lab.gather("same", [0, 1, 2], branch)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_draws_go_on_after_a_gather_and_inside_its_branches(bench: Any) -> None:
    async def run() -> list[list[int]]:
        lab = await bench.lab()
        drawn = [[r.draw for r in await lab.rollouts(bench.start, bench.tasks[:1], n=2)]]

        async def branch(task: Any) -> list[int]:
            found = await lab.rollouts(bench.start, [task])
            return [r.draw for r in (*found, *await lab.rollouts(bench.start, [task]))]

        drawn += await lab.gather("tasks", bench.tasks[:2], branch)
        drawn.append([r.draw for r in await lab.rollouts(bench.start, bench.tasks[:2])])
        return drawn

    assert asyncio.run(run()) == [[0, 1], [2, 3], [0, 1], [4, 2]]


def test_completed_hands_its_branches_over_one_by_one(bench: Any) -> None:
    async def run() -> list[int]:
        lab = await bench.lab()
        children = [bench.start.with_component("text", f"{i}") for i in range(3)]

        async def branch(child: Candidate) -> Candidate:
            await lab.rollouts(child, bench.tasks[:1])
            return child

        drawn = []
        async for _, child in lab.completed("race", children, branch):
            # what a branch drew belongs to the code around it once it has been handed over
            drawn += [r.draw for r in await lab.rollouts(child, bench.tasks[:1])]
        return drawn

    assert asyncio.run(run()) == [1, 1, 1]


def test_leaving_completed_early_leaves_nothing_behind(bench: Any) -> None:
    async def run() -> None:
        lab = await bench.lab()
        children = [bench.start.with_component("text", f"{i}") for i in range(5)]

        async def branch(child: Candidate) -> None:
            await lab.rollouts(child, bench.tasks)

        async def strand(_: int) -> None:
            async for _index, _result in lab.completed("race", children, branch):
                break

        await lab.gather("outer", [0], strand)
        assert len(asyncio.all_tasks()) == 1
        async for _index, _result in lab.completed("again", children[:0], branch):
            raise AssertionError("nothing to hand over")
        await lab.close()

    asyncio.run(run())


def test_closing_ends_what_the_evolver_left_running(bench: Any) -> None:
    ended = []

    async def run() -> None:
        lab = await bench.lab()

        async def branch(index: int) -> None:
            if index:
                await asyncio.Event().wait()  # only cancellation ends this
            ended.append(index)

        async for _index, _result in lab.completed("race", range(3), branch):
            break
        await lab.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert ended == [0]


def test_things_at_the_same_time_without_gather_are_refused(bench: Any) -> None:
    bench.backend.delays = lambda request: 2

    async def run() -> None:
        lab = await bench.lab()
        with pytest.raises(LabMisuse, match="lab.gather"):
            await asyncio.gather(
                lab.rollouts(bench.start, bench.tasks), lab.rollouts(bench.child, bench.tasks)
            )

    asyncio.run(run())


def test_names_that_could_be_mistaken_in_a_key_are_refused(bench: Any) -> None:
    async def run() -> None:
        lab = await bench.lab()
        for name in ("", "a/b", "a#1", "a[0]"):
            with pytest.raises(LabMisuse, match="cannot be named"):
                await lab.gather(name, [1], lab.rng)

    asyncio.run(run())
