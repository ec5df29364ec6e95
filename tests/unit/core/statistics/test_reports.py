"""Report figures, posteriors and the bootstrap; against scipy where it computes the same."""

from __future__ import annotations

import random

import pytest

from instar_core.statistics import beta, reports
from instar_core.statistics.bootstrap import paired_bootstrap
from instar_core.statistics.elond import ELond, gamma, level


def test_beta_functions_agree_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = random.Random(1)
    for _ in range(200):
        a, b, x = generator.uniform(0.3, 80), generator.uniform(0.3, 80), generator.random()
        assert beta.beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-9, abs=1e-14)
        p = generator.uniform(0.01, 0.99)
        assert beta.beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), rel=1e-8)
    assert beta.beta_cdf(-1.0, 2, 2) == 0.0
    assert beta.beta_cdf(2.0, 2, 2) == 1.0


def test_bootstrap_agrees_with_scipy_and_repeats() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    numpy = pytest.importorskip("numpy")
    generator = random.Random(4)
    d = [generator.choice([-1.0, 0.0, 0.0, 1.0, 1.0]) for _ in range(80)]
    ours = paired_bootstrap(d, seed=12345)
    assert ours == paired_bootstrap(d, seed=12345)
    theirs = scipy_stats.bootstrap(
        (numpy.array(d),), numpy.mean, n_resamples=10_000, method="percentile", rng=7
    ).confidence_interval
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_bootstrap_and_reports_refuse_what_they_cannot_judge() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        paired_bootstrap([0.5], seed=1)
    with pytest.raises(ValueError, match="level"):
        paired_bootstrap([0.5, 0.1], seed=1, level=1.0)
    with pytest.raises(ValueError, match="need 0 <= c <= n"):
        reports.pass_at_k(3, 4, 1)
    with pytest.raises(ValueError, match="outside"):
        reports.brier([1.2], [1])
    with pytest.raises(ValueError, match="at least one"):
        reports.brier([], [])


def test_pitfall_13_pass_at_k_and_pass_hat_k_answer_different_questions() -> None:
    assert reports.pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert reports.pass_hat_k(4, 2, 2) == pytest.approx(1 / 6)


def test_default_thresholds_of_the_epoch() -> None:
    found = [round(1 / level(t, 0)) for t in (1, 2, 3, 5, 10, 50)]
    assert found == [77, 214, 387, 750, 1375, 1962]
    assert sum(gamma(t) for t in range(1, 5000)) <= 1.0


def test_elond_refuses_impossible_states() -> None:
    for bad in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            gamma(bad)
    with pytest.raises(ValueError, match="accepted_before"):
        level(3, 3)
    with pytest.raises(ValueError, match="alpha"):
        level(1, 0, alpha=1.0)
    with pytest.raises(ValueError, match="e-value"):
        ELond().decide(float("nan"))


def test_a_level_of_zero_never_accepts() -> None:
    state = ELond(gamma="flat", horizon=1, opened=1)
    assert state.decide(1e300) == (False, ELond(gamma="flat", horizon=1, opened=2))


def test_an_acceptance_raises_the_next_level() -> None:
    accepted, after = ELond().decide(77.0)
    assert accepted
    assert after.next_level == pytest.approx(2 * level(2, 0))
