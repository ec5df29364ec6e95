"""A scripted model gives the same reply to the same request, and says what it did not foresee."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from instar.models.base import ModelReply, ModelRequest
from instar.models.registry import check_model, open_model
from instar.settings import ModelPrice, Settings
from instar_core.errors import ModelError, UserError
from instar_core.messages import Message, Sampling


def _settings(folder: Path, rules: list[dict[str, Any]]) -> Settings:
    (folder / "desk.json").write_text(json.dumps({"rules": rules}), encoding="utf-8")
    settings = Settings()
    settings.models.scripts_dir = folder
    return settings


def _ask(settings: Settings, text: str, seed: int = 0, system: str = "") -> ModelReply:
    messages = (Message(role="system", content=system), Message(role="user", content=text))
    request = ModelRequest(
        model="scripted/desk", messages=messages, sampling=Sampling(max_tokens=16), seed=seed
    )
    return asyncio.run(open_model("scripted/desk", settings).complete(request))


def test_the_first_rule_that_matches_answers_and_groups_expand(tmp_path: Path) -> None:
    rules = [
        {"match": r"ticket (\d+)", "reply": r"seen \1"},
        {"match": "", "reply": "anything"},
    ]
    settings = _settings(tmp_path, rules)
    assert _ask(settings, "ticket 42 please").message.content == "seen 42"
    assert _ask(settings, "hello").message.content == "anything"


def test_rules_may_look_at_the_system_prompt(tmp_path: Path) -> None:
    rules = [
        {"match": "polite", "where": "system", "reply": "Good day"},
        {"match": "", "reply": "hi"},
    ]
    settings = _settings(tmp_path, rules)
    assert _ask(settings, "x", system="be polite").message.content == "Good day"
    assert _ask(settings, "polite?").message.content == "hi"


def test_tool_calls_come_with_ids(tmp_path: Path) -> None:
    call = {"name": "assign_queue", "arguments": {"queue": "harbor"}}
    reply = _ask(_settings(tmp_path, [{"tool_calls": [call]}]), "x")
    assert reply.finish_reason == "tool_calls"
    assert reply.message.tool_calls[0].arguments == {"queue": "harbor"}
    assert reply.message.tool_calls[0].id


def test_of_several_replies_request_and_seed_choose(tmp_path: Path) -> None:
    settings = _settings(tmp_path, [{"reply": ["a", "b", "c"]}])
    said = [_ask(settings, "x", seed).message.content for seed in range(12)]
    assert said == [_ask(settings, "x", seed).message.content for seed in range(12)]
    assert set(said) == {"a", "b", "c"}


def test_usage_is_counted_and_priced_when_a_price_is_set(tmp_path: Path) -> None:
    settings = _settings(tmp_path, [{"reply": "fine"}])
    assert _ask(settings, "x").usage.cost_usd == 0.0
    settings.models.prices["scripted/desk"] = ModelPrice(input=1.0, output=1.0)
    usage = _ask(settings, "x").usage
    assert usage.tokens > 0
    assert usage.cost_usd > 0


def test_a_rule_can_fail_like_a_provider(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="overloaded"):
        _ask(_settings(tmp_path, [{"fail": "overloaded"}]), "x")


def test_an_unforeseen_request_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no rule for 'something else'"):
        _ask(_settings(tmp_path, [{"match": "ticket", "reply": "x"}]), "something else")


def test_scripts_are_off_by_default_and_stay_in_their_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="INSTAR_MODELS__SCRIPTS_DIR"):
        open_model("scripted/desk", Settings())
    inside = tmp_path / "scripts"
    inside.mkdir()
    (tmp_path / "outside.json").write_text('{"rules": [{}]}')
    settings = _settings(inside, [{}])
    with pytest.raises(UserError, match="outside"):
        open_model("scripted/../outside", settings)
    with pytest.raises(UserError, match=r"no script 'nobody'.*desk"):
        open_model("scripted/nobody", settings)


def test_a_broken_script_is_named_with_the_place(tmp_path: Path) -> None:
    settings = _settings(tmp_path, [{"reply": "x", "where": "nowhere"}])
    with pytest.raises(UserError, match=r"rules\.0\.where"):
        asyncio.run(check_model("scripted/desk", settings))
