"""The text tool protocol: tolerant in form, never in content."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.runtime.text_tools import parse_reply, render_call, render_tools
from instar_core.base import JsonValue, canonical_json
from instar_core.messages import ToolCall, ToolDefinition

RIGHT: dict[str, JsonValue] = {"queue": "harbor", "ticket": 7}


@pytest.mark.parametrize(
    "reply",
    [
        '{"tool": "assign", "queue": "harbor", "ticket": 7}',
        'Of course!\n```json\n{"tool": "assign", "queue": "harbor", "ticket": 7}\n```\nDone.',
        "{'tool': 'assign', 'queue': 'harbor', 'ticket': 7}",
        '{"tool": "assign", "queue": "harbor", "ticket": 7,}',
        '{"tool": "assign", "queue": "harbor", "ticket": 7',
        '{"tool": "assign", "ticket": 7, "queue": "harbor',
        '```\n{"tool": "assign", "queue": "harbor", "ticket": 7,\n```',
        '{tool: "assign", queue: "harbor", ticket: 7}',
        "{“tool”: “assign”, “queue”: “harbor”, “ticket”: 7}",
        '{"tool": "assign", "arguments": {"queue": "harbor", "ticket": 7}}',
        '{"name": "assign", "arguments": {"queue": "harbor", "ticket": 7}}',
        '{"name": "assign", "parameters": {"queue": "harbor", "ticket": 7}}',
        '{"tool_call": {"name": "assign", "arguments": {"queue": "harbor", "ticket": 7}}}',
        '{"tool": {"name": "assign", "arguments": {"queue": "harbor", "ticket": 7}}}',
        '[{"tool": "assign", "queue": "harbor", "ticket": 7}]',
        'I think {this} is it: {"tool": "assign", "queue": "harbor", "ticket": 7}',
        '{"tool": "assign", "queue": "harbor", "ticket": 7} {"tool": "other"}',
    ],
)
def test_a_well_meant_call_is_read(reply: str) -> None:
    call = parse_reply(reply, call_id="x").call
    assert call == ToolCall(id="x", name="assign", arguments=RIGHT)


@pytest.mark.parametrize(
    "reply",
    ["harbor", "", "The set is {1, 2}.", '{"queue": "harbor"}', "It isn't {easy}", "[1, 2]"],
)
def test_an_answer_stays_an_answer(reply: str) -> None:
    parsed = parse_reply(reply)
    assert parsed.call is None
    assert parsed.problem == ""


@pytest.mark.parametrize(
    "reply",
    [
        '{"tool": assign queue harbor}',
        "{tool: assign}",
        '{"tool":"a","x":{"y":[1,2}',
        '{"tool": "a", "x": NaN}',
        '{"tool": "a", "x": "\\ud800"}',
        '{"tool": "a", "x": 1e999}',
        '{"tool": 7}',
    ],
)
def test_what_cannot_be_read_is_a_problem_in_words(reply: str) -> None:
    parsed = parse_reply(reply)
    assert parsed.call is None
    assert "JSON object" in parsed.problem


def test_apostrophes_inside_values_are_kept() -> None:
    call = parse_reply("{'tool': 'say', 'text': \"it's fine\"}").call
    assert call is not None
    assert call.arguments == {"text": "it's fine"}
    call = parse_reply('{"tool": "say", "text": "don\'t {stop} now"}').call
    assert call is not None
    assert call.arguments == {"text": "don't {stop} now"}


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="{}[]\"':,tol ab\\1\n`", max_size=60))
def test_no_reply_breaks_the_parser(reply: str) -> None:
    parsed = parse_reply(reply)
    if parsed.call is not None:
        canonical_json(parsed.call)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=10),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=6,
        ),
        max_size=4,
    )
)
def test_a_rendered_call_is_read_back(arguments: dict[str, object]) -> None:
    call = ToolCall.model_validate({"name": "assign", "arguments": arguments})
    if set(arguments) == {"arguments"} and isinstance(arguments["arguments"], dict):
        return  # the one shape that two spellings share
    assert parse_reply(render_call(call)).call == call


def test_hostile_lengths_are_read_in_linear_time() -> None:
    assert parse_reply("{'" * 50_000).call is None
    assert parse_reply('{"tool": "a", "x": "' + "'" * 90_000).call is not None


def test_tools_are_described_in_one_line_each() -> None:
    tool = ToolDefinition(
        name="assign",
        description="Puts a ticket\n into a queue.",
        parameters={
            "type": "object",
            "properties": {
                "ticket": {"type": "integer"},
                "queue": {"enum": ["harbor", "lantern"]},
                "note": {"type": ["string", "null"]},
            },
            "required": ["ticket", "queue"],
        },
    )
    last = render_tools((tool,)).splitlines()[-1]
    assert last == (
        '- assign(ticket: integer, queue: "harbor"|"lantern", note?: string|null): '
        "Puts a ticket into a queue."
    )
    assert json.loads(render_call(ToolCall(name="assign", arguments={"tool": 1}))) == {
        "tool": "assign",
        "arguments": {"tool": 1},
    }
