"""The agent loop: protocols, limits, the gate, and what ends up in the trajectory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from instar.models.base import ModelReply, ModelRequest
from instar.models.litellm_client import INVALID_ARGUMENTS
from instar.runtime.gate import DefaultGate, Gate, GateDecision
from instar.runtime.loop import LoopContext, RunEvent, run_loop, run_reference
from instar.runtime.testing import MemoryCalls, ScriptedModel, calling
from instar.runtime.tools.listing import Catalogue, ListedTool, Listing, ToolEntry
from instar.runtime.tools.results import ToolResult
from instar_core.base import JsonValue, content_hash
from instar_core.candidates import Candidate, Harness, ToolServer
from instar_core.errors import ContextOverflow, ModelError, ToolServerError
from instar_core.messages import Message, ToolCall
from instar_core.rollouts import Trajectory
from instar_core.testing import ReplyScript
from instar_core.usage import Usage

OPENING = (Message(role="user", content="go"),)
CATALOGUE = Catalogue.build(
    [ToolServer(name="desk")],
    {
        "desk": Listing(
            (
                ListedTool(
                    "assign",
                    "",
                    {
                        "type": "object",
                        "properties": {"queue": {"type": "string"}},
                        "required": ["queue"],
                    },
                ),
                ListedTool("ping", "", {"type": "object"}),
            )
        )
    },
)


class Desk:
    """A tool host that notes its calls; ``ping`` asks for another ping, ``broken`` queues fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, JsonValue]]] = []
        self.replays: list[str] = []

    async def call(self, server: str, tool: str, arguments: dict[str, JsonValue]) -> ToolResult:
        self.calls.append((tool, arguments))
        if arguments.get("queue") == "dead":
            raise ToolServerError("the server died")
        if arguments.get("queue") == "broken":
            return ToolResult(text="no such queue", is_error=True)
        return ToolResult(text=f"{tool} ok")

    def replayed(
        self, server: str, tool: str, arguments: dict[str, JsonValue], result: ToolResult
    ) -> None:
        self.replays.append(tool)


def agent(protocol: str = "text", final: bool = False, **limits: Any) -> Candidate:
    return Candidate(
        components={},
        harness=Harness.model_validate(
            {
                "model": "m",
                "tool_protocol": protocol,
                "final_after_tool": final,
                "limits": limits,
                "tools": [{"name": "desk"}],
            }
        ),
    )


def run(
    candidate: Candidate,
    replies: Sequence[str | Message | Callable[..., Any]],
    *,
    desk: Desk | None = None,
    calls: MemoryCalls | None = None,
    model: Any = None,
    gate: Gate | None = None,
    events: list[RunEvent] | None = None,
) -> Trajectory:
    async def listen(event: RunEvent) -> None:
        if events is not None:
            events.append(event)

    context = LoopContext(
        candidate=candidate,
        client=model or ScriptedModel(ReplyScript([(lambda _: True, list(replies))])),
        catalogue=CATALOGUE,
        host=desk or Desk(),
        calls=calls or MemoryCalls(),
        gate=gate or DefaultGate(),
        seed=100,
        on_event=listen,
    )
    return asyncio.run(run_loop(context, OPENING))


ASSIGN = '{"tool": "assign", "queue": "harbor"}'


def test_an_answer_ends_the_loop_with_everything_recorded() -> None:
    model = ScriptedModel(ReplyScript([("go", "hello")]))
    trajectory = run(agent("none"), [], model=model)
    assert (trajectory.stop, trajectory.answer, trajectory.opening) == (
        "answered",
        "hello",
        OPENING,
    )
    step = trajectory.steps[0]
    assert step.request_hash == content_hash([OPENING[0].model_dump(mode="json")])
    assert (step.model, step.usage.tokens) == ("scripted 1", 15)
    assert step.usage.model_calls == 1
    assert model.requests[0].seed == 100


def test_a_text_call_is_carried_out_and_its_result_shown() -> None:
    desk, events = Desk(), list[RunEvent]()
    trajectory = run(agent(), [ASSIGN, "done"], desk=desk, events=events)
    assert desk.calls == [("assign", {"queue": "harbor"})]
    assert [step.kind for step in trajectory.steps] == ["model", "tool", "model"]
    assert trajectory.steps[1].message == Message(
        role="user", content="Result of assign: assign ok"
    )
    assert trajectory.answer == "done"
    assert [step.index for step in trajectory.steps] == [0, 1, 2]
    assert [event.kind for event in events] == ["step", "tool_started", "step", "step"]


