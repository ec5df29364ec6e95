"""Testing: a world whose law and proposer a test writes itself, and one call that runs an evolver.

Rollouts, journal, budget and sealed book are the real in-memory ones; only truth and words are
given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from instar_core.candidates import Candidate
from instar_core.evolution import Event
from instar_core.lab import Calls, Evolver, Role, RolloutRequest
from instar_core.messages import Messages
from instar_core.rollouts import Rollout
from instar_core.tasks import Splits, Task
from instar_core.testing import ReplyScript
from instar_core.usage import Remaining
from instar_evolvers.lab import LabConfig, MemoryBook, MemoryJournal, open_lab
from instar_evolvers.worlds import World, WorldSpec

__all__ = ["Night", "ScriptedWorld", "run_evolver"]

Truth = Callable[[Candidate, Task], float]


class ScriptedWorld(World):
    """A world with a given truth.

    Args:
        truth: Success probability of a candidate at a task; 0 and 1 make outcomes certain.
        script: What the proposer says; the world's own proposer speaks when there is none.
        spec: Seed and sizes.
        feedback: Replaces the verifier's feedback where it is given.

    Attributes:
        requests: Every rollout performed, in order.
    """

    def __init__(
        self,
        truth: Truth,
        script: ReplyScript | None = None,
        *,
        spec: WorldSpec | None = None,
        feedback: str | None = None,
    ) -> None:
        super().__init__(spec or WorldSpec(name="null", seed=1, train=24, validation=16))
        self._truth = truth
        self._script = script
        self._feedback = feedback
        self.requests: list[RolloutRequest] = []

    def success(self, candidate: Candidate, task: Task) -> float:
        """What the test's truth says."""
        return self._truth(candidate, task)

    async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
        """One attempt, remembered."""
        self.requests.append(request)
        rollout = await super().rollout(request, calls)
        if self._feedback is None or rollout.score is None:
            return rollout
        score = rollout.score.model_copy(update={"feedback": self._feedback})
        return rollout.model_copy(update={"score": score})

    async def ask(self, role: Role, messages: Messages, calls: Calls) -> str:
        """What the script says."""
        if self._script is None:
            return await super().ask(role, messages, calls)
        return self._script.reply(messages).content


@dataclass(frozen=True, slots=True)
class Night:
    """What one evolver did in one night."""

    candidate: Candidate
    events: tuple[Event, ...]
    spent: int

    def kinds(self) -> list[str]:
        """Kinds of the events, in order."""
        return [event.kind for event in self.events]


def run_evolver(
    evolver: Evolver,
    world: World,
    *,
    data: Splits | None = None,
    rollouts: int | None = None,
    seed: int = 1,
) -> Night:
    """Runs an evolver on a world over a Lab in memory.

    Args:
        evolver: What is run.
        world: Where.
        data: Tasks; the world's own by default.
        rollouts: The run's budget; none by default.
        seed: Of the Lab's random streams.
    """

    async def run() -> Night:
        journal = MemoryJournal(Remaining(rollouts=rollouts))
        book = MemoryBook(world.tasks().sealed)
        start = world.seed_candidate()
        config = LabConfig(concurrency=4, sealed_lookahead=1, retry_wait_s=0.0)
        lab = open_lab("run", world, journal, book, incumbent=start, seed=seed, config=config)
        await lab.start()
        found = await evolver.evolve(start, data or world.tasks().splits, lab)
        await lab.close()
        return Night(found, tuple(journal.tape.events), lab.rollouts_done)

    return asyncio.run(run())
