"""Budgets: what may be spent by a run, its agent, its project and a day, reserved before spending.

A :class:`BudgetChain` is the arithmetic over the budgets that one run draws on, ordered from the
widest to the narrowest. It is loaded under row locks, changed in memory and written back in the
same transaction, so concurrent runs can never overrun a limit together: a reservation fits into
every budget of the chain or into none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncSession

from instar.store import budgets as store
from instar_core.errors import BudgetExhausted
from instar_core.usage import Amount, Remaining, Usage

__all__ = [
    "BudgetChain",
    "BudgetLine",
    "Meter",
    "amount_spent",
    "lock_chain",
    "read_chain",
    "save_chain",
]

_MEASURES = ("rollouts", "tokens", "cost_usd", "wall_s")
_ROUNDING = {"rollouts": 0, "tokens": 0, "cost_usd": 9, "wall_s": 6}


@dataclass(slots=True)
class Meter:
    """Mutable quantities of the four metered things."""

    rollouts: float = 0
    tokens: float = 0
    cost_usd: float = 0.0
    wall_s: float = 0.0

    def add(self, amount: Amount, sign: int = 1) -> None:
        """Adds (or with ``sign`` -1 takes away) an amount; rounding drift never goes below zero."""
        for name in _MEASURES:
            value = getattr(self, name) + sign * getattr(amount, name)
            setattr(self, name, max(0, round(value, _ROUNDING[name])))

    def values(self) -> tuple[int, int, float, float]:
        """The quantities as rollouts, tokens, US dollars and seconds."""
        return int(self.rollouts), int(self.tokens), self.cost_usd, self.wall_s


@dataclass(slots=True)
class BudgetLine:
    """One budget: its limits (``None``: no limit), what is reserved now, and what is spent.

    Attributes:
        id: Row id.
        scope: ``day``, ``project``, ``agent`` or ``run``.
        subject: The date, project, agent or run that the budget belongs to.
    """

    id: str
    scope: str
    subject: str
    limit: Remaining = Remaining()
    reserved: Meter = field(default_factory=Meter)
    spent: Meter = field(default_factory=Meter)

    def free(self, name: str) -> float | None:
        """What is left of one quantity; ``None`` where there is no limit. May be below zero."""
        limit: float | None = getattr(self.limit, name)
        if limit is None:
            return None
        return limit - float(getattr(self.reserved, name)) - float(getattr(self.spent, name))

    def lacking(self, amount: Amount) -> str:
        """Words for the first quantity that does not fit; empty when all fit."""
        for name in _MEASURES:
            wanted, free = getattr(amount, name), self.free(name)
            if wanted > 0 and free is not None and wanted > free + 1e-9:
                return (
                    f"the budget of the {self.scope} {self.subject!r} has {_number(free)} "
                    f"{_UNITS[name]} left, the next step needs up to {_number(wanted)}"
                )
        return ""


_UNITS = {
    "rollouts": "rollouts",
    "tokens": "tokens",
    "cost_usd": "USD",
    "wall_s": "seconds of wall time",
}


def _number(value: float) -> str:
    value = max(0.0, value)
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"


class BudgetChain:
    """The budgets that one run draws on, widest first: day, project, agent, run.

    Args:
        lines: The budgets, in the fixed order in which their rows were locked.
    """

    def __init__(self, lines: Sequence[BudgetLine]) -> None:
        self.lines = list(lines)

    def reserve(self, amount: Amount) -> None:
        """Reserves in every budget of the chain, or in none.

        Raises:
            BudgetExhausted: Naming the first budget and quantity that does not fit.
        """
        for line in self.lines:
            lacking = line.lacking(amount)
            if lacking:
                raise BudgetExhausted(
                    f"Nothing was spent: {lacking}.", remedy="Raise that limit to go on."
                )
        for line in self.lines:
            line.reserved.add(amount)

    def check_wall(self, wall_s: float) -> None:
        """Refuses a step that may take ``wall_s`` seconds where a limit leaves fewer.

        Raises:
            BudgetExhausted: Naming the budget whose wall time would be overrun.
        """
        for line in self.lines:
            free = line.free("wall_s")
            if free is not None and (free <= 0 or wall_s > free):
                raise BudgetExhausted(
                    f"Nothing was spent: the budget of the {line.scope} {line.subject!r} has "
                    f"{_number(free)} seconds of wall time left, the next step may take "
                    f"{_number(wall_s)}.",
                    remedy="Raise that limit to go on.",
                )

    def release(self, reserved: Amount) -> None:
        """Gives a reservation back unspent."""
        for line in self.lines:
            line.reserved.add(reserved, -1)

    def settle(self, reserved: Amount, spent: Amount) -> None:
        """Turns a reservation into what was really spent."""
        for line in self.lines:
            line.reserved.add(reserved, -1)
            line.spent.add(spent)

    def spend(self, amount: Amount) -> None:
        """Books spending that needed no reservation (elapsed wall time)."""
        for line in self.lines:
            line.spent.add(amount)

    def remaining(self) -> Remaining:
        """The least that is left over all budgets of the chain, per quantity."""
        found: dict[str, float | None] = {}
        for name in _MEASURES:
            left = [free for line in self.lines if (free := line.free(name)) is not None]
            found[name] = max(0.0, min(left)) if left else None
        rollouts, tokens = found["rollouts"], found["tokens"]
        return Remaining(
            rollouts=None if rollouts is None else int(rollouts),
            tokens=None if tokens is None else int(tokens),
            cost_usd=found["cost_usd"],
            wall_s=found["wall_s"],
        )

    def overshoot(self) -> dict[str, float]:
        """Spending beyond a limit, by ``scope.quantity``; empty when every limit held."""
        over: dict[str, float] = {}
        for line in self.lines:
            for name in _MEASURES:
                limit: float | None = getattr(line.limit, name)
                beyond = 0.0 if limit is None else getattr(line.spent, name) - limit
                if beyond > 1e-9:
                    over[f"{line.scope}.{name}"] = beyond
        return over


def amount_spent(reserved: Amount, usage: Usage) -> Amount:
    """What a finished effect spent: the rollouts it reserved, and the tokens and money it used."""
    return Amount(rollouts=reserved.rollouts, tokens=usage.tokens, cost_usd=usage.cost_usd)


async def lock_chain(session: AsyncSession, subjects: Mapping[str, str]) -> BudgetChain:
    """The budgets named by ``subjects`` (kind → subject), locked until the transaction ends."""
    return _chain(await store.lock_budgets(session, subjects))


async def read_chain(session: AsyncSession, subjects: Mapping[str, str]) -> BudgetChain:
    """The same budgets without locks, for showing what is left."""
    return _chain(await store.read_budgets(session, subjects))


async def save_chain(session: AsyncSession, chain: BudgetChain) -> None:
    """Writes a locked chain back."""
    await store.save_budgets(
        session,
        [
            store.BudgetState(
                id=line.id,
                kind=line.scope,
                subject=line.subject,
                limit=line.limit,
                reserved=line.reserved.values(),
                spent=line.spent.values(),
            )
            for line in chain.lines
        ],
    )


def _chain(states: Sequence[store.BudgetState]) -> BudgetChain:
    return BudgetChain(
        [
            BudgetLine(
                id=state.id,
                scope=state.kind,
                subject=state.subject,
                limit=state.limit,
                reserved=Meter(*state.reserved),
                spent=Meter(*state.spent),
            )
            for state in states
        ]
    )
