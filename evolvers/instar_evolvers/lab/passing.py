"""Passing on: a Lab around another, for those who watch or change one part of what passes."""

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

__all__ = ["PassingLab"]

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")


class PassingLab:
    """A Lab that passes everything on unchanged; subclasses override what they are about.

    Args:
        lab: Does the work.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    async def rollouts(
        self, candidate: Candidate, tasks: Sequence[Task], *, n: int = 1, arm: str = ""
    ) -> list[Rollout]:
        """See :class:`instar_core.lab.Lab`."""
        return await self._lab.rollouts(candidate, tasks, n=n, arm=arm)

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
