"""Tasks: an input plus the data a verifier needs, in three splits by group key.

Tasks that share a phrasing, a source or a customer share a ``group``; a group never crosses splits,
and on the sealed split one group gives one pair per proposal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from pydantic import Field

from instar_core.base import Frozen, JsonValue, content_hash, short
from instar_core.errors import UserError
from instar_core.messages import ToolCall

__all__ = ["Split", "Splits", "Task", "VerifierSpec", "check_tasks"]

Split = Literal["train", "validation", "sealed"]


class VerifierSpec(Frozen):
    """Which verifier scores the task and with what data: ``exact``, ``numeric``, ``regex``,
    ``json_schema``, ``tool_calls``, ``state``, or a registered one such as ``reasoning_gym``."""

    name: str
    config: dict[str, JsonValue] = Field(default_factory=dict)


class Task(Frozen):
    """One task: input text, verifier, split and group, with optional environment and references."""

    id: str
    input: str
    split: Split
    group: str
    verifier: VerifierSpec
    environment: dict[str, JsonValue] = Field(
        default_factory=dict, description="initial state, read by the test binding's reset"
    )
    reference_actions: tuple[ToolCall, ...] = ()
    reference_answer: str | None = None
    slice: str = "default"
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @cached_property
    def content_digest(self) -> str:
        """The sha256 of all that defines the task (not its id, split or metadata)."""
        dumped = self.model_dump(mode="json", exclude={"id", "split", "metadata"})
        return content_hash(dumped)


class Splits(Frozen):
    """What an evolver may see: train and validation tasks. The sealed split is not in here."""

    train: tuple[Task, ...]
    validation: tuple[Task, ...]

    @cached_property
    def by_id(self) -> Mapping[str, Task]:
        """Task id → task, over both splits."""
        return {task.id: task for task in (*self.train, *self.validation)}


def check_tasks(tasks: Sequence[Task]) -> None:
    """Refuses tasks that cannot be one set.

    Raises:
        UserError: If there are none, two share an id, or a group is in two splits.
    """
    if not tasks:
        raise UserError("a task set needs at least one task.")
    name, count = Counter(task.id for task in tasks).most_common(1)[0]
    if count > 1:
        raise UserError(
            f"{count} tasks have the id {short(name)!r}.", remedy="Give every task its own id."
        )
    split_of: dict[str, Split] = {}
    for task in tasks:
        first = split_of.setdefault(task.group, task.split)
        if first != task.split:
            raise UserError(
                f"the group {short(task.group)!r} is in two splits, {first} and {task.split} "
                f"(task {short(task.id)!r}).",
                remedy="Keep every group in one split; else the sealed split tests what was seen.",
            )
