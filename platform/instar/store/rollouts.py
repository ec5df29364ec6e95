"""Rollouts: attempts as stored. Heads are cheap to list; the trajectory is loaded when asked for.

A message is stored once per project under its hash, however many steps show it; the token ids and
log-probabilities of an open model are packed binary and come back bit for bit.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Table, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.pages import Page, read_page
from instar.store.tables import (
    Base,
    MessageRow,
    RolloutIdentityRow,
    RolloutRow,
    RolloutScoreRow,
    StepRow,
)
from instar_core.base import JsonValue, content_hash
from instar_core.errors import NotFoundError, StoreError
from instar_core.messages import Message, ToolCall
from instar_core.rollouts import Rollout, Score, Step, StopReason, TokenCapture, Trajectory
from instar_core.usage import Usage

__all__ = [
    "RolloutFilter",
    "RolloutLink",
    "find_by_identity",
    "list_rollouts",
    "load_trajectory",
    "read_rollout",
    "save_rollouts",
    "save_score",
]


@dataclass(frozen=True, slots=True)
class RolloutLink:
    """What a rollout belongs to.

    Attributes:
        run_id: The evolution run, or the run of an agent.
        agent_version_id: The agent version, where it is one already.
        task_digest: Content digest of the task.
        sealed_test_id: The sealed test that it was drawn for; such rollouts are kept apart.
        identity: Hash under which an equal attempt is found again; empty for none (sealed draws are
            always fresh and are never found again).
    """

    run_id: str | None = None
    agent_version_id: str | None = None
    task_digest: str = ""
    sealed_test_id: str | None = None
    identity: str = ""


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Which rollouts to list; an empty field does not filter. Sealed ones are never listed."""

    run_id: str | None = None
    candidate_digest: str | None = None
    task_id: str | None = None


async def save_rollouts(
    session: AsyncSession, project_id: str, rollouts: Sequence[tuple[Rollout, RolloutLink]]
) -> None:
    """Saves rollouts with steps, messages and scores; those already saved are left as they are.

    A rollout's id is a UUID, unique among all projects; a UUIDv7 lands in its month's partition.
    """
    messages: dict[str, JsonValue] = {}
    heads: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    scores: list[dict[str, Any]] = []
    identities: list[dict[str, Any]] = []
    for rollout, link in rollouts:
        trajectory = rollout.trajectory
        opening = [_remember(messages, message) for message in trajectory.opening]
        heads.append({**_head(project_id, rollout, link), "opening": opening})
        for step in trajectory.steps:
            hashed = _remember(messages, step.message)
            steps.append(_step(project_id, rollout.id, step, hashed))
        if rollout.score is not None:
            scores.append(_score(project_id, rollout.id, rollout.score))
        if link.identity and link.sealed_test_id is None:
            identities.append(
                {"project_id": project_id, "identity": link.identity, "rollout_id": rollout.id}
            )
    stored = [
        {"project_id": project_id, "hash": key, "content": messages[key]}
        for key in sorted(messages)
    ]
    for row, values in (
        (MessageRow, stored),
        (RolloutRow, heads),
        (StepRow, steps),
        (RolloutScoreRow, scores),
        (RolloutIdentityRow, sorted(identities, key=lambda item: str(item["identity"]))),
    ):
        if values:
            await session.execute(insert(_table(row)).on_conflict_do_nothing(), values)


async def save_score(session: AsyncSession, project_id: str, rollout_id: str, score: Score) -> None:
    """Adds the score of another verifier; a verifier's first score of a rollout stands."""
    await session.execute(
        insert(_table(RolloutScoreRow))
        .values(**_score(project_id, rollout_id, score))
        .on_conflict_do_nothing()
    )


async def read_rollout(
    session: AsyncSession, rollout_id: str, *, trajectory: bool = True
) -> Rollout:
    """A rollout, with its trajectory unless told otherwise.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    row = await session.get(RolloutRow, rollout_id)
    if row is None:
        raise NotFoundError(f"there is no rollout {rollout_id!r} in this project.")
    loaded = await _trajectory(session, row) if trajectory else None
    scores = await _scores(session, [row])
    return _rollout(row, scores.get(row.id), loaded)


async def load_trajectory(session: AsyncSession, rollout_id: str) -> Trajectory:
    """What happened in a rollout, step by step.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    return (await read_rollout(session, rollout_id)).trajectory


