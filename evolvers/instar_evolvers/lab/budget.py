"""Budget: a limit on rollouts, tokens, money and seconds, reserved before it is spent.

Budgets may nest (a run inside a night inside a month): a reservation has to fit into every one of
them, and is taken from all or none. Wall time passes once, however much runs in parallel: a
reservation's seconds are compared with what is left, and the clock's seconds are spent.
"""

from __future__ import annotations

from instar_core.errors import BudgetExhausted
from instar_core.usage import Amount, Remaining, Usage

__all__ = ["Budget"]

_NAMES = ("rollouts", "tokens", "cost_usd", "wall_s")
_HELD = ("rollouts", "tokens", "cost_usd")
# Sums of money in floating point may miss a limit by rounding alone.
_SLACK = 1e-9
_UNITS = {"rollouts": "rollouts", "tokens": "tokens", "cost_usd": "USD", "wall_s": "seconds"}


class Budget:
    """What may be spent, what is reserved and what is spent.

    Args:
        limit: The most of each quantity; ``None`` means no limit.
        parent: A budget that this one draws on as well.
        name: For messages.

    Attributes:
        overrun: How far spending ever went beyond the limit, over all quantities. It stays 0 as
            long as what is settled is not more than what was reserved.
    """

    def __init__(
        self, limit: Remaining | None = None, *, parent: Budget | None = None, name: str = "run"
    ) -> None:
        self.limit = limit or Remaining()
        self.parent = parent
        self.name = name
        self.overrun = 0.0
        self._spent: dict[str, float] = dict.fromkeys(_NAMES, 0)
        self._held: dict[str, float] = dict.fromkeys(_NAMES, 0)
        self._limits = {
            quantity: limit_of
            for quantity in _NAMES
            if (limit_of := getattr(self.limit, quantity)) is not None
        }

    def reserve(self, amount: Amount) -> None:
        """Takes a reservation from this budget and all above it, or from none.

        Raises:
            BudgetExhausted: If it does not fit; names the quantity, what is left and what was
                asked.
        """
        for budget in self._chain():
            budget._check(amount)
        for budget in self._chain():
            for quantity in _HELD:
                budget._held[quantity] += getattr(amount, quantity)

    def release(self, amount: Amount) -> None:
        """Gives a reservation back."""
        for budget in self._chain():
            for quantity in _HELD:
                budget._held[quantity] -= getattr(amount, quantity)

    def settle(self, reserved: Amount, usage: Usage) -> None:
        """Turns a reservation into what was consumed; reserved rollouts count as consumed."""
        self._spend(
            reserved,
            {
                "rollouts": reserved.rollouts,
                "tokens": usage.tokens,
                "cost_usd": usage.cost_usd,
            },
        )

    def forfeit(self, reserved: Amount) -> None:
        """Books all of a reservation as spent (a call that was lost in flight)."""
        self._spend(reserved, {quantity: getattr(reserved, quantity) for quantity in _HELD})

    @property
    def limits_wall(self) -> bool:
        """Whether this budget or one above it limits wall time."""
        return any("wall_s" in budget._limits for budget in self._chain())

    def spend_wall(self, seconds: float) -> None:
        """Books seconds that have passed."""
        for budget in self._chain():
            budget._spent["wall_s"] += seconds

    @property
    def spent(self) -> Amount:
        """What is spent so far."""
        return Amount(
            rollouts=int(self._spent["rollouts"]),
            tokens=int(self._spent["tokens"]),
            cost_usd=self._spent["cost_usd"],
            wall_s=self._spent["wall_s"],
        )

    def remaining(self) -> Remaining:
        """What can still be reserved, the tightest of this budget and those above it."""
        left: dict[str, float] = {}
        for budget in self._chain():
            for quantity, limit in budget._limits.items():
                free = max(0, limit - budget._spent[quantity] - budget._held[quantity])
                left[quantity] = min(free, left.get(quantity, free))
        return Remaining.model_construct(
            **{quantity: left.get(quantity) for quantity in _NAMES}  # type: ignore[arg-type]
        )

    def _spend(self, reserved: Amount, used: dict[str, float]) -> None:
        for budget in self._chain():
            for quantity in _HELD:
                budget._held[quantity] -= getattr(reserved, quantity)
                budget._spent[quantity] += used[quantity]
            for quantity, limit in budget._limits.items():
                if quantity == "wall_s":
                    continue  # it passes by itself; begin refuses once it is over
                over = budget._spent[quantity] - limit
                if over > _SLACK:
                    budget.overrun = max(budget.overrun, over)

    def _check(self, amount: Amount) -> None:
        for quantity, limit in self._limits.items():
            asked = getattr(amount, quantity)
            left = limit - self._spent[quantity] - self._held[quantity]
            if asked > left + _SLACK:
                raise BudgetExhausted(
                    f"The budget of the {self.name} has {max(0, left):g} of {limit:g} "
                    f"{_UNITS[quantity]} left; the next step needs up to {asked:g}.",
                    remedy="Raise the limit, or let the run end with what it has found.",
                )

    def _chain(self) -> list[Budget]:
        chain: list[Budget] = [self]
        while (above := chain[-1].parent) is not None:
            chain.append(above)
        return chain
