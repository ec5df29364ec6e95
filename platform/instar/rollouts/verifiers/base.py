"""The contract of a verifier, and the few things all of them need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from instar_core.base import JsonValue, short
from instar_core.errors import VerifierError
from instar_core.messages import ToolCall
from instar_core.rollouts import Score, Trajectory
from instar_core.tasks import Task

__all__ = ["Verifier", "executed_calls", "quoted", "read_config", "same_json", "score"]

Config = TypeVar("Config", bound=BaseModel)


class Verifier(Protocol):
    """Scores finished trajectories of tasks that name it."""

    name: str
    needs_state: bool

    def check(self, task: Task) -> None:
        """Looks at the task's data before anything runs.

        Raises:
            VerifierError: If the task cannot be scored with what it says; names the key.
        """
        ...

    def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The reward in [0, 1] (higher is better), with feedback in words.

        Raises:
            VerifierError: If the verifier itself fails; never because of what the agent did.
        """
        ...


def read_config(kind: type[Config], task: Task) -> Config:
    """The task's verifier configuration as a model.

    Raises:
        VerifierError: Naming the key and what is wrong with it.
    """
    try:
        return kind.model_validate(task.verifier.config)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "config"
        allowed = ", ".join(sorted(kind.model_fields)) or "none"
        raise VerifierError(
            f"verifier {task.verifier.name!r}: {where}: {first['msg']} (keys: {allowed})"
        ) from error


def score(verifier: str, reward: float, feedback: str, **details: JsonValue) -> Score:
    """A score; the reward is clipped into [0, 1]."""
    return Score(
        reward=min(1.0, max(0.0, reward)), feedback=feedback, verifier=verifier, details=details
    )


def executed_calls(trajectory: Trajectory) -> list[ToolCall]:
    """The tool calls that really ran and did not report an error, in order."""
    return [
        step.tool_call
        for step in trajectory.steps
        if step.kind == "tool" and step.tool_call is not None and not step.is_error
    ]


def same_json(left: Any, right: Any) -> bool:
    """Equality of JSON values in which 1 equals 1.0 but neither equals true."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(
            same_json(part, right[key]) for key, part in left.items()
        )
    if isinstance(left, str) or isinstance(right, str):
        return isinstance(left, str) and isinstance(right, str) and left == right
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right)


def quoted(value: Any) -> str:
    """A value as feedback quotes it."""
    return short(repr(value), 120)