async def list_rollouts(
    session: AsyncSession,
    project_id: str,
    which: RolloutFilter,
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[Rollout]:
    """Rollouts without their steps, newest first, and never those of sealed tests."""
    query = select(RolloutRow).where(
        RolloutRow.project_id == project_id, RolloutRow.sealed_test_id.is_(None)
    )
    if which.run_id is not None:
        query = query.where(RolloutRow.run_id == which.run_id)
    if which.candidate_digest is not None:
        query = query.where(RolloutRow.candidate_digest == which.candidate_digest)
    if which.task_id is not None:
        query = query.where(RolloutRow.task_id == which.task_id)
    page = await read_page(session, query, RolloutRow, limit=limit, cursor=cursor)
    scores = await _scores(session, page.items)
    return Page([_rollout(row, scores.get(row.id), None) for row in page.items], page.next_cursor)


async def find_by_identity(session: AsyncSession, project_id: str, identity: str) -> str | None:
    """The id of the rollout that was saved under this identity, if there is one."""
    row = await session.get(RolloutIdentityRow, (project_id, identity))
    return None if row is None else row.rollout_id


def _table(row: type[Base]) -> Table:
    return cast("Table", row.__table__)


def _remember(messages: dict[str, JsonValue], message: Message) -> str:
    dumped = message.model_dump(mode="json")
    key = content_hash(dumped)
    messages[key] = dumped
    return key


def _head(project_id: str, rollout: Rollout, link: RolloutLink) -> dict[str, Any]:
    return {
        "id": rollout.id,
        "project_id": project_id,
        "run_id": link.run_id,
        "candidate_digest": rollout.candidate_digest,
        "agent_version_id": link.agent_version_id,
        "task_id": rollout.task_id,
        "task_digest": link.task_digest,
        "draw": rollout.draw,
        "arm": rollout.arm,
        "sealed_test_id": link.sealed_test_id,
        "stop": rollout.trajectory.stop,
        "answer": rollout.trajectory.answer,
        "final_state": rollout.trajectory.final_state,
        "steps": len(rollout.trajectory.steps),
        "reward": None if rollout.score is None else rollout.score.reward,
        "usage": rollout.usage.model_dump(mode="json"),
        "error": rollout.error,
    }


def _score(project_id: str, rollout_id: str, score: Score) -> dict[str, Any]:
    return {
        "rollout_id": rollout_id,
        "verifier": score.verifier,
        "project_id": project_id,
        "reward": score.reward,
        "feedback": score.feedback,
        "details": score.details,
    }


def _step(project_id: str, rollout_id: str, step: Step, message_hash: str) -> dict[str, Any]:
    capture = step.capture
    call = step.tool_call
    return {
        "rollout_id": rollout_id,
        "index": step.index,
        "project_id": project_id,
        "kind": step.kind,
        "message_hash": message_hash,
        "request_hash": step.request_hash,
        "model": step.model,
        "finish_reason": step.finish_reason,
        "tool_call": None if call is None else call.model_dump(mode="json"),
        "is_error": step.is_error,
        "usage": step.usage.model_dump(mode="json"),
        "prompt_ids": None if capture is None else _pack("i", capture.prompt_ids),
        "reply_ids": None if capture is None else _pack("i", capture.reply_ids),
        "logprobs": None if capture is None else _pack("d", capture.logprobs),
        "adapter": "" if capture is None else capture.adapter,
    }


def _pack(code: str, values: Iterable[float]) -> bytes:
    """Little-endian int32 (``i``) or float64 (``d``)."""
    packed = array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(code: str, data: bytes | None) -> tuple[Any, ...]:
    values: array[Any] = array(code)
    values.frombytes(data or b"")
    if sys.byteorder == "big":
        values.byteswap()
    return tuple(values)


async def _scores(session: AsyncSession, rows: Sequence[RolloutRow]) -> dict[str, Score]:
    """Each rollout's first score (the verifier that ran with it)."""
    if not rows:
        return {}
    found = await session.scalars(
        select(RolloutScoreRow)
        .where(RolloutScoreRow.rollout_id.in_([row.id for row in rows]))
        .order_by(RolloutScoreRow.created_at.desc())
    )
    return {
        row.rollout_id: Score(
            reward=row.reward, feedback=row.feedback, verifier=row.verifier, details=row.details
        )
        for row in found
    }


async def _trajectory(session: AsyncSession, row: RolloutRow) -> Trajectory:
    found = await session.scalars(
        select(StepRow).where(StepRow.rollout_id == row.id).order_by(StepRow.index)
    )
    steps = list(found)
    opening = cast("list[str]", row.opening)
    wanted = {*opening, *(step.message_hash for step in steps)}
    rows = await session.execute(
        select(MessageRow.hash, MessageRow.content).where(
            MessageRow.project_id == row.project_id, MessageRow.hash.in_(wanted)
        )
    )
    messages = {key: Message.model_validate(content) for key, content in rows}
    missing = wanted - set(messages)
    if missing:
        raise StoreError(
            f"rollout {row.id} names {len(missing)} messages that are not stored.",
            remedy="Restore the database from a backup.",
        )
    return Trajectory(
        opening=tuple(messages[key] for key in opening),
        steps=tuple(_read_step(step, messages[step.message_hash]) for step in steps),
        stop=cast("StopReason", row.stop),
        answer=row.answer,
        final_state=row.final_state,
    )


def _read_step(row: StepRow, message: Message) -> Step:
    capture = None
    if row.prompt_ids is not None:
        capture = TokenCapture(
            prompt_ids=_unpack("i", row.prompt_ids),
            reply_ids=_unpack("i", row.reply_ids),
            logprobs=_unpack("d", row.logprobs),
            adapter=row.adapter,
        )
    call = None if row.tool_call is None else ToolCall.model_validate(row.tool_call)
    return Step.model_validate(
        {
            "index": row.index,
            "kind": row.kind,
            "message": message,
            "request_hash": row.request_hash,
            "model": row.model,
            "finish_reason": row.finish_reason,
            "tool_call": call,
            "is_error": row.is_error,
            "capture": capture,
            "usage": Usage.model_validate(row.usage),
        }
    )


def _rollout(row: RolloutRow, score: Score | None, trajectory: Trajectory | None) -> Rollout:
    head = Trajectory(
        stop=cast("StopReason", row.stop), answer=row.answer, final_state=row.final_state
    )
    return Rollout(
        id=row.id,
        task_id=row.task_id,
        candidate_digest=row.candidate_digest,
        draw=row.draw,
        arm=row.arm,
        trajectory=trajectory or head,
        score=score,
        usage=Usage.model_validate(row.usage),
        error=row.error,
    )
