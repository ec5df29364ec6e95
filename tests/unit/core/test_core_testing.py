"""The helpers that tests rely on: clock, ids, scripted replies."""

from __future__ import annotations

import uuid
from datetime import datetime

import pytest

from instar_core.messages import Message, Messages
from instar_core.testing import IdMaker, ManualClock, ReplyScript, UnseenPrompt


def ask(text: str) -> Messages:
    return (Message(role="user", content=text),)


def test_a_manual_clock_moves_only_when_told_and_never_back() -> None:
    clock = ManualClock()
    start = clock.now()
    assert clock.now() == start
    assert (clock.advance(1.5) - start).total_seconds() == 1.5
    assert clock.monotonic() == 1.5
    with pytest.raises(ValueError, match="never runs back"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(datetime(2026, 1, 1))


def test_made_ids_repeat_sort_and_are_valid() -> None:
    first, second = IdMaker(), IdMaker()
    ids = [first() for _ in range(300)]
    assert ids == [second() for _ in range(300)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 300
    assert {uuid.UUID(text).version for text in ids} == {7}
    assert IdMaker(1)() != ids[0]


def test_a_script_answers_by_hash_then_by_rule_in_order() -> None:
    known = ask("exactly this")
    script = ReplyScript(
        [
            ("ticket", ["first", "second"]),
            (lambda messages: len(messages) == 2, lambda messages: messages[0].content.upper()),
        ],
        by_hash={ReplyScript.hash_of(known): Message(role="assistant", content="by hash")},
    )
    assert script.reply(known).content == "by hash"
    assert [script.reply(ask("a ticket")).content for _ in range(3)] == [
        "first",
        "second",
        "second",
    ]
    assert script.reply(ask("x") + ask("y")).content == "X"
    assert len(script.seen) == 5


def test_an_unseen_prompt_fails_the_test() -> None:
    with pytest.raises(UnseenPrompt, match="no scripted reply for the prompt ending 'boo'"):
        ReplyScript([("ticket", "ok")]).reply(ask("boo"))
