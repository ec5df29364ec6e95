"""Allowance: how many rollouts a search may still spend, and the door it spends them through."""

from __future__ import annotations

from collections.abc import Sequence

from instar_core.candidates import Candidate
from instar_core.errors import UserError
from instar_core.lab import Lab
from instar_core.rollouts import Rollout
from instar_core.tasks import Task

__all__ = ["Allowance"]


class Allowance:
    """Counts the rollouts of one search against its own limit and the run's budget.

    A search that plans with it never runs into the run's limit half-way through a comparison.

    Args:
        lab: Where rollouts are run.
        limit: Rollouts that this search may spend; ``None`` leaves only the run's budget.
    """

    def __init__(self, lab: Lab, limit: int | None) -> None:
        self._lab = lab
        self._limit = limit
        self.spent = 0

    @property
    def left(self) -> int:
        """Rollouts that may still be spent."""
        own = None if self._limit is None else self._limit - self.spent
        known = [value for value in (own, self._lab.budget().rollouts) if value is not None]
        return max(0, min(known)) if known else 1_000_000_000

    def require(self, needed: int, method: str) -> None:
        """Refuses a search that could not tell anything.

        Raises:
            UserError: If fewer than ``needed`` rollouts may be spent; says what is needed.
        """
        if self.left < needed:
            raise UserError(
                f"{method} may spend {self.left} rollouts, and below {needed} it can tell nothing.",
                remedy=f"Give the run a budget of at least {needed} search rollouts.",
            )

    async def rollouts(
        self, candidate: Candidate, tasks: Sequence[Task], *, n: int = 1
    ) -> list[Rollout]:
        """Rollouts as :meth:`Lab.rollouts` gives them, counted."""
        self.spent += n * len(tasks)
        return await self._lab.rollouts(candidate, tasks, n=n)
