"""A run's evolver plans with the search that its quote granted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from instar.evolution.driver import open_planned_evolver
from instar.evolution.facts import RunFacts
from instar.evolution.schemas import EvolutionSpec
from instar_core.evolution import Quote
from instar_core.usage import Amount


@dataclass
class _Facts:
    spec: EvolutionSpec
    quote: Quote = field(init=False)
    granted: int = 0

    def __post_init__(self) -> None:
        self.quote = Quote(
            expected=Amount(),
            limit=Amount(),
            seconds_per_rollout=1.0,
            sealed_pairs=20,
            alpha_t=0.01,
            assumptions={"search_rollouts": self.granted} if self.granted else {},
        )


@pytest.mark.parametrize(
    ("evolver", "config", "granted", "found"),
    [
        ("bootstrap", {}, 90, 90),
        ("bootstrap", {"search_rollouts": 60}, 90, 60),
        ("bootstrap", {}, 0, 150),
        ("tf_grpo", {}, 400, 400),
        ("tf_grpo", {"search_rollouts": 700, "group_size": 3}, 400, 400),
    ],
)
def test_a_cut_search_is_told(
    evolver: str, config: dict[str, Any], granted: int, found: int
) -> None:
    spec = EvolutionSpec(agent="a", task_set="t", evolver=evolver, evolver_config=config)
    opened: Any = open_planned_evolver(cast("RunFacts", _Facts(spec, granted=granted)))
    assert opened.config.search_rollouts == found
    if "group_size" in config:
        assert opened.config.group_size == config["group_size"]
