"""What a run may ask of its sealed test: stricter rules than the epoch's, never laxer ones."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from instar.evolution.schemas import EvolutionSpec


def _spec(**acceptance: Any) -> EvolutionSpec:
    return EvolutionSpec.model_validate(
        {"agent": "desk", "task_set": "tickets", "acceptance": acceptance}
    )


@pytest.mark.parametrize(
    ("laxer", "words"),
    [
        ({"alpha": 0.5}, "alpha is 0.5.*stricter than 0.05"),
        ({"epoch_tests": 1}, "epoch_tests is 1; an epoch has 50"),
        ({"epoch_tests": 500}, "epoch_tests is 500"),
        ({"max_missing": 0.5}, "max_missing is 0.5"),
        ({"max_uses_of_group": 50}, "max_uses_of_group is 50"),
    ],
)
def test_a_run_cannot_loosen_the_promise(laxer: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        _spec(**laxer)


def test_a_run_may_be_stricter_and_smaller() -> None:
    spec = _spec(alpha=0.01, max_missing=0.0, max_uses_of_group=1, max_pairs=40, repeats=2)
    assert spec.acceptance.alpha == 0.01 and spec.acceptance.max_pairs == 40


@pytest.mark.parametrize(
    "limit", [{"rollouts": -1}, {"cost_usd": float("nan")}, {"wall_s": float("inf")}]
)
def test_an_impossible_limit_is_refused(limit: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="a limit lies between"):
        EvolutionSpec.model_validate({"agent": "a", "task_set": "t", "limit": limit})
