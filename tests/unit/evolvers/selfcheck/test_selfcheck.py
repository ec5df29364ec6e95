"""Selfcheck: its numbers, its controls, and that it can fail."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from scipy.stats import binomtest

from instar_core.errors import UserError
from instar_core.evolution import AcceptanceConfig
from instar_core.statistics.elond import level
from instar_core.statistics.power import pair_model, power
from instar_evolvers.selfcheck import run_selfcheck
from instar_evolvers.selfcheck.controls import quoted_effect
from instar_evolvers.selfcheck.intervals import exact_interval, upper_limit
from instar_evolvers.selfcheck.runs import Job, RunResult, perform
from instar_evolvers.selfcheck.verdict import broken_promises


def job(**changes: object) -> Job:
    fields = {
        "world": "null", "kind": "evolver", "evolver": "bootstrap", "number": 1, "nights": 1,
        "seed": 5, **changes,
    }  # fmt: skip
    return Job.model_validate(fields)


@pytest.mark.parametrize("world", ["null", "lottery"])
def test_a_night_spends_a_search_and_opens_a_full_sealed_test(world: str) -> None:
    for name in ("bootstrap", "tf_grpo"):
        result = perform(job(world=world, evolver=name))
        assert result.tested == 1
        assert min(result.search_rollouts) >= 100
        assert min(result.pairs) >= AcceptanceConfig().min_pairs
        assert result.without_candidate == 0


def test_a_candidate_is_put_forward_even_where_the_evolver_returns_the_seed() -> None:
    results = [perform(job(evolver="tf_grpo", number=number)) for number in range(4)]
    assert not all(result.claimed for result in results)
    assert all(result.tested == 1 for result in results)


def test_runs_are_functions_of_their_job_and_share_nothing() -> None:
    assert perform(job()) == perform(job())
    others = [perform(job(number=number)) for number in range(4)]
    assert len({result.pairs for result in others}) > 1


def test_nights_of_a_run_draw_on_one_epoch() -> None:
    result = perform(job(nights=3))
    assert result.tested == 3
    assert len(result.search_rollouts) == 3


@pytest.fixture(scope="module")
def null_report() -> dict[str, Any]:
    found = run_selfcheck("null", ["bootstrap", "tf_grpo"], runs=12, seed=11, processes=2)
    return cast("dict[str, Any]", found)


def test_the_report_has_what_is_promised(null_report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(null_report)) == null_report
    for row, name in zip(null_report["evolvers"], ("bootstrap", "tf_grpo"), strict=True):
        assert (row["name"], row["runs"], row["nights"]) == (name, 12, 1)
        assert row["proposals_tested"] == 12
        assert row["pairs_median"] > 60
        assert row["interval"][0] <= row["false_promotion_rate"] <= row["interval"][1]
        # 12 runs at less than .02 each: more than 2 has probability below .002.
        assert row["false_promotions"] <= 2
    assert set(null_report["controls"]) == {"argmax", "oracle"}
    assert 0.0 < null_report["pooled_upper"] < 0.4


def test_the_controls_come_out_as_known_beforehand(null_report: dict[str, Any]) -> None:
    assert null_report["controls"]["argmax"] >= 0.5
    assert null_report["controls"]["oracle"] >= 0.5  # 12 runs at .9
    assert null_report["control_runs"] == 12


def test_the_quoted_effect_is_found_with_more_than_the_promised_power() -> None:
    config = AcceptanceConfig()
    alpha_t = level(1, 0, alpha=config.alpha, horizon=config.epoch_tests)
    for rho in (0.0, 0.3, 0.6):
        for base in (0.35, 0.5, 0.6):
            model = pair_model(quoted_effect(config), base=base, rho=rho)
            assert power(config.max_pairs, alpha_t, model) > 0.8


def test_planted_reports_what_was_kept_of_what_was_offered() -> None:
    found = run_selfcheck("planted", ["tf_grpo"], runs=2, seed=4, processes=2)
    (row,) = cast("list[dict[str, Any]]", found["evolvers"])
    assert row["helpful_recall"] > 0.7
    assert row["harmful_kept"] < 0.1
    assert row["helpful_recall_counts"][1] == 24
    assert row["harmful_kept_counts"][1] > 10
    assert row["true_gain_median"] > 0.25
    assert "pooled_upper" not in found


def report(**changes: object) -> dict[str, Any]:
    row = {"name": "one", "runs": 200, "false_promotion_rate": 0.01}
    return {
        "world": "null",
        "evolvers": [row],
        "controls": {"argmax": 0.9, "oracle": 0.9},
        "control_runs": 200,
        "pooled_upper": 0.03,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"controls": {"argmax": 0.4, "oracle": 0.9}}, "argmax"),
        ({"controls": {"argmax": 0.9, "oracle": 0.7}}, "oracle"),
        ({"pooled_upper": 0.06}, "6.0%"),
        ({"evolvers": [{"name": "x", "runs": 200, "false_promotion_rate": 0.06}]}, "x promoted"),
        (
            {
                "world": "planted",
                "evolvers": [{"name": "x", "runs": 24, "helpful_recall": 0.8, "harmful_kept": 0.0}],
            },
            "80.0% of helpful",
        ),
        (
            {
                "world": "planted",
                "evolvers": [
                    {"name": "x", "runs": 24, "helpful_recall": 0.95, "harmful_kept": 0.03}
                ],
            },
            "3.0% of harmful",
        ),
    ],
)
def test_broken_promises_are_named(changes: dict[str, object], words: str) -> None:
    assert broken_promises(report()) == []
    (promise,) = broken_promises(report(**changes))
    assert words in promise


def test_an_evolver_without_the_sealed_test_breaks_the_promise() -> None:
    """What the check is for: argmax as an evolver is caught."""
    results = [perform(job(kind="argmax", evolver="argmax", number=n)) for n in range(40)]
    rate = sum(result.promotions > 0 for result in results) / len(results)
    caught = report(evolvers=[{"name": "argmax", "runs": 200, "false_promotion_rate": rate}])
    assert broken_promises(caught)


@pytest.mark.parametrize(("count", "total"), [(0, 200), (3, 200), (10, 24), (200, 200), (1, 1)])
def test_intervals_are_exact(count: int, total: int) -> None:
    expected = binomtest(count, total).proportion_ci(0.95, method="exact")
    assert exact_interval(count, total) == pytest.approx((expected.low, expected.high), abs=1e-9)
    one_sided = binomtest(count, total, alternative="less").proportion_ci(0.95, method="exact")
    assert upper_limit(count, total) == pytest.approx(one_sided.high, abs=1e-9)
    assert exact_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("world", "evolvers", "runs", "words"),
    [
        ("paradise", ["bootstrap"], 1, "planted"),
        ("null", ["nobody"], 1, "bootstrap"),
        ("null", [], 1, "No evolver"),
        ("null", ["bootstrap"], 0, "at least 1"),
    ],
)
def test_mistakes_are_told_in_words(world: str, evolvers: list[str], runs: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run_selfcheck(world, evolvers, runs=runs, processes=1)


def test_results_of_runs_travel_between_processes() -> None:
    result = RunResult(evolver="x", pairs=(3,), verdicts=("accepted",))
    assert RunResult.model_validate_json(result.model_dump_json()) == result
