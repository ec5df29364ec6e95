"""Budget: reserved before it is spent, in every budget above it too."""

from __future__ import annotations

import pytest

from instar_core.errors import BudgetExhausted
from instar_core.usage import Amount, Remaining, Usage
from instar_evolvers.lab import Budget


def test_a_reservation_counts_until_it_is_settled() -> None:
    budget = Budget(Remaining(tokens=100))
    budget.reserve(Amount(tokens=60))
    with pytest.raises(BudgetExhausted, match=r"40 of 100 tokens left.*60"):
        budget.reserve(Amount(tokens=60))
    budget.settle(Amount(tokens=60), Usage(output_tokens=10))
    budget.reserve(Amount(tokens=60))
    assert budget.remaining().tokens == 30 and budget.spent.tokens == 10


def test_a_refusal_above_takes_nothing_anywhere() -> None:
    night = Budget(Remaining(cost_usd=1.0), name="night")
    first = Budget(Remaining(cost_usd=5.0), parent=night)
    second = Budget(Remaining(rollouts=3), parent=night)
    first.reserve(Amount(cost_usd=0.7))
    with pytest.raises(BudgetExhausted, match="night has 0.3 of 1 USD"):
        second.reserve(Amount(cost_usd=0.5, rollouts=1))
    assert second.remaining().rollouts == 3
    assert second.remaining().cost_usd == pytest.approx(0.3)
    first.release(Amount(cost_usd=0.7))
    second.reserve(Amount(cost_usd=0.5, rollouts=1))
    assert first.remaining().cost_usd == pytest.approx(0.5)


def test_what_was_lost_in_flight_is_spent_whole() -> None:
    budget = Budget(Remaining(rollouts=2, tokens=50))
    budget.reserve(Amount(rollouts=1, tokens=20))
    budget.forfeit(Amount(rollouts=1, tokens=20))
    assert budget.spent == Amount(rollouts=1, tokens=20)
    assert budget.remaining().rollouts == 1 and budget.remaining().tokens == 30


def test_many_small_sums_of_money_reach_their_limit_exactly() -> None:
    budget = Budget(Remaining(cost_usd=1.0))
    for _ in range(10):
        budget.reserve(Amount(cost_usd=0.1))
        budget.settle(Amount(cost_usd=0.1), Usage(cost_usd=0.1))
    with pytest.raises(BudgetExhausted):
        budget.reserve(Amount(cost_usd=0.001))
    assert budget.overrun == 0.0


def test_spending_more_than_was_reserved_is_booked_and_shown() -> None:
    budget = Budget(Remaining(tokens=10))
    budget.reserve(Amount(tokens=10))
    budget.settle(Amount(tokens=10), Usage(output_tokens=14))
    assert budget.spent.tokens == 14 and budget.overrun == 4


def test_wall_time_passes_once_however_much_runs_in_parallel() -> None:
    budget = Budget(Remaining(wall_s=10.0))
    for _ in range(5):
        budget.reserve(Amount(wall_s=9.0))
    budget.spend_wall(4.0)
    with pytest.raises(BudgetExhausted, match="6 of 10 seconds"):
        budget.reserve(Amount(wall_s=9.0))
    budget.reserve(Amount(wall_s=6.0))
