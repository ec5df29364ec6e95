"""The agent loop: model, tools, model … as a LangGraph graph, until an answer or a limit.

Every model and tool call goes through :class:`~instar_core.lab.Calls`, so that inside evolution it
is journalled and metered, and every tool call passes the gate first. Elapsed time is the sum of
what the calls took, as recorded: a replay stops where the first run stopped. There is no
checkpointer; the journal is the one truth.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol, TypedDict

from instar.models.base import ModelClient, ModelReply, ModelRequest
from instar.runtime.gate import Gate, GateDecision, OnDecision, examine
from instar.runtime.text_tools import parse_reply, render_result
from instar.runtime.tools.listing import Catalogue, ToolEntry, ToolHost
from instar.runtime.tools.results import ToolResult
from instar_core.base import Frozen, JsonValue, content_hash
from instar_core.candidates import Candidate
from instar_core.errors import ContextOverflow
from instar_core.lab import CallOutcome, Calls
from instar_core.messages import Message, Messages, ToolCall
from instar_core.rollouts import Step, StopReason, Trajectory
from instar_core.usage import Amount, Usage

__all__ = ["LoopContext", "OnEvent", "RunEvent", "run_loop", "run_reference"]


class RunEvent(Frozen):
    """Something that just happened in a run: a step was finished, or a tool was started."""

    kind: Literal["step", "tool_started"]
    step: Step | None = None
    call: ToolCall | None = None


OnEvent = Callable[[RunEvent], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class LoopContext:
    """What one loop works with; ``seed`` is the base of the seeds of its model calls.

    ``on_decision`` writes the gate's decisions into the audit chain of a run in production; in
    rollouts they follow from what the journal holds, and nothing is written beside it.
    """

    candidate: Candidate
    client: ModelClient
    catalogue: Catalogue
    host: ToolHost
    calls: Calls
    gate: Gate
    seed: int = 0
    on_event: OnEvent | None = None
    on_decision: OnDecision | None = None

    async def record(self, call: ToolCall, decision: GateDecision) -> None:
        """Has the gate's decision written down; if that fails, the run ends before the call."""
        if self.on_decision is not None:
            await self.on_decision(call, decision)

    async def tell(self, event: RunEvent) -> None:
        """Passes an event on to whoever listens."""
        if self.on_event is not None:
            await self.on_event(event)


class LoopState(TypedDict):
    """What the graph's nodes hand on."""

    messages: Messages
    steps: tuple[Step, ...]
    pending: tuple[ToolCall, ...]
    usage: Usage
    model_calls: int
    asked: dict[str, int]
    stop: StopReason | None
    answer: str


class _Runtime(Protocol):
    @property
    def context(self) -> LoopContext: ...


@dataclass(slots=True)
class _Log:
    """Collects the steps, messages and usage that one node adds."""

    state: LoopState
    context: LoopContext
    steps: list[Step] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    usage: Usage = Usage()

    async def add(self, step: Step) -> None:
        """Appends a step and its message, and tells whoever listens."""
        self.steps.append(step.model_copy(update={"index": self.next_index}))
        self.messages.append(step.message)
        self.usage = self.usage + step.usage
        await self.context.tell(RunEvent(kind="step", step=self.steps[-1]))

    @property
    def next_index(self) -> int:
        """The index of the step to come."""
        return len(self.state["steps"]) + len(self.steps)

    def update(self, **changes: Any) -> dict[str, Any]:
        """The node's result: what was collected, and further changes of the state."""
        return {
            "steps": (*self.state["steps"], *self.steps),
            "messages": (*self.state["messages"], *self.messages),
            "usage": self.state["usage"] + self.usage,
            **changes,
        }


async def run_loop(context: LoopContext, opening: Messages) -> Trajectory:
    """Runs the agent from its opening messages to an answer or a limit.

    Returns:
        The trajectory with every step. Limits, malformed calls and failing tools are part of it.

    Raises:
        InfrastructureError: Model or tool server failed; the attempt does not count.
        BudgetExhausted: The journal could not reserve for the next call.
        UserError: The provider refuses the request itself (unknown model, bad key).
    """
    from langsmith import tracing_context

    limits = context.candidate.harness.limits
    # LangGraph would send whole conversations to LangSmith when its variables happen to be set.
    with tracing_context(enabled=False):
        final = await _graph().ainvoke(
            _start(opening), config={"recursion_limit": 2 * limits.max_steps + 4}, context=context
        )
    return Trajectory(
        opening=opening,
        steps=final["steps"],
        stop=final["stop"] or "answered",
        answer=final["answer"],
    )


