"""Behaviour: a task has changed only where chance is no explanation."""

from __future__ import annotations

import pytest

from instar.registry.behaviour import compare_outcomes, permutation_p
from instar.store.outcomes import TaskOutcomes


def _task(name: str, *rewards: float, digest: str = "d") -> TaskOutcomes:
    counted = tuple((one, rewards.count(one)) for one in sorted(set(rewards)))
    return TaskOutcomes(name, digest, "train", counted)


def _p(old: list[float], new: list[float]) -> float:
    return permutation_p([(one, 1) for one in old], [(one, 1) for one in new])


def test_exact_values_of_the_permutation_test() -> None:
    # Fisher's table of 4 and 4, all against none: 2 of the 70 arrangements.
    assert _p([0, 0, 0, 0], [1, 1, 1, 1]) == pytest.approx(2 / 70)
    # Three values, 20 arrangements of 3 and 3; only the seen one and its mirror are as far apart.
    assert _p([0, 0.5, 0.5], [0.75, 0.75, 1]) == pytest.approx(2 / 20)
    assert _p([0.5], [0.5, 0.5]) == 1.0
    assert _p([0], [1]) == 1.0
    # Swapping the sides changes nothing.
    assert _p([0, 1, 1], [1, 0.5]) == _p([1, 0.5], [0, 1, 1])


def test_many_arrangements_are_drawn_and_repeat_exactly() -> None:
    old = [i / 40 for i in range(20)]
    new = [i / 40 + 0.4 for i in range(20)]
    first = _p(old, new)
    assert first == _p(old, new)
    assert 0 < first < 0.001


def test_changes_are_called_beyond_noise_only_and_the_worst_comes_first() -> None:
    old = [
        _task("falls", *[1.0] * 8),
        _task("rises", *[0.0] * 8),
        _task("once", 0),
        _task("gone", 1),
    ]
    new = [
        _task("falls", *[0.0] * 8),
        _task("rises", *[1.0] * 8),
        _task("once", 1),
        _task("new", 0),
    ]
    told = [(one.task_id, one.change, one.difference) for one in compare_outcomes(old, new)]
    assert told == [
        ("falls", "worsened", -1.0),
        ("once", "unchanged", 1.0),
        ("rises", "improved", 1.0),
        ("gone", "only_old", None),
        ("new", "only_new", None),
    ]


def test_a_task_with_other_content_is_another_task() -> None:
    found = compare_outcomes([_task("a", 1, digest="one")], [_task("a", 0, digest="two")])
    assert [one.change for one in found] == ["only_old", "only_new"]


def test_pure_noise_over_many_tasks_is_called_nothing() -> None:
    # 200 tasks of 4 rollouts a side, all of one coin: differences abound, and none is called.
    import random

    rng = random.Random(7)
    sides = [
        [_task(f"t{i}", *[float(rng.random() < 0.5) for _ in range(4)]) for i in range(200)]
        for _ in range(2)
    ]
    found = compare_outcomes(sides[0], sides[1])
    assert any(abs(one.difference or 0) >= 0.5 for one in found)
    assert {one.change for one in found} == {"unchanged"}
