"""Proofs of tasks: the reference solution must score 1, doing nothing must score 0.

A task whose reference fails, or which is solved by silence, would make every number about it wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from instar.rollouts.backend import NULL_ARM, REFERENCE_ARM, AgentBackend
from instar.runtime.calls import DirectCalls
from instar_core.base import Frozen
from instar_core.candidates import Candidate
from instar_core.lab import RolloutRequest
from instar_core.tasks import Task

__all__ = ["TaskProof", "prove_tasks", "validate_task"]


class TaskProof(Frozen):
    """What the reference and doing nothing score; ``gold`` is ``None`` without a reference."""

    task_id: str
    gold: float | None
    null: float
    problem: str = ""

    @property
    def sound(self) -> bool:
        """Whether the task can be trusted."""
        return not self.problem


async def validate_task(backend: AgentBackend, candidate: Candidate, task: Task) -> TaskProof:
    """Replays the task's reference and does nothing, each in a fresh environment.

    Raises:
        InfrastructureError: If the environment could not be prepared or inspected.
    """
    null = await _reward(backend, candidate, task, NULL_ARM)
    problem = "" if null[0] == 0.0 else f"doing nothing scores {null[0]:g}"
    if not task.reference_actions and task.reference_answer is None:
        return TaskProof(task_id=task.id, gold=None, null=null[0], problem=problem)
    gold = await _reward(backend, candidate, task, REFERENCE_ARM)
    if gold[0] != 1.0:
        problem = f"the reference scores {gold[0]:g}: {gold[1]}"
    return TaskProof(task_id=task.id, gold=gold[0], null=null[0], problem=problem)


async def prove_tasks(
    backend: AgentBackend, candidate: Candidate, tasks: Sequence[Task]
) -> list[TaskProof]:
    """The proofs of many tasks, in order; slots limit how many run at once."""
    return list(await asyncio.gather(*(validate_task(backend, candidate, task) for task in tasks)))


async def _reward(
    backend: AgentBackend, candidate: Candidate, task: Task, arm: str
) -> tuple[float, str]:
    request = RolloutRequest(candidate=candidate, task=task, draw=0, arm=arm)
    rollout = await backend.rollout(request, DirectCalls())
    assert rollout.score is not None
    return rollout.score.reward, rollout.score.feedback
