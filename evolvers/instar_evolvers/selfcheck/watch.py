"""Watch: a Lab that passes everything on and remembers how each candidate did.

An honest evolver returns the seed where nothing helps, and a test that is never opened cannot go
wrong. The selfcheck is stricter: it puts the best other candidate forward all the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from random import Random
from typing import TypeVar

from instar_core.candidates import Candidate
from instar_core.evolution import Event, Evidence, Prediction, Verdict
from instar_core.lab import Lab, Parser, Role
from instar_core.messages import Messages
from instar_core.rollouts import Rollout
from instar_core.tasks import Task
from instar_core.usage import Remaining

__all__ = ["Watch"]

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")


class Watch:
    """A Lab around another.

    Args:
        lab: Does the work.

    Attributes:
        rollouts_seen: Search rollouts asked for, replays of references left out.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._candidates: dict[str, Candidate] = {}
        self._scores: dict[tuple[str, str], list[float]] = {}
        self.rollouts_seen = 0

    def best_other(self, seed: Candidate) -> Candidate | None:
        """The candidate with the best mean on validation, or on train tasks if none was validated.

        Args:
            seed: The candidate that does not count.

        Returns:
            ``None`` if no other candidate was ever rolled out.
        """
        for split in ("validation", "train"):
            means = {
                digest: sum(rewards) / len(rewards)
                for (digest, where), rewards in self._scores.items()
                if where == split and digest != seed.digest and rewards
            }
            if means:
                return self._candidates[max(means, key=lambda digest: means[digest])]
        return None

    async def rollouts(
        self, candidate: Candidate, tasks: Sequence[Task], *, n: int = 1, arm: str = ""
    ) -> list[Rollout]:
        """See :class:`instar_core.lab.Lab`."""
        done = await self._lab.rollouts(candidate, tasks, n=n, arm=arm)
        if arm:
            return done
        self.rollouts_seen += len(done)
        self._candidates[candidate.digest] = candidate
        split_of = {task.id: task.split for task in tasks}
        for rollout in done:
            if rollout.score is not None:
                key = (candidate.digest, split_of[rollout.task_id])
                self._scores.setdefault(key, []).append(rollout.score.reward)
        return done

    async def ask(self, role: Role, messages: Messages, parse: Parser[T]) -> T:
        """See :class:`instar_core.lab.Lab`."""
        return await self._lab.ask(role, messages, parse)

    async def propose(
        self, candidate: Candidate, because: Evidence, predicts: Prediction | None = None
    ) -> Verdict:
        """See :class:`instar_core.lab.Lab`."""
        return await self._lab.propose(candidate, because, predicts)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """See :class:`instar_core.lab.Lab`."""
        return await self._lab.embed(texts)

    async def gather(
        self, name: str, items: Sequence[A], fn: Callable[[A], Awaitable[B]]
    ) -> list[B]:
        """See :class:`instar_core.lab.Lab`."""
        return await self._lab.gather(name, items, fn)

    def completed(
        self, name: str, items: Sequence[A], fn: Callable[[A], Awaitable[B]]
    ) -> AsyncIterator[tuple[int, B]]:
        """See :class:`instar_core.lab.Lab`."""
        return self._lab.completed(name, items, fn)

    def budget(self) -> Remaining:
        """See :class:`instar_core.lab.Lab`."""
        return self._lab.budget()

    async def now(self) -> datetime:
        """See :class:`instar_core.lab.Lab`."""
        return await self._lab.now()

    def rng(self, name: str) -> Random:
        """See :class:`instar_core.lab.Lab`."""
        return self._lab.rng(name)

    def log(self, event: Event) -> None:
        """See :class:`instar_core.lab.Lab`."""
        self._lab.log(event)