async def run_reference(
    context: LoopContext, opening: Messages, actions: Sequence[ToolCall], answer: str | None
) -> Trajectory:
    """Replays a task's reference actions through gate and tools, without asking a model.

    Args:
        context: As for :func:`run_loop`; the model client is not used.
        opening: Recorded as the trajectory's opening.
        actions: The calls to carry out, in order.
        answer: The final answer, if the task has one.

    Returns:
        The trajectory that a perfect agent would leave.
    """
    state = _start(opening)
    state["pending"] = tuple(
        call if call.id else call.model_copy(update={"id": f"reference_{position}"})
        for position, call in enumerate(actions)
    )
    final = await _carry_out(state, context, end_after_first=False, may_repeat=True)
    return Trajectory(opening=opening, steps=final["steps"], answer=answer or "")


@lru_cache(maxsize=1)
def _graph() -> Any:
    from langgraph.graph import END, START, StateGraph

    builder: Any = StateGraph(LoopState, context_schema=LoopContext)
    builder.add_node("model", _model_node)
    builder.add_node("tools", _tools_node)
    builder.add_edge(START, "model")
    places = {"model": "model", "tools": "tools", "end": END}
    builder.add_conditional_edges("model", _next, places)
    builder.add_conditional_edges("tools", _next, places)
    return builder.compile()


def _start(opening: Messages) -> LoopState:
    return {
        "messages": opening,
        "steps": (),
        "pending": (),
        "usage": Usage(),
        "model_calls": 0,
        "asked": {},
        "stop": None,
        "answer": "",
    }


def _next(state: LoopState) -> str:
    if state["stop"] is not None:
        return "end"
    return "tools" if state["pending"] else "model"


def _limit_reached(state: LoopState, context: LoopContext, reserve: Amount) -> StopReason | None:
    """The limit that the next model call would break, if any; checked before spending."""
    limits, used = context.candidate.harness.limits, state["usage"]
    if state["model_calls"] >= limits.max_steps:
        return "max_steps"
    if used.wall_s >= limits.timeout_s:
        return "timeout"
    if used.tokens + reserve.tokens > limits.max_tokens:
        return "max_tokens"
    if used.cost_usd + reserve.cost_usd > limits.max_cost_usd:
        return "max_cost"
    return None


async def _model_node(state: LoopState, runtime: _Runtime) -> dict[str, Any]:
    """Asks the model once, unless a limit would be broken, and sorts its reply."""
    context, log = runtime.context, _Log(state, runtime.context)
    harness = context.candidate.harness
    native = harness.tool_protocol == "native"
    number = state["model_calls"]
    request = ModelRequest(
        model=harness.model,
        messages=state["messages"],
        sampling=harness.sampling,
        tools=context.catalogue.definitions if native else (),
        seed=(context.seed + number) % 2**31,
    )
    reserve = context.client.reserve_for(request)
    if (stop := _limit_reached(state, context, reserve)) is not None:
        return {"stop": stop}
    left_s = harness.limits.timeout_s - state["usage"].wall_s
    outcome = await context.calls.call(
        "model_call",
        request.model_dump(mode="json"),
        lambda: _ask(context.client, request, reserve, left_s),
        reserve=reserve,
    )
    if isinstance(outcome.value, dict) and (failed := outcome.value.get("stop")) is not None:
        words = Message(role="user", content=str(outcome.value.get("reason", "")))
        await log.add(Step(index=0, kind="note", message=words, is_error=True, usage=outcome.usage))
        return log.update(stop=failed, model_calls=number + 1)
    reply = ModelReply.model_validate(outcome.value)
    message = _with_ids(reply.message, number) if native else _text_only(reply.message)
    await log.add(
        Step(
            index=0,
            kind="model",
            message=message,
            request_hash=content_hash([turn.model_dump(mode="json") for turn in request.messages]),
            model=reply.fingerprint or harness.model,
            finish_reason=reply.finish_reason,
            capture=reply.capture,
            usage=outcome.usage,
        )
    )
    return await _sort_reply(message, number, log)


async def _sort_reply(message: Message, number: int, log: _Log) -> dict[str, Any]:
    """What a reply means: pending calls, a call that cannot be read, or the answer."""
    protocol = log.context.candidate.harness.tool_protocol
    if protocol == "native" and message.tool_calls:
        return log.update(pending=message.tool_calls, model_calls=number + 1)
    if protocol == "text":
        parsed = parse_reply(message.content, call_id=f"call_{number}")
        if parsed.call is not None:
            return log.update(pending=(parsed.call,), model_calls=number + 1)
        if parsed.problem:
            problem = Message(role="user", content=parsed.problem)
            await log.add(Step(index=0, kind="note", message=problem, is_error=True))
            return log.update(model_calls=number + 1)
    return log.update(stop="answered", answer=message.content, model_calls=number + 1)


