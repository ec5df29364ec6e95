"""A bench for the Lab: a scored backend, a lab on it, and the pieces that outlive a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from instar_core.candidates import Candidate
from instar_core.errors import EnvironmentFault
from instar_core.evolution import AcceptanceConfig
from instar_core.lab import Calls, Role, RolloutRequest
from instar_core.messages import Messages
from instar_core.rollouts import Rollout, Score
from instar_core.tasks import Task
from instar_core.usage import Amount, Remaining, Usage
from instar_evolvers.lab import Budget, DurableLab, LabConfig, MemoryBook, MemoryJournal, Tape
from instar_evolvers.lab.rehearsal import rehearsal_candidate, rehearsal_tasks

Rule = Callable[[RolloutRequest], float]


class ScoredBackend:
    """A backend whose rewards come from a rule and whose faults are planned.

    Attributes:
        requests: What was rolled out, in the order of beginning.
        ended: The same in the order of ending.
        faults: Asked before each rollout; true means that infrastructure fails.
        delays: Turns of the loop that a rollout takes.
        replies: What asks answer, in turn; the last one stays.
        asked: The messages of every ask.
    """

    def __init__(self, rule: Rule | None = None) -> None:
        self.rule: Rule = rule or (lambda request: 0.5)
        self.requests: list[RolloutRequest] = []
        self.ended: list[RolloutRequest] = []
        self.faults: Callable[[RolloutRequest], bool] = lambda request: False
        self.delays: Callable[[RolloutRequest], int] = lambda request: 0
        self.replies: list[str] = ["1"]
        self.asked: list[Messages] = []

    def reserve_for(self, request: RolloutRequest) -> Amount:
        del request
        return Amount(rollouts=1)

    async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
        del calls
        self.requests.append(request)
        for _ in range(self.delays(request)):
            await asyncio.sleep(0)
        self.ended.append(request)
        if self.faults(request):
            raise EnvironmentFault("the sandbox did not start")
        return Rollout(
            id=request.identity[:32],
            task_id=request.task.id,
            candidate_digest=request.candidate.digest,
            draw=request.draw,
            arm=request.arm,
            score=Score(reward=self.rule(request)),
            usage=Usage(output_tokens=2),
        )

    async def ask(self, role: Role, messages: Messages, calls: Calls) -> str:
        del role, calls
        self.asked.append(messages)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [[float(len(text))] for text in texts]


class Bench:
    """One run's tape, budget, book and backend, from which labs are opened again and again."""

    def __init__(self) -> None:
        self.start: Candidate = rehearsal_candidate()
        self.child: Candidate = self.start.with_component("text", "child")
        self.tasks: tuple[Task, ...] = rehearsal_tasks("train", 6)
        self.backend = ScoredBackend()
        self.tape = Tape()
        self.budget = Budget()
        self.config = AcceptanceConfig(max_pairs=40, min_pairs=5)
        self.book = MemoryBook(rehearsal_tasks("sealed", 60), self.config, seed=1)

    def limit(self, limit: Remaining) -> None:
        """Gives the run a limit."""
        self.budget = Budget(limit)

    def rules(self, config: AcceptanceConfig, groups: int = 60) -> None:
        """Gives the book other rules and a pool of so many groups."""
        self.config = config
        self.book = MemoryBook(rehearsal_tasks("sealed", groups), config, seed=1)

    async def lab(self, *, incumbent: Candidate | None = None, **config: Any) -> DurableLab:
        """A started lab of a new process."""
        settings = LabConfig.model_validate({"retry_wait_s": 0.0} | config)
        lab = DurableLab(
            "run",
            self.backend,
            MemoryJournal(tape=self.tape, budget=self.budget),
            self.book,
            incumbent=incumbent or self.start,
            config=settings,
        )
        await lab.start()
        return lab


@pytest.fixture
def bench() -> Bench:
    """A fresh bench."""
    return Bench()
