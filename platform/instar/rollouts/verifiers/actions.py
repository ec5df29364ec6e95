"""Verifiers of what an agent did: the tool calls it made, the state it left behind."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from instar.rollouts.verifiers.base import (
    executed_calls,
    quoted,
    read_config,
    same_json,
    score,
)
from instar_core.base import Frozen, JsonValue
from instar_core.errors import VerifierError
from instar_core.messages import ToolCall
from instar_core.rollouts import Score, Trajectory
from instar_core.tasks import Task

__all__ = ["State", "ToolCalls"]


class ToolCallsConfig(Frozen):
    """Calls that must have been made; the task's reference actions when none are named.

    ``exact`` wants these calls and no others in this order, ``any`` the same calls in any order,
    ``contains`` at least these, in any order.
    """

    expected: tuple[ToolCall, ...] = ()
    order: Literal["exact", "any", "contains"] = "exact"
    ignore: tuple[str, ...] = Field(
        default=(), description="tools whose calls do not count, such as ones that only read"
    )


class ToolCalls:
    """The calls that were made are the expected ones."""

    name = "tool_calls"
    needs_state = False

    def check(self, task: Task) -> None:
        """See :class:`~instar.rollouts.verifiers.base.Verifier`."""
        self._wanted(task, read_config(ToolCallsConfig, task))

    def _wanted(self, task: Task, config: ToolCallsConfig) -> list[ToolCall]:
        wanted = [
            call
            for call in config.expected or task.reference_actions
            if call.name not in config.ignore
        ]
        if not wanted:
            raise VerifierError(
                "verifier 'tool_calls': needs 'expected' in its config, or the task's "
                "reference_actions"
            )
        return wanted

    def score(self, task: Task, trajectory: Trajectory) -> Score:
        """1 when the calls match, else 0; the feedback names the first difference."""
        config = read_config(ToolCallsConfig, task)
        wanted = self._wanted(task, config)
        made = [call for call in executed_calls(trajectory) if call.name not in config.ignore]
        if config.order == "exact":
            problem = _first_difference(wanted, made)
        else:
            problem = _unmatched(wanted, made, extra_allowed=config.order == "contains")
        if problem is None:
            return score(self.name, 1.0, "The calls are right.")
        return score(self.name, 0.0, problem)


def _same(left: ToolCall, right: ToolCall) -> bool:
    return left.name == right.name and same_json(left.arguments, right.arguments)


def _words(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={part!r}' for key, part in call.arguments.items())})"


def _first_difference(wanted: list[ToolCall], made: list[ToolCall]) -> str | None:
    for position, call in enumerate(wanted):
        if position >= len(made):
            return f"The call {_words(call)} is missing."
        if not _same(call, made[position]):
            return f"Call {position + 1} was {_words(made[position])}; expected was {_words(call)}."
    if len(made) > len(wanted):
        return f"The call {_words(made[len(wanted)])} was not expected."
    return None


def _unmatched(wanted: list[ToolCall], made: list[ToolCall], *, extra_allowed: bool) -> str | None:
    left = list(made)
    for call in wanted:
        found = next((index for index, one in enumerate(left) if _same(call, one)), None)
        if found is None:
            return f"The call {_words(call)} is missing."
        left.pop(found)
    if left and not extra_allowed:
        return f"The call {_words(left[0])} was not expected."
    return None


class StateConfig(Frozen):
    """What the environment's final state must hold: dotted path → value.

    A path starts with the name of a state query; numbers are places in a list: ``ticket.0.queue``.
    A whole part may be expected too (``{"ticket": [{"queue": "harbor"}]}``), then it must be equal.
    ``partial`` gives the share of paths that hold instead of all or nothing.
    """

    expect: dict[str, JsonValue] = Field(min_length=1)
    partial: bool = False


class State:
    """The environment's final state holds the expected values."""

    name = "state"
    needs_state = True

    def check(self, task: Task) -> None:
        """See :class:`~instar.rollouts.verifiers.base.Verifier`."""
        read_config(StateConfig, task)

    def score(self, task: Task, trajectory: Trajectory) -> Score:
        """1 when every path holds its value (or the share that does), else 0."""
        config = read_config(StateConfig, task)
        if trajectory.final_state is None:
            raise VerifierError(
                "verifier 'state': the environment has no final state; the tool server's test "
                "binding needs 'state'"
            )
        wrong = []
        for path, wanted in config.expect.items():
            found, value = _at(trajectory.final_state, path)
            if not found:
                wrong.append(f"{path} is missing; expected was {quoted(wanted)}")
            elif not same_json(value, wanted):
                wrong.append(f"{path} was {quoted(value)}; expected was {quoted(wanted)}")
        share = 1.0 - len(wrong) / len(config.expect)
        if not wrong:
            return score(self.name, 1.0, "The state is right.")
        return score(self.name, share if config.partial else 0.0, "; ".join(wrong) + ".")


def _at(value: Any, path: str) -> tuple[bool, Any]:
    for part in path.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return False, None
    return True, value
