"""The demo's plan: other words of the command line never meet what earlier ones left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from instar.cli.demo.main import key_set_too_late
from instar.cli.demo.plan import Plan, make_plan, parse_options
from instar_core.errors import PrerequisiteError, UserError


def _plan(folder: Path, *words: str) -> Plan:
    return make_plan(parse_options(list(words)), folder)


def test_two_providers_models_are_two_agents(tmp_path: Path) -> None:
    names = {
        _plan(tmp_path, "--model", model).agent
        for model in ("openai/gpt-4o-mini", "azure/gpt-4o-mini", "gpt-4o-mini")
    }
    assert len(names) == 3


def test_other_parameters_of_a_dataset_are_other_tasks(tmp_path: Path) -> None:
    plain = _plan(tmp_path, "--tasks", "reasoning_gym:chain_sum")
    other = _plan(tmp_path, "--tasks", "reasoning_gym:chain_sum?max_terms=3&size=100")
    assert plain.task_set == "chain-sum"
    assert other.task_set == "chain-sum-max-terms-3-size-100"
    assert plain.key != other.key


def test_a_proposer_can_be_named(tmp_path: Path) -> None:
    plan = _plan(tmp_path, "--evolver", "tf_grpo", "--proposer", "openai/gpt-4o")
    assert plan.evolution["model"] == "openai/gpt-4o"
    assert "model" not in _plan(tmp_path).evolution


def test_an_unknown_evolver_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--evolver 'luck' is unknown") as caught:
        _plan(tmp_path, "--evolver", "luck")
    assert "bootstrap or tf_grpo" in caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_a_key_that_the_running_service_has_not_seen_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = "model 'openai/x' needs a key. Set OPENAI_API_KEY where Instar runs."
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="needs a key"), key_set_too_late():
        raise UserError(words)
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    with (
        pytest.raises(PrerequisiteError, match="started without OPENAI_API_KEY") as caught,
        key_set_too_late(),
    ):
        raise UserError(words)
    assert "down" in caught.value.remedy
