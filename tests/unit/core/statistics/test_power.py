"""Power planning reproduces the tables of acceptance-stats.md section 3."""

from __future__ import annotations

import random

import pytest

from instar_core.statistics.eprocess import EProcess
from instar_core.statistics.power import (
    pair_model,
    pairs_for_power,
    plan,
    planning_pairs,
    power,
    rho_of_ties,
    smallest_effect,
)

SIZES = (30, 60, 100, 200, 500, 1000)
SMALLEST = [
    (20, 0.0, (0.390, 0.289, 0.232, 0.170, 0.113, 0.082)),
    (20, 0.5, (0.292, 0.206, 0.161, 0.118, 0.078, 0.057)),
    (20, 0.8, (0.287, 0.148, 0.099, 0.071, 0.047, 0.034)),
    (77, 0.0, (0.437, 0.331, 0.266, 0.194, 0.128, 0.093)),
    (77, 0.5, (0.358, 0.236, 0.187, 0.136, 0.089, 0.064)),
    (77, 0.8, (0.358, 0.185, 0.112, 0.081, 0.054, 0.039)),
    (1000, 0.0, (0.498, 0.390, 0.313, 0.230, 0.150, 0.109)),
    (1000, 0.5, (0.494, 0.280, 0.224, 0.162, 0.106, 0.076)),
    (1000, 0.8, (0.494, 0.256, 0.156, 0.097, 0.064, 0.047)),
    (2000, 0.5, (None, 0.288, 0.232, 0.169, 0.109, 0.079)),
]


@pytest.mark.parametrize(("threshold", "rho", "row"), SMALLEST)
def test_smallest_effect_found_with_80_percent_power(
    threshold: int, rho: float, row: tuple[float | None, ...]
) -> None:
    for n, expected in zip(SIZES, row, strict=True):
        found = smallest_effect(n, 1 / threshold, rho=rho)
        if expected is None:
            assert found is None
        else:
            assert found == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize(
    ("rho", "row"),
    [
        (0.0, ((0.05, 0.08), (0.10, 0.33), (0.32, 0.95), (0.93, 1.0))),
        (0.5, ((0.06, 0.13), (0.18, 0.68), (0.64, 1.0), (1.0, 1.0))),
        (0.8, ((0.09, 0.32), (0.45, 0.99), (1.0, 1.0), (1.0, 1.0))),
    ],
)
def test_power_within_200_and_1000_pairs(rho: float, row: tuple[tuple[float, float], ...]) -> None:
    for effect, expected in zip((0.02, 0.05, 0.1, 0.2), row, strict=True):
        model = pair_model(effect, rho=rho)
        for n, value in zip((200, 1000), expected, strict=True):
            assert power(n, 0.05, model) == pytest.approx(value, abs=0.01)


@pytest.mark.parametrize(
    ("rho", "row"), [(0.0, (0.014, 0.021, 0.029, 0.035)), (0.5, (0.005, 0.014, 0.025, 0.033))]
)
def test_type_one_error_is_exact(rho: float, row: tuple[float, ...]) -> None:
    for n, expected in zip((30, 60, 200, 1000), row, strict=True):
        assert power(n, 0.05, pair_model(0.0, rho=rho)) == pytest.approx(expected, abs=0.0015)


def test_dynamic_programming_agrees_with_simulation() -> None:
    generator = random.Random(17)
    model, n, runs = pair_model(0.2, rho=0.5), 60, 1500
    crossed = 0
    for _ in range(runs):
        process = EProcess()
        for _ in range(n):
            u = generator.random()
            d = 1.0 if u < model.win else -1.0 if u < model.win + model.loss else 0.0
            if process.update(d) >= 2.995732273553991:
                crossed += 1
                break
    assert crossed / runs == pytest.approx(power(n, 0.05, model), abs=0.04)


def test_pairs_for_power_and_the_planning_number() -> None:
    model = pair_model(0.136, rho=0.5)
    eighty = pairs_for_power(0.8, 1 / 77, model)
    half = pairs_for_power(0.5, 1 / 77, model)
    assert eighty is not None and half is not None
    assert eighty == pytest.approx(200, abs=4)
    assert power(half, 1 / 77, model) >= 0.5 > power(half - 1, 1 / 77, model)
    assert 1.2 < eighty / planning_pairs(1 / 77, model) < 1.6


def test_no_gain_needs_no_number() -> None:
    assert pairs_for_power(0.8, 0.05, pair_model(0.0)) is None
    assert pairs_for_power(0.8, 0.05, pair_model(-0.1)) is None
    assert pairs_for_power(0.8, 1 / 77, pair_model(0.001)) is None


def test_a_low_starting_point_makes_gains_easy_to_see() -> None:
    low = smallest_effect(40, 1 / 77, base=0.0)
    middle = smallest_effect(40, 1 / 77, base=0.5)
    assert low is not None and middle is not None
    assert low < middle


def test_plan_of_a_budget_too_small_to_detect_anything() -> None:
    found = plan(8, 1 / 77)
    assert found.smallest_effect is None
    assert found.pairs_for_80_power is None
    assert plan(200, 1 / 77, base=1.0).smallest_effect is None


def test_plan_for_a_hoped_gain() -> None:
    found = plan(200, 1 / 77, effect=0.2)
    assert found.power is not None and found.power > 0.95
    assert found.smallest_effect == pytest.approx(0.136, abs=0.01)


def test_impossible_models_are_refused() -> None:
    with pytest.raises(ValueError, match="rates lie in"):
        pair_model(0.6, base=0.5)
    with pytest.raises(ValueError, match="alpha_t"):
        power(10, 0.0, pair_model(0.1))


def test_ties_and_correlation_translate() -> None:
    for rho, ties in ((0.0, 0.5), (0.5, 0.75), (0.8, 0.9)):
        assert rho_of_ties(ties) == pytest.approx(rho)
        model = pair_model(0.0, rho=rho)
        assert 1.0 - model.win - model.loss == pytest.approx(ties)
