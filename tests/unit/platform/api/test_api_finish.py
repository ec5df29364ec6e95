"""Finish reasons: what the OpenAI-compatible route says about how an answer ended."""

from __future__ import annotations

import pytest

from instar.api.chat import finish_of
from instar_core.messages import Message
from instar_core.rollouts import Step, StopReason, Trajectory


@pytest.mark.parametrize(
    ("stop", "said", "expected"),
    [
        ("answered", "stop", "stop"),
        ("answered", "length", "length"),
        ("tool_final", "length", "stop"),
        ("max_tokens", "stop", "length"),
        ("context_overflow", "", "length"),
        ("max_steps", "stop", "stop"),
    ],
)
def test_an_answer_cut_by_any_limit_ends_with_length(
    stop: StopReason, said: str, expected: str
) -> None:
    message = Message(role="assistant", content="so")
    step = Step(index=0, kind="model", message=message, finish_reason=said)
    assert finish_of(Trajectory(steps=(step,), stop=stop)) == expected
