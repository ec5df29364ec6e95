"""Which sealed groups a test draws: least served first, in random order, none past its share."""

from __future__ import annotations

from collections import Counter

import pytest

from instar.evolution.book import choose_groups
from instar_core.errors import UserError
from instar_core.evolution import AcceptanceConfig

_RULES = AcceptanceConfig(max_pairs=20, min_pairs=10)
_POOL = [f"g{i:02d}" for i in range(50)]


def test_no_group_comes_twice_before_all_came_once() -> None:
    served: Counter[str] = Counter()
    for night in range(5):
        chosen = choose_groups(_POOL, dict(served), dict(served), _RULES, night)
        assert len(set(chosen)) == 20
        served.update(chosen)
        assert max(served.values()) - min(served[key] for key in _POOL) <= 1
    assert set(served.values()) == {2}


def test_the_order_is_random_and_repeatable() -> None:
    served = {key: int(key > "g24") for key in _POOL}
    one = choose_groups(_POOL, {}, served, _RULES, 7)
    assert one == choose_groups(_POOL[::-1], {}, served, _RULES, 7)
    assert one != choose_groups(_POOL, {}, served, _RULES, 8)
    assert all(key <= "g24" for key in one) and list(one) != sorted(one)


def test_a_worn_pool_says_so() -> None:
    uses = dict.fromkeys(_POOL[:31], 5)
    with pytest.raises(UserError, match="worn: 31 of its 50 groups served 5 tests"):
        choose_groups(_POOL, uses, uses, _RULES, 1)
    assert choose_groups(_POOL, dict.fromkeys(_POOL[:30], 5), {}, _RULES, 1)


def test_a_pool_that_is_too_small_says_what_it_takes() -> None:
    with pytest.raises(UserError, match="9 groups; a test needs at least 10"):
        choose_groups(_POOL[:9], {}, {}, _RULES, 1)
