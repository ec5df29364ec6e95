"""The four questions of Training-Free GRPO, each with the reader of its answer.

Each prompt opens with its stage's name and states the answer's format; the loop is in ``tf_grpo``.
"""

from __future__ import annotations

from collections.abc import Sequence

from instar_core.base import canonical_json, short
from instar_core.candidates import Lessons
from instar_core.messages import Message, Messages
from instar_core.rollouts import Rollout
from instar_core.tasks import Task
from instar_evolvers.strategies.playbook import Operation, render_lessons
from instar_evolvers.strategies.replies import numbered_items, section_in

__all__ = [
    "STAGES",
    "advantage_messages",
    "consolidation_messages",
    "read_findings",
    "read_summary",
    "render_attempt",
    "summary_messages",
    "update_messages",
]

STAGES = ("summary", "advantage", "update", "consolidation")
_MAX_ATTEMPT_CHARACTERS = 6000
_OPERATIONS = (
    '{"op": "ADD", "text": "…"}, {"op": "UPDATE", "id": "…", "text": "…"}, '
    '{"op": "DELETE", "id": "…"}, {"op": "MERGE", "ids": ["…", "…"], "text": "…"}, {"op": "NONE"}'
)


def render_attempt(rollout: Rollout) -> str:
    """A trajectory as text: each step's words, calls and results, cut where it is very long."""
    lines = []
    for step in rollout.trajectory.steps:
        if step.message.content:
            lines.append(f"{step.message.role}: {step.message.content}")
        for call in step.message.tool_calls:
            arguments = canonical_json(call.arguments).decode("utf-8")
            lines.append(f"{step.message.role} calls {call.name}({arguments})")
    lines.append(f"ended: {rollout.trajectory.stop}")
    if rollout.trajectory.answer:
        lines.append(f"answer: {rollout.trajectory.answer}")
    return short("\n".join(lines), _MAX_ATTEMPT_CHARACTERS)


def summary_messages(task: Task, rollout: Rollout, lessons: Lessons) -> Messages:
    """Asks for an account of one attempt: what was done, where it went right or wrong."""
    score = rollout.score
    return _stage(
        "summary",
        f"## Task\n{task.input}",
        f"## Lessons the agent had\n{render_lessons(lessons)}",
        f"## Attempt\n{render_attempt(rollout)}",
        f"## Outcome\nreward {rollout.reward:.2f}. {score.feedback if score else ''}",
        "Say step by step what the agent did, which decisions were right or wrong, and which "
        "lessons it used. Answer as <summary>…</summary>.",
    )


def advantage_messages(
    task: Task, attempts: Sequence[tuple[float, str]], lessons: Lessons, limit: int
) -> Messages:
    """Asks what sets good attempts of a group apart from bad ones (the semantic advantage).

    Args:
        task: The task that all attempts are of.
        attempts: Reward in [0, 1] and account of each attempt; the verifier's feedback where no
            attempt passed.
        lessons: What the agent had.
        limit: How many findings are wanted at most.
    """
    listed = "\n".join(
        f"### Attempt {number} (reward {reward:.2f})\n{account}"
        for number, (reward, account) in enumerate(attempts, start=1)
    )
    contrast = max(reward for reward, _ in attempts) > min(reward for reward, _ in attempts)
    return _stage(
        "advantage",
        f"## Task\n{task.input}",
        f"## Lessons the agent had\n{render_lessons(lessons)}",
        f"## Attempts\n{listed}",
        (
            "Compare the better attempts with the worse ones."
            if contrast
            else "No attempt was better than another; work from the verifier's feedback."
        ),
        "Answer as <comparison>…</comparison><reasons>…</reasons><lessons>\n1. When <condition>, "
        f"<what to do>.\n</lessons> with at most {limit} lessons that would help on other tasks of "
        "the same kind; write 'none' if there is nothing to learn.",
    )


def update_messages(lessons: Lessons, findings: Sequence[str], rejected: Sequence[str]) -> Messages:
    """Asks how a group's findings should change the playbook, one operation per finding."""
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(findings, start=1))
    tried = "\n".join(f"- {text}" for text in rejected) or "(none)"
    return _stage(
        "update",
        f"## Lessons\n{render_lessons(lessons)}",
        f"## Tried before and not kept\n{tried}",
        f"## Findings\n{listed}",
        "Decide for each finding how the lessons should change. Answer with a JSON array of one "
        f"operation per finding, each one of: {_OPERATIONS}.",
    )


def consolidation_messages(
    lessons: Lessons, operations: Sequence[Operation], *, max_lessons: int, token_budget: int
) -> Messages:
    """Asks for one final list of operations out of those of all groups of a batch."""
    touched: dict[str, list[str]] = {}
    for operation in operations:
        line = canonical_json(
            {"op": operation.op, "ids": list(operation.ids), "text": operation.text}
        ).decode("utf-8")
        for name in operation.ids or ("(new)",):
            touched.setdefault(name, []).append(line)
    listed = "\n".join(f"### {name}\n" + "\n".join(lines) for name, lines in touched.items())
    return _stage(
        "consolidation",
        f"## Lessons\n{render_lessons(lessons)}",
        f"## Operations by the lesson they touch\n{listed}",
        f"At most {max_lessons} lessons and {token_budget} tokens of lessons are allowed.",
        "Merge duplicates and resolve conflicts. Keep one idea in a lesson. Answer with a JSON "
        f"array of the final operations, each one of: {_OPERATIONS}.",
    )


def read_summary(reply: str) -> str:
    """The account inside a summary reply; raises ``ValueError`` if there is none."""
    return section_in(reply, "summary")


def read_findings(reply: str) -> tuple[str, ...]:
    """The findings inside an advantage reply; raises ``ValueError`` without a lessons section."""
    return numbered_items(section_in(reply, "lessons"))


def _stage(name: str, *parts: str) -> Messages:
    system = (
        "You improve the written lessons of an AI agent. You see how it did and say what would "
        "make it do better. Be brief and exact, and answer in the format asked for."
    )
    body = "\n\n".join((f"# Stage: {name}", *parts))
    return (Message(role="system", content=system), Message(role="user", content=body))
