"""The sealed decision: when it stops, what it says, and what it refuses."""

from __future__ import annotations

import random

import pytest

from instar_core.evolution import AcceptanceConfig
from instar_core.statistics.sealed import SealedDecision

CONFIG = AcceptanceConfig()
FIRST = 1 / 77


def decision(
    groups: int = 200, *, config: AcceptanceConfig = CONFIG, alpha: float = FIRST
) -> SealedDecision:
    return SealedDecision(config, alpha, slices=["default"] * groups)


def run(test: SealedDecision, pairs: list[tuple[float | None, float | None]]) -> SealedDecision:
    for candidate, incumbent in pairs:
        if test.feed(candidate, incumbent) == "stop":
            break
    return test


def test_a_clear_gain_is_accepted_but_not_before_twenty_pairs() -> None:
    test = run(decision(), [(1.0, 0.0)] * 200)
    found = test.outcome()
    assert (found.verdict, found.reason, found.pairs) == ("accepted", "accepted", 20)
    assert found.evidence >= found.threshold
    assert found.interval[0] > 0.0
    assert found.interval_level == pytest.approx(1 - 2 / 77)
    assert "Better than the current version" in found.words
    assert "needed 77 : 1" in found.words
    assert "at least +0." in found.words


def test_every_slice_has_to_be_seen_before_acceptance() -> None:
    slices = ["easy"] * 30 + ["hard"] * 10
    test = SealedDecision(CONFIG, FIRST, slices=slices)
    for name in slices:
        if test.feed(1.0, 0.0, slice_name=name) == "stop":
            break
    assert test.outcome().pairs == 31


def test_evidence_without_a_slice_is_undecided_at_the_end() -> None:
    slices = ["easy"] * 60 + ["hard"]
    test = SealedDecision(CONFIG, FIRST, slices=slices)
    for name in slices[:-1]:
        assert test.feed(1.0, 0.0, slice_name=name) == "continue"
    test.feed(None, None, slice_name="hard")
    found = test.outcome()
    assert (found.verdict, found.reason) == ("undecided", "unrepresentative")
    assert "hard" in found.words


def test_a_worse_candidate_stops_early_and_is_called_worse() -> None:
    found = run(decision(), [(0.0, 1.0)] * 200).outcome()
    assert (found.verdict, found.reason, found.pairs) == ("no_improvement", "harm", 20)
    assert found.words.startswith("Shown to be worse")


def test_equal_versions_stop_for_futility_or_curtailment() -> None:
    generator = random.Random(11)
    reasons = set()
    for _ in range(30):
        test = decision()
        pairs = [
            (float(generator.random() < 0.5), float(generator.random() < 0.5)) for _ in range(200)
        ]
        found = run(test, list(pairs)).outcome()
        assert found.pairs <= 200
        reasons.add(found.reason)
    assert {"futility", "curtailed"} <= reasons


def test_curtailment_stops_when_even_winning_all_the_rest_is_too_little() -> None:
    config = AcceptanceConfig(max_pairs=30, futility_evidence=1e9)
    found = run(decision(30, config=config), [(0.5, 0.5)] * 30).outcome()
    assert (found.verdict, found.reason) == ("no_improvement", "curtailed")
    assert found.pairs == 22  # 9 straight wins reach 77; with 8 pairs left no more
    assert "even winning every remaining pair" in found.words


def test_not_shown_names_the_gain_that_would_have_been_missed() -> None:
    # One win short of the bar up to the last pair (8 wins hold 57 : 1, 9 would hold 102 : 1), which
    # is a tie: else curtailment stops it earlier.
    config = AcceptanceConfig(max_pairs=20)
    pairs = [(0.0, 0.0)] * 11 + [(1.0, 0.0)] * 8 + [(0.0, 0.0)]
    found = run(decision(20, config=config), list(pairs)).outcome()
    assert found.reason == "exhausted"
    assert found.words.startswith("Not shown to be better in 20 pairs. That is not proof")
    assert "a gain under about +0.52 would usually be missed" in found.words


def test_too_many_missing_pairs_leave_the_test_undecided_as_soon_as_it_is_sure() -> None:
    test = decision(100)
    for _ in range(2):
        assert test.feed(None, 1.0) == "continue"
    assert test.feed(1.0, None) == "stop"
    found = test.outcome()
    assert (found.verdict, found.reason, found.missing) == ("undecided", "missing", 3)
    assert "outside the agent" in found.words


def test_few_missing_pairs_are_dropped_and_not_scored_as_zero() -> None:
    test = decision(200)
    test.feed(None, None)
    for _ in range(60):
        if test.feed(1.0, 0.0) == "stop":
            break
    found = test.outcome()
    assert found.verdict == "accepted"
    assert found.missing == 1
    assert found.losses == 0
    # One missing of 20 pairs is 5 %: acceptance waits until the share is within the limit.
    assert found.pairs == 49


def test_missing_on_one_side_only_is_undecided() -> None:
    test = decision(200)
    test.feed(None, 1.0)
    test.feed(None, 1.0)
    for _ in range(198):
        if test.feed(1.0, 0.0) == "stop":
            break
    # Two missing, all on the candidate's side: above 1 % until 200 pairs, then it is within it.
    assert test.outcome().pairs == 198
    worse = decision(150)
    worse.feed(None, 1.0)
    worse.feed(None, 1.0)
    for _ in range(148):
        if worse.feed(1.0, 0.0) == "stop":
            break
    assert worse.outcome().reason == "missing"


def test_pitfall_10_feeding_the_record_again_resumes_at_the_same_state() -> None:
    generator = random.Random(9)
    pairs = [(float(generator.random() < 0.55), float(generator.random() < 0.5)) for _ in range(80)]
    whole, again = decision(), decision()
    looks = [whole.feed(*pair) for pair in pairs]
    assert [again.feed(*pair) for pair in pairs] == looks
    assert again.evidence.state == whole.evidence.state
    assert again.outcome() == whole.outcome()


def test_no_pair_after_the_stop_and_no_score_out_of_range() -> None:
    test = run(decision(), [(1.0, 0.0)] * 200)
    with pytest.raises(ValueError, match="stopped"):
        test.feed(1.0, 0.0)
    with pytest.raises(ValueError, match=r"candidate's score 1.5"):
        decision().feed(1.5, 0.0)


def test_one_pass_is_a_validity_condition() -> None:
    test = SealedDecision(AcceptanceConfig(max_pairs=500), FIRST, slices=["a"] * 25)
    count = 0
    while test.feed(1.0, 1.0, slice_name="a") == "continue":
        count += 1
    assert count + 1 <= 25


def test_a_pool_that_cannot_give_the_minimum_is_refused() -> None:
    with pytest.raises(ValueError, match="add sealed groups"):
        decision(19)


def test_before_the_end_it_is_undecided() -> None:
    test = decision()
    test.feed(1.0, 0.0)
    found = test.outcome()
    assert (found.verdict, found.reason) == ("undecided", "interrupted")


def test_graded_scores_keep_the_means_of_both_sides() -> None:
    found = run(decision(), [(0.75, 0.5), (0.25, 0.5)] * 5).outcome()
    assert found.candidate_mean == pytest.approx(0.5)
    assert found.incumbent_mean == pytest.approx(0.5)
    assert (found.wins, found.losses, found.ties) == (5, 5, 0)
