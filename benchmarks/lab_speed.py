"""Lab speed: what durability costs, as ratios to rollouts without a Lab and to a replay."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from instar_core.base import JsonValue
from instar_core.lab import CallOutcome, RolloutRequest
from instar_core.usage import Amount
from instar_evolvers.lab import MemoryBook, MemoryJournal, Tape, open_lab
from instar_evolvers.worlds import open_world

__all__ = ["measure"]

ROLLOUTS = 2_000


class _BareCalls:
    """Performs calls without recording them."""

    async def call(
        self,
        kind: Literal["model_call", "tool_call"],
        request: JsonValue,
        perform: Callable[[], Awaitable[CallOutcome]],
        *,
        reserve: Amount,
    ) -> CallOutcome:
        return await perform()


async def _measure() -> dict[str, Any]:
    world = open_world("world:planted:seed=1,steps=2")
    seed, tasks = world.seed_candidate(), world.tasks()
    wanted = [tasks.train[index % len(tasks.train)] for index in range(ROLLOUTS)]
    calls = _BareCalls()
    started = time.perf_counter()
    for draw, task in enumerate(wanted):
        await world.rollout(RolloutRequest(candidate=seed, task=task, draw=draw), calls)
    bare = time.perf_counter() - started
    tape = Tape()
    first = await _run(world, tape, wanted)
    again = await _run(world, tape, wanted)
    return {
        "rollouts": ROLLOUTS,
        "bare_s": round(bare, 3),
        "lab_over_bare": round(first / bare, 2),
        "replay_over_first": round(again / first, 2),
    }


async def _run(world: Any, tape: Tape, wanted: list[Any]) -> float:
    lab = open_lab(
        "speed",
        world,
        MemoryJournal(tape=tape),
        MemoryBook(world.tasks().sealed),
        incumbent=world.seed_candidate(),
    )
    started = time.perf_counter()
    await lab.start()
    await lab.rollouts(world.seed_candidate(), wanted)
    await lab.close()
    return time.perf_counter() - started


def measure() -> dict[str, Any]:
    """Seconds of bare rollouts, and the ratios of the Lab and of its replay (lower is better)."""
    return asyncio.run(_measure())


if __name__ == "__main__":
    print(json.dumps(measure()))
    sys.exit(0)
