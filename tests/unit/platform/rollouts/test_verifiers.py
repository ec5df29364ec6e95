"""Verifiers: the reference scores 1, silence scores 0, and the feedback says what was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.rollouts.verifiers import registry
from instar.rollouts.verifiers.base import same_json
from instar.rollouts.verifiers.registry import find_verifier, list_verifiers
from instar_core.errors import VerifierError
from instar_core.messages import Message, ToolCall
from instar_core.rollouts import Score, Step, Trajectory
from instar_core.tasks import Task


def task(name: str, config: dict[str, Any] | None = None, **more: Any) -> Task:
    return Task.model_validate(
        {
            "id": "t",
            "input": "q",
            "split": "train",
            "group": "g",
            "verifier": {"name": name, "config": config or {}},
            **more,
        }
    )


def judge(one: Task, answer: str = "", **more: Any) -> Score:
    verifier = find_verifier(one.verifier.name)
    verifier.check(one)
    return verifier.score(one, Trajectory(answer=answer, **more))


def did(*calls: ToolCall, error: Sequence[int] = ()) -> tuple[Step, ...]:
    return tuple(
        Step(
            index=place,
            kind="tool",
            message=Message(role="user"),
            tool_call=call,
            is_error=place in error,
        )
        for place, call in enumerate(calls)
    )


@pytest.mark.parametrize(
    ("name", "config", "right", "wrong"),
    [
        ("exact", {"answer": "Lantern Queue"}, " Lantern   Queue\n", "lantern queue"),
        ("exact", {"answer": "yes", "ignore_case": True, "accept": ["y"]}, "Y", "no"),
        ("exact", {"answer": "7", "after": "####"}, "3 + 4 #### 7", "7"),
        ("numeric", {"answer": 1234.5}, "It is 1,234.5 dollars.", "It is 1,234.6."),
        ("numeric", {"answer": 10, "relative": 0.1}, "10.9", "11.2"),
        ("numeric", {"answer": -3}, "−3", "3"),
        ("numeric", {"answer": 2e-9, "tolerance": 0}, "2e-9", "nothing"),
        ("regex", {"pattern": r"#\d+"}, "see #12", "see 12"),
        ("regex", {"pattern": r"[a-z]+", "whole": True}, "abc\n", "abc d"),
        (
            "json_schema",
            {"schema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            '```json\n{"n": 1}\n```',
            '{"n": "1"}',
        ),
        ("json_schema", {"schema": {"type": "array", "minItems": 1}}, "[1]", "not json"),
    ],
)
def test_answers(name: str, config: dict[str, Any], right: str, wrong: str) -> None:
    one = task(name, config)
    assert judge(one, right).reward == 1.0
    assert judge(one, wrong).reward == 0.0
    silence = judge(one, "")
    assert silence.reward == 0.0
    assert silence.feedback
    assert silence.verifier == name


def test_the_reference_answer_is_the_default() -> None:
    assert judge(task("exact", reference_answer="x"), "x").reward == 1.0
    assert judge(task("numeric", reference_answer="1,000"), "1000").reward == 1.0


def test_feedback_quotes_given_and_expected() -> None:
    assert judge(task("exact", {"answer": "harbor"}), "blue").feedback == (
        "The answer was 'blue'; expected was 'harbor'."
    )
    assert "was 3; expected was 4" in judge(task("numeric", {"answer": 4}), "so 3").feedback


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("exact", {}, "needs 'answer'"),
        ("exact", {"answers": "x"}, r"answers: Extra inputs .*keys: accept, after, answer"),
        ("numeric", {"answer": "many"}, "answer"),
        ("regex", {"pattern": "("}, "is not a pattern"),
        ("regex", {"pattern": ".*"}, "matches the empty answer"),
        ("json_schema", {}, "schema: Field required"),
        ("json_schema", {"schema": {"type": "thing"}}, "schema"),
        ("tool_calls", {}, "needs 'expected'"),
        ("tool_calls", {"expected": [{"name": "a"}], "order": "random"}, "order"),
        ("state", {"expect": {}}, "expect"),
        ("reasoning_gym", {"dataset": "nope", "seed": 1, "size": 1, "index": 0}, "no dataset"),
    ],
)
def test_configurations_are_checked_before_anything_runs(
    name: str, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(VerifierError, match=words):
        find_verifier(name).check(task(name, config))


READ = ToolCall(name="read", arguments={"ticket": 7})
ASSIGN = ToolCall(name="assign", arguments={"ticket": 7, "queue": "harbor"})
CLOSE = ToolCall(id="other", name="close", arguments={"ticket": 7.0})


@pytest.mark.parametrize(
    ("order", "made", "reward"),
    [
        ("exact", [ASSIGN, CLOSE], 1.0),
        ("exact", [CLOSE, ASSIGN], 0.0),
        ("exact", [READ, ASSIGN, CLOSE], 1.0),
        ("exact", [ASSIGN, ASSIGN, CLOSE], 0.0),
        ("exact", [ASSIGN], 0.0),
        ("exact", [], 0.0),
        ("any", [CLOSE, ASSIGN], 1.0),
        ("any", [CLOSE, ASSIGN, ASSIGN], 0.0),
        ("contains", [CLOSE, ASSIGN, ASSIGN], 1.0),
        ("contains", [CLOSE], 0.0),
    ],
)
def test_calls(order: str, made: list[ToolCall], reward: float) -> None:
    expected = [ASSIGN.model_dump(), {"name": "close", "arguments": {"ticket": 7}}]
    one = task("tool_calls", {"expected": expected, "order": order, "ignore": ["read"]})
    found = judge(one, steps=did(*made))
    assert found.reward == reward
    if not reward:
        assert "assign(" in found.feedback or "close(" in found.feedback


def test_reference_actions_are_the_default_and_failed_calls_do_not_count() -> None:
    one = task("tool_calls", reference_actions=[ASSIGN.model_dump()])
    assert judge(one, steps=did(ASSIGN)).reward == 1.0
    assert judge(one, steps=did(ASSIGN, error=[0])).reward == 0.0


def test_states() -> None:
    state = {"ticket": [{"queue": "harbor", "priority": 2}], "open": 3}
    expect = {"ticket.0.queue": "harbor", "open": 3.0}
    assert judge(task("state", {"expect": expect}), final_state=state).reward == 1.0
    wrong = {"ticket.0.queue": "lantern", "ticket.1.queue": "x", "open": 3, "open.x": 1}
    found = judge(task("state", {"expect": wrong}), final_state=state)
    assert found.reward == 0.0
    assert "ticket.0.queue was 'harbor'; expected was 'lantern'" in found.feedback
    assert "ticket.1.queue is missing" in found.feedback
    assert (
        judge(task("state", {"expect": wrong, "partial": True}), final_state=state).reward == 0.25
    )
    with pytest.raises(VerifierError, match="needs 'state'"):
        judge(task("state", {"expect": expect}))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_json_equality_is_reflexive_and_tells_true_from_one(value: Any) -> None:
    assert same_json(value, value)
    assert same_json([value], [value])
    assert not same_json(True, 1)
    assert not same_json({"a": value}, {"b": value})
    assert not same_json("ab", ["a", "b"])


def test_the_registry_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"exact", "numeric", "regex", "json_schema", "tool_calls", "state"} <= set(
        list_verifiers()
    )
    points = [
        EntryPoint("mine", f"{__name__}:Mine", registry.GROUP),
        EntryPoint("exact", f"{__name__}:Mine", registry.GROUP),
        EntryPoint("half", f"{__name__}:Half", registry.GROUP),
        EntryPoint("gone", "no.such:thing", registry.GROUP),
        EntryPoint("twice", f"{__name__}:Mine", registry.GROUP),
        EntryPoint("twice", f"{__name__}:Half", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    find_verifier.cache_clear()
    try:
        assert find_verifier("mine").score(task("mine"), Trajectory()).reward == 0.5
        for name, words in (
            ("exact", "built-in name"),
            ("half", "lacks check, needs_state"),
            ("gone", "cannot be loaded"),
            ("twice", "several installed packages"),
            ("none", "there is no verifier 'none'; there are: .*mine"),
        ):
            with pytest.raises(VerifierError, match=words):
                find_verifier(name)
    finally:
        find_verifier.cache_clear()


class Mine:
    """A verifier as another package would bring it."""

    name = "mine"
    needs_state = False

    def check(self, task: Task) -> None:
        """Nothing to check."""

    def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Half, always."""
        return Score(reward=0.5, verifier="mine")


class Half:
    """Not a verifier."""

    name = "half"

    def score(self) -> None:
        """Nothing."""
