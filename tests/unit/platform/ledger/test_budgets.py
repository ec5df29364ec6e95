"""Budget chains: a reservation fits into every budget or into none, and nothing drifts."""

from __future__ import annotations

import pytest

from instar.ledger.budgets import BudgetChain, BudgetLine
from instar_core.errors import BudgetExhausted
from instar_core.usage import Amount, Remaining


def _chain(**limits: Remaining) -> BudgetChain:
    return BudgetChain([BudgetLine(scope, scope, scope, limit) for scope, limit in limits.items()])


def test_s97_a_reservation_that_one_budget_refuses_touches_none() -> None:
    chain = _chain(agent=Remaining(tokens=100), run=Remaining(tokens=10))
    with pytest.raises(BudgetExhausted, match="run 'run' has 10 tokens left.*needs up to 11"):
        chain.reserve(Amount(tokens=11))
    assert all(line.reserved.tokens == 0 for line in chain.lines)
    chain.reserve(Amount(tokens=10))
    assert [line.reserved.tokens for line in chain.lines] == [10, 10]


def test_settling_less_than_reserved_gives_the_rest_back() -> None:
    chain = _chain(run=Remaining(tokens=10, cost_usd=1.0, rollouts=2))
    chain.reserve(Amount(tokens=10, cost_usd=0.3, rollouts=1))
    chain.settle(
        Amount(tokens=10, cost_usd=0.3, rollouts=1), Amount(tokens=4, cost_usd=0.1, rollouts=1)
    )
    assert chain.remaining() == Remaining(tokens=6, cost_usd=0.9, rollouts=1)
    assert chain.overshoot() == {}


def test_money_does_not_drift() -> None:
    chain = _chain(run=Remaining(cost_usd=1.1))
    for _ in range(1000):
        chain.reserve(Amount(cost_usd=0.1))
        chain.settle(Amount(cost_usd=0.1), Amount(cost_usd=0.001))
    assert chain.lines[0].reserved.cost_usd == 0
    assert chain.remaining().cost_usd == pytest.approx(0.1, abs=1e-9)


def test_spending_beyond_a_limit_is_named() -> None:
    chain = _chain(agent=Remaining(), run=Remaining(tokens=5))
    chain.reserve(Amount(tokens=5))
    chain.settle(Amount(tokens=5), Amount(tokens=8))
    assert chain.overshoot() == {"run.tokens": 3}
    assert chain.remaining().tokens == 0


def test_wall_time_is_checked_against_every_budget() -> None:
    chain = _chain(day=Remaining(wall_s=5.0), run=Remaining())
    chain.check_wall(5.0)
    chain.spend(Amount(wall_s=3.0))
    with pytest.raises(BudgetExhausted, match="day"):
        chain.check_wall(2.5)


def test_no_limit_is_no_limit() -> None:
    chain = _chain(run=Remaining())
    chain.reserve(Amount(rollouts=10**9, tokens=10**12, cost_usd=1e6))
    assert chain.remaining() == Remaining()
