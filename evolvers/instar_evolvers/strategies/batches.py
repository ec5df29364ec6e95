"""Batches: the tasks of one epoch in a random order, cut into pieces of a size."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from instar_core.tasks import Task

__all__ = ["shuffled_batches"]


def shuffled_batches(tasks: Sequence[Task], size: int, rng: Random) -> list[tuple[Task, ...]]:
    """Every task once, in an order that the stream draws; the last batch may be smaller.

    Args:
        tasks: The tasks of the epoch.
        size: Tasks per batch, at least 1.
        rng: A stream of its own per epoch, so that no two epochs have the same batches.
    """
    order = list(tasks)
    rng.shuffle(order)
    return [tuple(order[start : start + size]) for start in range(0, len(order), size)]