async def _tools_node(state: LoopState, runtime: _Runtime) -> dict[str, Any]:
    harness = runtime.context.candidate.harness
    return await _carry_out(state, runtime.context, end_after_first=harness.final_after_tool)


async def _carry_out(
    state: LoopState,
    context: LoopContext,
    *,
    end_after_first: bool,
    may_repeat: bool = False,
) -> dict[str, Any]:
    """Carries out the pending calls in order; several calls of one reply run one after another."""
    log = _Log(state, context)
    harness, asked = context.candidate.harness, dict(state["asked"])
    for call in state["pending"]:
        key = content_hash([call.name, call.arguments])
        asked[key] = asked.get(key, 0) + 1
        if asked[key] > harness.limits.max_identical_calls and not may_repeat:
            return log.update(pending=(), asked=asked, stop="identical_calls")
        decision = await examine(context.gate, call, context.catalogue, context.candidate)
        await context.record(call, decision)
        entry = context.catalogue.find(call.name)
        if not decision.allowed or entry is None:
            turn = _observation(call, decision.reason, native=harness.tool_protocol == "native")
            await log.add(Step(index=0, kind="note", message=turn, tool_call=call, is_error=True))
            continue
        await context.tell(RunEvent(kind="tool_started", call=call))
        result, usage = await _run_tool(context, entry, call)
        turn = _observation(
            call,
            result.text,
            native=harness.tool_protocol == "native",
            is_error=result.is_error,
        )
        await log.add(
            Step(
                index=0,
                kind="tool",
                message=turn,
                tool_call=call,
                is_error=result.is_error,
                usage=usage,
            )
        )
        if end_after_first:
            return log.update(pending=(), asked=asked, stop="tool_final", answer=result.text)
    return log.update(pending=(), asked=asked)


async def _ask(
    client: ModelClient, request: ModelRequest, reserve: Amount, left_s: float
) -> CallOutcome:
    """One model call; overflow and the run's own time-out are outcomes, not errors."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(left_s):
            reply = await client.complete(request)
    except ContextOverflow as error:
        spent = Usage(model_calls=1, wall_s=time.monotonic() - started)
        return CallOutcome(value={"stop": "context_overflow", "reason": str(error)}, usage=spent)
    except TimeoutError:
        # What the provider did meanwhile is unknown, so the whole reservation counts as spent.
        spent = Usage(
            input_tokens=reserve.tokens,
            model_calls=1,
            cost_usd=reserve.cost_usd,
            cost_known=False,
            wall_s=time.monotonic() - started,
        )
        reason = f"the model did not reply in the {left_s:.1f} s that were left"
        return CallOutcome(value={"stop": "timeout", "reason": reason}, usage=spent)
    used = reply.usage
    usage = used.model_copy(
        update={
            "model_calls": used.model_calls or 1,
            "wall_s": used.wall_s or time.monotonic() - started,
        }
    )
    return CallOutcome(value=reply.model_dump(mode="json"), usage=usage)


async def _run_tool(
    context: LoopContext, entry: ToolEntry, call: ToolCall
) -> tuple[ToolResult, Usage]:
    """One tool call through the journal; the host is told when the journal already had it."""
    performed = False

    async def perform() -> CallOutcome:
        nonlocal performed
        performed = True
        started = time.monotonic()
        result = await context.host.call(entry.server, entry.tool, call.arguments)
        usage = Usage(tool_calls=1, wall_s=time.monotonic() - started)
        return CallOutcome(value=result.model_dump(mode="json"), usage=usage)

    request: dict[str, JsonValue] = {
        "server": entry.server,
        "tool": entry.tool,
        "arguments": call.arguments,
    }
    outcome = await context.calls.call("tool_call", request, perform, reserve=Amount())
    result = ToolResult.model_validate(outcome.value)
    if not performed:
        context.host.replayed(entry.server, entry.tool, call.arguments, result)
    return result, outcome.usage


def _observation(call: ToolCall, text: str, *, native: bool, is_error: bool = False) -> Message:
    """What the model is told about a call, in its own tool protocol."""
    if native:
        return Message(role="tool", content=text, tool_call_id=call.id, name=call.name)
    return Message(role="user", content=render_result(call.name, text, is_error=is_error))


def _with_ids(message: Message, number: int) -> Message:
    """The message with an id on every tool call, none twice, as providers demand it."""
    seen: set[str] = set()
    calls = []
    for position, call in enumerate(message.tool_calls):
        wanted = call.id if call.id and call.id not in seen else f"call_{number}_{position}"
        seen.add(wanted)
        calls.append(call.model_copy(update={"id": wanted}))
    return message.model_copy(update={"tool_calls": tuple(calls)})


def _text_only(message: Message) -> Message:
    """The message without native calls, which the text protocol neither offers nor answers."""
    return message.model_copy(update={"tool_calls": ()}) if message.tool_calls else message
