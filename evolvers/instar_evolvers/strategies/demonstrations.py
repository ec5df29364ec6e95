"""Demonstrations: solved cases taken from verified rollouts, to be shown as chat turns."""

from __future__ import annotations

from collections.abc import Sequence

from instar_core.candidates import Demonstration
from instar_core.messages import ToolCall
from instar_core.rollouts import Rollout
from instar_core.tasks import Task

__all__ = ["REFERENCE_ARM", "demonstration_of", "verified"]

REFERENCE_ARM = "reference"
"""Rollouts of this arm replay the task's reference actions through tools and verifier."""


def demonstration_of(task: Task, rollout: Rollout) -> Demonstration | None:
    """The demonstration that a rollout makes; ``None`` if it neither acted nor answered.

    Only calls that worked are shown: a detour through an error would teach the detour.
    """
    actions = _actions(rollout)
    answer = rollout.trajectory.answer or None
    if rollout.arm == REFERENCE_ARM:
        answer = answer or task.reference_answer
    if not actions and answer is None:
        return None
    by_reference = rollout.arm == REFERENCE_ARM
    return Demonstration(
        id=f"d-{task.id}",
        input=task.input,
        actions=actions,
        answer=answer,
        source=f"reference:{task.id}" if by_reference else rollout.id,
    )


def verified(
    tasks: Sequence[Task], rollouts: Sequence[Rollout], mark: float
) -> list[Demonstration]:
    """Demonstrations of the rollouts that reached the mark, at most one per task, in order."""
    by_id = {task.id: task for task in tasks}
    found: dict[str, Demonstration] = {}
    for rollout in rollouts:
        if rollout.score is None or rollout.reward < mark or rollout.task_id in found:
            continue
        demonstration = demonstration_of(by_id[rollout.task_id], rollout)
        if demonstration is not None:
            found[rollout.task_id] = demonstration
    return list(found.values())


def _actions(rollout: Rollout) -> tuple[ToolCall, ...]:
    return tuple(
        step.tool_call
        for step in rollout.trajectory.steps
        if step.kind == "tool" and step.tool_call is not None and not step.is_error
    )
