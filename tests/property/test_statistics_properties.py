"""What must hold for all data: supermartingales, resuming, order, intervals, error rates."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar_core.evolution import AcceptanceConfig
from instar_core.statistics.elond import ELond
from instar_core.statistics.eprocess import (
    Direction,
    EProcess,
    EProcessState,
    interval,
    log_mixture_of_counts,
)
from instar_core.statistics.sealed import SealedDecision

differences = st.lists(st.floats(-1.0, 1.0), max_size=40)
trits = st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=40)
nulls = st.floats(-0.9, 0.9)
directions = st.sampled_from(["better", "worse"])


def fed(pairs: list[float], mu0: float = 0.0, direction: Direction = "better") -> EProcess:
    process = EProcess(mu0=mu0, direction=direction)
    for d in pairs:
        process.update(d)
    return process


@given(
    mu0=st.sampled_from([-0.3, -0.05, 0.0, 0.02, 0.4]),
    spread=st.floats(0.0, 0.5),
    length=st.integers(1, 5),
)
@settings(deadline=None, max_examples=30)
def test_mean_capital_never_exceeds_one_under_the_null(
    mu0: float, spread: float, length: int
) -> None:
    # Two-point and three-point laws with mean exactly mu0, every path enumerated.
    high, low = min(1.0, mu0 + spread), max(-1.0, mu0 - spread)
    if high == low:
        law = [(mu0, 1.0)]
    else:
        p = (mu0 - low) / (high - low)
        law = [(high, 0.7 * p), (low, 0.7 * (1 - p)), (mu0, 0.3)]
    for direction in ("better", "worse"):
        total = 0.0
        for path in itertools.product(law, repeat=length):
            weight = math.prod(p for _, p in path)
            total += weight * fed([d for d, _ in path], mu0, direction).e_value
        assert total <= 1.0 + 1e-9


@given(pairs=differences, cut=st.integers(0, 40), mu0=nulls, direction=directions)
@settings(deadline=None)
def test_resuming_from_json_is_bit_exact(
    pairs: list[float], cut: int, mu0: float, direction: Direction
) -> None:
    first = fed(pairs[:cut], mu0, direction)
    resumed = EProcess.resume(EProcessState.model_validate_json(first.state.model_dump_json()))
    for d in pairs[cut:]:
        resumed.update(d)
    assert resumed.state == fed(pairs, mu0, direction).state


@given(pairs=trits, ties=st.lists(st.integers(0, 40), max_size=10))
@settings(deadline=None)
def test_ties_anywhere_leave_the_evidence_as_it_is(pairs: list[float], ties: list[int]) -> None:
    mixed = list(pairs)
    for at in ties:
        mixed.insert(min(at, len(mixed)), 0.0)
    assert fed(mixed).log_e == fed(pairs).log_e


@given(pairs=differences, seed=st.integers(0, 100))
@settings(deadline=None)
def test_order_does_not_change_the_value_at_the_end(pairs: list[float], seed: int) -> None:
    shuffled = list(pairs)
    random.Random(seed).shuffle(shuffled)
    assert fed(shuffled).log_e == pytest.approx(fed(pairs).log_e, abs=1e-9)


@given(d=st.floats(allow_nan=True).filter(lambda v: not -1.0 <= v <= 1.0))
def test_anything_outside_is_refused(d: float) -> None:
    with pytest.raises(ValueError, match="outside"):
        EProcess().update(d)


@given(pairs=differences.filter(bool), a=nulls, b=nulls)
@settings(deadline=None)
def test_evidence_is_monotone_in_the_null(pairs: list[float], a: float, b: float) -> None:
    low, high = sorted((a, b))
    counts = fed(pairs).counts
    better = [log_mixture_of_counts(counts, m, "better") for m in (low, high)]
    worse = [log_mixture_of_counts(counts, m, "worse") for m in (low, high)]
    assert better[0] >= better[1] - 1e-9
    assert worse[0] <= worse[1] + 1e-9


@given(pairs=differences.filter(bool))
@settings(deadline=None, max_examples=40)
def test_the_interval_holds_the_mean_and_grows_with_its_level(pairs: list[float]) -> None:
    counts = fed(pairs).counts
    mean = math.fsum(pairs) / len(pairs)
    low, high = interval(counts, 0.9)
    wide = interval(counts, 0.99)
    assert -1.0 <= wide[0] <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= wide[1] <= 1.0


@given(pairs=trits, more=st.integers(0, 20))
@settings(deadline=None)
def test_the_curtailment_bound_is_reached_by_winning_the_rest(
    pairs: list[float], more: int
) -> None:
    process = fed(pairs)
    bound = process.best_attainable(len(pairs) + more)
    for _ in range(more):
        process.update(1.0)
    assert process.log_e == pytest.approx(bound, abs=1e-9)


@given(e_values=st.lists(st.floats(0.0, 1e6), max_size=60))
def test_elond_never_spends_more_than_its_rate(e_values: list[float]) -> None:
    # The deterministic core of the proof: on acceptance alpha_t e_t >= 1 and R_T >= R_(t-1) + 1, so
    # the sum of alpha_t/(R_(t-1)+1) over tests bounds the rate; it must stay within alpha.
    state, spent, proportion = ELond(), 0.0, 0.0
    levels = []
    for e_value in e_values:
        alpha_t = state.next_level
        spent += alpha_t / (state.accepted + 1)
        accepted, state = state.decide(e_value)
        levels.append((alpha_t, e_value, accepted))
    for alpha_t, e_value, accepted in levels:
        if accepted:
            assert alpha_t * e_value >= 1.0 - 1e-12
            proportion += 1.0 / state.accepted
    assert spent <= 0.05 + 1e-12
    assert proportion == pytest.approx(1.0 if state.accepted else 0.0)


def test_false_discovery_rate_of_elond_by_simulation() -> None:
    # Dependent e-values: all nulls of an epoch share one coin-flip martingale.
    generator = random.Random(23)
    runs, share = 600, 0.0
    for _ in range(runs):
        common = math.prod(1.0 + 0.9 * generator.choice([-1.0, 1.0]) for _ in range(8))
        state, false = ELond(), 0
        for t in range(50):
            null = t % 5 != 0
            accepted, state = state.decide(common if null else 1e5)
            false += accepted and null
        share += false / max(1, state.accepted)
    assert share / runs <= 0.05


def test_type_one_error_of_the_whole_decision_by_simulation() -> None:
    # Level 0.05 (one test), truth exactly "no better": the rate is .025 in theory (table, rho .5).
    generator = random.Random(29)
    config, runs, accepted = AcceptanceConfig(), 500, 0
    for _ in range(runs):
        test = SealedDecision(config, 0.05, slices=["default"] * 200)
        for _ in range(200):
            u = generator.random()
            pair = (1.0, 0.0) if u < 0.125 else (0.0, 1.0) if u < 0.25 else (1.0, 1.0)
            if test.feed(*pair) == "stop":
                break
        accepted += test.stop == "accepted"
    assert accepted / runs <= 0.05


def test_pitfall_8_a_fixed_order_makes_the_test_worthless() -> None:
    # Good tasks first: mean exactly 0, accepted by order alone; shuffled, almost never.
    pairs = [(1.0, 0.0)] * 25 + [(0.0, 1.0)] * 25
    ordered = SealedDecision(AcceptanceConfig(), 0.05, slices=["default"] * 50)
    for pair in pairs:
        if ordered.feed(*pair) == "stop":
            break
    assert ordered.stop == "accepted"
    generator, accepted = random.Random(31), 0
    for _ in range(200):
        shuffled = list(pairs)
        generator.shuffle(shuffled)
        test = SealedDecision(AcceptanceConfig(), 0.05, slices=["default"] * 50)
        for pair in shuffled:
            if test.feed(*pair) == "stop":
                break
        accepted += test.stop == "accepted"
    assert accepted / 200 <= 0.05