def test_native_calls_of_one_reply_run_in_order_with_ids() -> None:
    desk = Desk()
    both = calling(("assign", {"queue": "a"}), ("assign", {"queue": "b"}))
    same = both.model_copy(
        update={
            "tool_calls": tuple(call.model_copy(update={"id": "x"}) for call in both.tool_calls)
        }
    )
    trajectory = run(agent("native"), [same, "done"], desk=desk)
    assert [arguments["queue"] for _, arguments in desk.calls] == ["a", "b"]
    asked = trajectory.steps[0].message.tool_calls
    assert len({call.id for call in asked}) == 2
    assert [step.message.tool_call_id for step in trajectory.steps[1:3]] == [
        call.id for call in asked
    ]


def test_final_after_tool_ends_with_the_first_executed_call() -> None:
    desk = Desk()
    trajectory = run(agent(final=True), ['{"tool": "nope"}', ASSIGN], desk=desk)
    assert trajectory.stop == "tool_final"
    assert trajectory.answer == "assign ok"
    assert len(desk.calls) == 1
    assert [step.kind for step in trajectory.steps] == ["model", "note", "model", "tool"]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ('{"tool": "assign", "queue"', "not a JSON object that can be read"),
        ('{"tool": "fly"}', "There is no tool 'fly'. Tools: assign, ping."),
        ('{"tool": "assign"}', "Wrong arguments for assign: 'queue' is a required property"),
        ('{"tool": "assign", "queue": 7}', "queue: 7 is not of type 'string'"),
    ],
)
def test_bad_calls_become_observations(reply: str, words: str) -> None:
    desk = Desk()
    trajectory = run(agent(), [reply, "sorry"], desk=desk)
    assert desk.calls == []
    note = trajectory.steps[1]
    assert (note.kind, note.is_error) == ("note", True)
    assert words in note.message.content
    assert trajectory.answer == "sorry"


def test_s61_native_arguments_that_are_no_object_are_an_error_not_coerced() -> None:
    desk = Desk()
    trajectory = run(
        agent("native"), [calling(("ping", {INVALID_ARGUMENTS: "[1]"})), "sorry"], desk=desk
    )
    assert desk.calls == []
    assert "must be a JSON object, not [1]" in trajectory.steps[1].message.content


def test_errors_of_tools_are_shown_to_the_model() -> None:
    trajectory = run(agent(), ['{"tool": "assign", "queue": "broken"}', "hm"])
    assert trajectory.steps[1].is_error
    assert trajectory.steps[1].message.content == "Error of assign: no such queue"


def test_a18_steps_are_limited() -> None:
    def ping(messages: Any) -> str:
        return f'{{"tool": "ping", "n": {len(messages)}}}'

    trajectory = run(agent(max_steps=3), [ping])
    assert trajectory.stop == "max_steps"
    assert [step.kind for step in trajectory.steps] == ["model", "tool"] * 3


def test_a18_two_tools_that_ask_for_each_other_end_by_identical_calls() -> None:
    desk = Desk()
    replies = ['{"tool": "ping"}', ASSIGN] * 10
    trajectory = run(agent(max_steps=50), replies, desk=desk)
    assert trajectory.stop == "identical_calls"
    assert len(desk.calls) == 6


def test_many_steps_are_not_stopped_by_the_graph_itself() -> None:
    def ping(messages: Any) -> str:
        return f'{{"tool": "ping", "n": {len(messages)}}}'

    assert run(agent(max_steps=60), [ping]).stop == "max_steps"


@pytest.mark.parametrize(
    ("limits", "usage", "stop"),
    [
        ({"max_tokens": 40}, Usage(input_tokens=10, output_tokens=5), "max_tokens"),
        ({"max_cost_usd": 0.25}, Usage(output_tokens=1, cost_usd=0.1), "max_cost"),
        ({"timeout_s": 2.0}, Usage(output_tokens=1, wall_s=1.0), "timeout"),
    ],
)
def test_a18_a_limit_stops_before_it_is_broken(
    limits: dict[str, Any], usage: Usage, stop: str
) -> None:
    model = ScriptedModel(ReplyScript([(lambda _: True, '{"tool": "ping"}')]), usage=usage)
    candidate = agent(max_identical_calls=99, **limits)
    trajectory = run(candidate, [], model=model)
    assert trajectory.stop == stop
    spent = sum((step.usage for step in trajectory.steps), Usage())
    assert len(model.requests) == 2
    assert spent.tokens <= candidate.harness.limits.max_tokens
    assert spent.cost_usd <= candidate.harness.limits.max_cost_usd


