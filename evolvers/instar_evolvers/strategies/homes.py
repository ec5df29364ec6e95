"""Homes: the tasks that a text speaks about, found by embedding both."""

from __future__ import annotations

from collections.abc import Sequence

from instar_core.lab import Lab
from instar_core.tasks import Task

__all__ = ["HomeFinder"]


class HomeFinder:
    """Finds the tasks on which a lesson can show what it is worth.

    A lesson about one kind of task changes nothing elsewhere, so a trial on all tasks would drown
    its effect in noise.

    Args:
        lab: Gives the embeddings.
        tasks: Tasks to choose from; embedded once, at the first question.
        count: How many tasks make a home.
    """

    def __init__(self, lab: Lab, tasks: Sequence[Task], count: int) -> None:
        self._lab = lab
        self._tasks = tuple(tasks)
        self._count = count
        self._vectors: list[list[float]] = []

    async def home_of(self, text: str) -> tuple[Task, ...]:
        """The tasks most similar to the text, most similar first."""
        if not self._vectors:
            self._vectors = await self._lab.embed([task.input for task in self._tasks])
        (asked,) = await self._lab.embed([text])
        ranked = sorted(
            range(len(self._tasks)),
            key=lambda index: (-_dot(asked, self._vectors[index]), index),
        )
        return tuple(self._tasks[index] for index in ranked[: self._count])


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
