"""Registry: names, configurations, and an error for each way to get it wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from instar_core.base import Frozen
from instar_core.candidates import Candidate
from instar_core.errors import UserError
from instar_core.lab import Lab
from instar_core.tasks import Splits
from instar_evolvers import registry
from instar_evolvers.bootstrap import Bootstrap
from instar_evolvers.registry import list_evolvers, open_evolver
from instar_evolvers.tf_grpo import TrainingFreeGRPO


class OutsideConfig(Frozen):
    depth: int = 1


class Outside:
    name = "outside"

    def __init__(self, config: OutsideConfig | None = None) -> None:
        self.config = config or OutsideConfig()

    async def evolve(self, seed: Candidate, data: Splits, lab: Lab) -> Candidate:
        return seed


class Plain:
    name = "plain"

    async def evolve(self, seed: Candidate, data: Splits, lab: Lab) -> Candidate:
        return seed


class NoEvolver:
    pass


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    here = sys.modules[__name__]
    monkeypatch.setitem(sys.modules, "outside_package", here)
    points = [
        EntryPoint(name=name, value=f"outside_package:{kind}", group=registry.GROUP)
        for name, kind in (
            ("outside", "Outside"),
            ("plain", "Plain"),
            ("no_evolver", "NoEvolver"),
            ("gone", "Gone"),
        )
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


def test_built_in_evolvers_are_listed_and_opened() -> None:
    assert {"bootstrap", "tf_grpo"} <= set(list_evolvers())
    assert isinstance(open_evolver("bootstrap"), Bootstrap)
    evolver = open_evolver("tf_grpo", {"epochs": 2, "trial": {"max_pairs": 30}})
    assert isinstance(evolver, TrainingFreeGRPO)
    assert (evolver.config.epochs, evolver.config.trial.max_pairs) == (2, 30)
    assert evolver.name == "tf_grpo"


def test_other_packages_bring_evolvers(plug_in: None) -> None:
    assert "outside" in list_evolvers()
    evolver = open_evolver("outside", {"depth": 3})
    assert isinstance(evolver, Outside)
    assert evolver.config.depth == 3
    assert isinstance(open_evolver("plain"), Plain)


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("nothing", {}, "bootstrap"),
        ("gone", {}, "cannot be loaded"),
        ("no_evolver", {}, "evolve"),
        ("plain", {"depth": 1}, "takes no configuration"),
        ("outside", {"deep": 1}, "depth"),
        ("tf_grpo", {"group_size": 1}, "group_size"),
        ("bootstrap", {"finalists": "many"}, "finalists"),
    ],
)
def test_mistakes_are_told_in_words(
    plug_in: None, name: str, config: dict[str, int], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        open_evolver(name, dict(config))


def test_listing_imports_no_evolver() -> None:
    code = (
        "import sys; from instar_evolvers.registry import list_evolvers; list_evolvers(); "
        "print([name for name in sys.modules if name.endswith(('tf_grpo', 'bootstrap'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "instar_evolvers" not in done.stdout