def test_overflow_is_the_agents_own_stop() -> None:
    model = ScriptedModel(ReplyScript([]), failures=[ContextOverflow("9000 tokens do not fit")])
    trajectory = run(agent(), [], model=model)
    assert trajectory.stop == "context_overflow"
    assert "9000" in trajectory.steps[0].message.content


def test_a_model_that_does_not_reply_in_time_stops_and_counts_as_spent() -> None:
    class Silent(ScriptedModel):
        async def complete(self, request: ModelRequest) -> ModelReply:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    trajectory = run(agent(timeout_s=0.05), [], model=Silent(ReplyScript([])))
    assert trajectory.stop == "timeout"
    assert trajectory.steps[0].usage.tokens == 15
    assert not trajectory.steps[0].usage.cost_known


def test_faults_outside_raise_and_are_never_an_observation() -> None:
    with pytest.raises(ModelError):
        run(agent(), [], model=ScriptedModel(ReplyScript([]), failures=[ModelError("503")]))
    with pytest.raises(ToolServerError, match="the server died"):
        run(agent(), ['{"tool": "assign", "queue": "dead"}'])


def test_no_conversation_leaves_for_a_tracing_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its variables set, LangGraph alone would post every run to the address they name."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = listener.getsockname()[1]
        monkeypatch.setenv("LANGSMITH_TRACING", "true")
        monkeypatch.setenv("LANGSMITH_API_KEY", "key")
        monkeypatch.setenv("LANGSMITH_ENDPOINT", f"http://127.0.0.1:{port}")
        from langsmith import utils

        environment: Any = utils.get_env_var
        environment.cache_clear()
        seen: list[bool] = []

        def reply(messages: Any) -> str:
            seen.append(bool(utils.tracing_is_enabled()))
            return "done"

        assert run(agent(), [reply]).answer == "done"
        with pytest.raises(BlockingIOError):
            listener.accept()
        environment.cache_clear()
    assert seen == [False]


def test_a32_a_broken_gate_refuses() -> None:
    class Broken:
        async def examine(
            self, call: ToolCall, entry: ToolEntry, candidate: Candidate
        ) -> GateDecision:
            raise RuntimeError("policy store away")

    desk = Desk()
    trajectory = run(agent(), [ASSIGN, "ok"], desk=desk, gate=Broken())
    assert desk.calls == []
    assert "could not be examined (RuntimeError)" in trajectory.steps[1].message.content


def test_a32_a_gate_that_answers_nonsense_refuses() -> None:
    class Nonsense:
        async def examine(self, call: ToolCall, entry: ToolEntry, candidate: Candidate) -> Any:
            return True

    desk = Desk()
    trajectory = run(agent(), [ASSIGN, "ok"], desk=desk, gate=Nonsense())
    assert desk.calls == []
    assert "could not be examined (TypeError)" in trajectory.steps[1].message.content


def test_a_replay_performs_nothing_and_gives_the_same_trajectory() -> None:
    first = MemoryCalls()
    before = run(agent(), [ASSIGN, "done"], calls=first)
    again, desk = MemoryCalls(first.outcomes), Desk()
    after = run(agent(), [], calls=again, desk=desk)
    assert after == before
    assert again.performed == 0
    assert desk.calls == []
    assert desk.replays == ["assign"]


def test_a_reference_goes_through_gate_and_tools_without_a_model() -> None:
    desk, model = Desk(), ScriptedModel(ReplyScript([]))
    context = LoopContext(
        candidate=agent(),
        client=model,
        catalogue=CATALOGUE,
        host=desk,
        calls=MemoryCalls(),
        gate=DefaultGate(),
    )
    actions = [ToolCall(name="assign", arguments={"queue": "a"})] * 5
    trajectory = asyncio.run(run_reference(context, OPENING, actions, "fine"))
    assert len(desk.calls) == 5
    assert trajectory.answer == "fine"
    assert model.requests == []
