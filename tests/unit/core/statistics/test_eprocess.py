"""The e-process: refusals, resuming, intervals, and the traps of acceptance-stats.md section 10."""

from __future__ import annotations

import math
import random

import pytest

from instar_core.statistics import betting
from instar_core.statistics.eprocess import (
    EProcess,
    EProcessState,
    bet_fractions,
    interval,
    log_mixture_of_counts,
    lower_bound,
)


@pytest.mark.parametrize("d", [1.0000001, -1.5, math.nan, math.inf])
def test_pitfall_11_a_difference_outside_its_range_is_refused_and_changes_nothing(
    d: float,
) -> None:
    process = EProcess()
    process.update(0.5)
    before = process.state
    with pytest.raises(ValueError, match=r"outside \[-1, 1\]"):
        process.update(d)
    assert process.state == before


@pytest.mark.parametrize("mu0", [-1.0, 1.0, 2.0, math.nan])
def test_a_null_outside_the_open_range_is_refused(mu0: float) -> None:
    with pytest.raises(ValueError, match="mu0"):
        EProcess(mu0=mu0)


def test_pitfall_15_a_saved_state_goes_on_bit_for_bit() -> None:
    generator = random.Random(3)
    pairs = [generator.uniform(-1.0, 1.0) for _ in range(300)]
    whole = EProcess(mu0=-0.05)
    parted = EProcess(mu0=-0.05)
    for i, d in enumerate(pairs):
        expected = whole.update(d)
        assert parted.update(d) == expected
        if i % 37 == 0:
            text = parted.state.model_dump_json()
            parted = EProcess.resume(EProcessState.model_validate_json(text))
    assert parted.state == whole.state
    assert parted.log_e == whole.log_e


def test_pitfall_4_no_bet_is_so_large_that_one_loss_is_fatal() -> None:
    assert max(bet_fractions(20)) == 0.975
    process = EProcess()
    for _ in range(1000):
        process.update(-1.0)
    for _ in range(3000):
        process.update(1.0)
    assert math.isfinite(process.log_e)


def test_capital_beyond_the_range_of_floats_stays_usable() -> None:
    process = EProcess()
    for _ in range(3000):
        process.update(1.0)
    assert process.log_e > 1000.0
    assert process.e_value == math.inf


def test_pitfall_5_ties_are_neutral_at_zero_and_count_against_a_margin() -> None:
    plain, tied = EProcess(), EProcess()
    for d in (1.0, -1.0, 1.0):
        plain.update(d)
        tied.update(d)
        tied.update(0.0)
    assert tied.log_e == plain.log_e
    margin = EProcess(mu0=-0.05)
    before = margin.log_e
    assert margin.update(0.0) > before


def test_pitfall_1_the_maximum_is_kept_apart_from_the_value() -> None:
    process = EProcess()
    for d in (1.0, 1.0, 1.0, -1.0, -1.0):
        process.update(d)
    assert process.log_e < process.ever_log_e
    assert process.anytime_p == pytest.approx(math.exp(-process.ever_log_e))
    # 1/p would claim more than the process holds now.
    assert 1.0 / process.anytime_p > process.e_value


def test_pitfall_2_plug_in_bets_use_earlier_pairs_only() -> None:
    generator = random.Random(5)
    x = [generator.random() for _ in range(30)]
    for cut in range(1, 30):
        changed = x[:cut] + [1.0 - v for v in x[cut:]]
        assert betting.prpl_eb_bets(x)[: cut + 1] == betting.prpl_eb_bets(changed)[: cut + 1]
        assert (
            betting.agrapa_bets(x, 0.5)[: cut + 1] == betting.agrapa_bets(changed, 0.5)[: cut + 1]
        )


def test_pitfall_4_lbow_bets_nothing_where_there_is_nothing_to_bet_on() -> None:
    x = [0.5] * 5
    assert betting.capital(x, 0.5, betting.lbow_bets(x, 0.5, [0.0] * 5)) == [1.0] * 5


def test_the_worse_direction_mirrors_the_better_one() -> None:
    up, down = EProcess(mu0=0.05), EProcess(mu0=-0.05, direction="worse")
    for d in (0.2, -1.0, 1.0, 0.0, -0.3):
        assert up.update(d) == pytest.approx(down.update(-d), rel=1e-12)


def test_the_history_at_its_own_null_gives_the_running_value() -> None:
    process = EProcess(mu0=0.02)
    for d in (1.0, 0.0, -0.25, 1.0, 0.5):
        process.update(d)
    again = log_mixture_of_counts(process.counts, 0.02, "better")
    assert again == pytest.approx(process.log_e, rel=1e-12)


def test_the_interval_is_everything_before_any_pair_and_narrows() -> None:
    assert interval({}) == (-1.0, 1.0)
    wide = interval({1.0: 6, 0.0: 4})
    narrow = interval({1.0: 60, 0.0: 40})
    assert wide[0] < narrow[0] < 0.6 < narrow[1] < wide[1]


def test_pitfall_16_the_lower_bound_and_the_decision_use_one_level() -> None:
    process = EProcess()
    while process.log_e < math.log(77.0):
        process.update(1.0)
        process.update(0.0)
    assert lower_bound(process.counts, 1 / 77) >= 0.0
    assert lower_bound(process.counts, 1 / 200) < 0.0
