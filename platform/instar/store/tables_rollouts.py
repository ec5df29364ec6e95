"""Tables of runs and rollouts: attempts, their steps, calls, messages, scores and events.

The growing ones are range-partitioned by the UUIDv7 of their run or rollout, which carries its
time; they have no foreign key to their project, so that writers do not queue for its row.
"""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from instar.store.tables_base import (
    SCHEMA,
    Base,
    Big,
    CreatedAt,
    Exact,
    Id,
    Key,
    Maybe,
    Moment,
    OwnId,
    ProjectId,
    Words,
)

__all__ = [
    "MessageRow",
    "ModelCallRow",
    "RolloutIdentityRow",
    "RolloutRow",
    "RolloutScoreRow",
    "RunEventRow",
    "RunRow",
    "StepRow",
    "ToolCallRow",
]


class RunRow(Base):
    """One run of an agent that somebody called; its exact version is resolved at the start."""

    __tablename__ = "run"
    __table_args__ = (
        Index(None, "project_id", "created_at", "id"),
        CheckConstraint(
            "state in ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state"
        ),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    agent: Mapped[str]
    agent_version_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    label: Mapped[Words]
    state: Mapped[str]
    input: Mapped[Exact]
    output: Mapped[Exact]
    stop: Mapped[Words]
    error: Mapped[Words]
    usage: Mapped[Exact]
    rollout_id: Mapped[Maybe]
    job_id: Mapped[Maybe]
    created_by: Mapped[Words]
    created_at: Mapped[CreatedAt]
    started_at: Mapped[Moment]
    finished_at: Mapped[Moment]


class RunEventRow(Base):
    """Event ``seq`` of a run or an evolution run; gap-free, written by the lease holder."""

    __tablename__ = "run_event"
    __table_args__ = {"postgresql_partition_by": "RANGE (run_id)"}
    run_id: Mapped[Key]
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    project_id: Mapped[Id]
    # The number a replayed program gave its event, so that a replay writes it once; NULL otherwise.
    source_seq: Mapped[int | None]
    kind: Mapped[str]
    message: Mapped[Exact]
    data: Mapped[Exact]
    fencing_token: Mapped[Big]
    created_at: Mapped[CreatedAt]


class RolloutIdentityRow(Base):
    """Rollout identity (a hash of everything that makes two rollouts the same) → rollout."""

    __tablename__ = "rollout_identity"
    project_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.project.id"))
    identity: Mapped[str] = mapped_column(primary_key=True)
    rollout_id: Mapped[Id]
    created_at: Mapped[CreatedAt]


class RolloutRow(Base):
    """One attempt of a candidate at a task; messages and steps are kept apart and load lazily."""

    __tablename__ = "rollout"
    __table_args__ = (
        Index(None, "run_id", "candidate_digest"),
        Index("ix_rollout_candidate", "project_id", "candidate_digest"),
        Index(None, "project_id", "created_at", "id"),
        {"postgresql_partition_by": "RANGE (id)"},
    )
    id: Mapped[OwnId]
    project_id: Mapped[Id]
    run_id: Mapped[Maybe]
    candidate_digest: Mapped[str]
    agent_version_id: Mapped[Maybe]
    task_id: Mapped[str]
    task_digest: Mapped[Words]
    draw: Mapped[int]
    arm: Mapped[Words]
    sealed_test_id: Mapped[Maybe]
    stop: Mapped[str]
    answer: Mapped[Exact]
    final_state: Mapped[Exact]
    opening: Mapped[Exact]
    steps: Mapped[int]
    reward: Mapped[float | None]
    usage: Mapped[Exact]
    error: Mapped[Exact]
    created_at: Mapped[CreatedAt]


class RolloutScoreRow(Base):
    """A verifier's score of a rollout, by verifier: another verifier adds a row."""

    __tablename__ = "rollout_score"
    __table_args__ = {"postgresql_partition_by": "RANGE (rollout_id)"}
    rollout_id: Mapped[Key]
    verifier: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[Id]
    reward: Mapped[float]
    feedback: Mapped[Exact]
    details: Mapped[Exact]
    created_at: Mapped[CreatedAt]


class MessageRow(Base):
    """One chat message, stored once per project by its hash."""

    __tablename__ = "message"
    project_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.project.id"))
    hash: Mapped[str] = mapped_column(primary_key=True)
    content: Mapped[Exact] = mapped_column(nullable=False)


class StepRow(Base):
    """Step ``index`` of a rollout; token arrays are packed little-endian (int32, float64)."""

    __tablename__ = "step"
    __table_args__ = {"postgresql_partition_by": "RANGE (rollout_id)"}
    rollout_id: Mapped[Key]
    index: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    project_id: Mapped[Id]
    kind: Mapped[str]
    message_hash: Mapped[str]
    request_hash: Mapped[Words]
    model: Mapped[Words]
    finish_reason: Mapped[Words]
    tool_call: Mapped[Exact]
    is_error: Mapped[bool] = mapped_column(server_default=text("false"))
    usage: Mapped[Exact]
    prompt_ids: Mapped[bytes | None]
    reply_ids: Mapped[bytes | None]
    logprobs: Mapped[bytes | None]
    adapter: Mapped[Words]
    created_at: Mapped[CreatedAt]


class ModelCallRow(Base):
    """One model call of a run, with its usage; ``key`` is the effect key where there is one."""

    __tablename__ = "model_call"
    __table_args__ = (
        Index(None, "rollout_id"),
        {"postgresql_partition_by": "RANGE (run_id)"},
    )
    run_id: Mapped[Key]
    id: Mapped[OwnId]
    project_id: Mapped[Id]
    rollout_id: Mapped[Maybe]
    key: Mapped[Words]
    purpose: Mapped[Words]
    model: Mapped[str]
    status: Mapped[str]
    request_hash: Mapped[Words]
    usage: Mapped[Exact]
    error: Mapped[Exact]
    started_at: Mapped[CreatedAt]
    finished_at: Mapped[Moment]


class ToolCallRow(Base):
    """One tool call of a run; started before it is sent, so that an unknown outcome shows."""

    __tablename__ = "tool_call"
    __table_args__ = (
        Index(None, "rollout_id"),
        {"postgresql_partition_by": "RANGE (run_id)"},
    )
    run_id: Mapped[Key]
    id: Mapped[OwnId]
    project_id: Mapped[Id]
    rollout_id: Mapped[Maybe]
    key: Mapped[Words]
    server: Mapped[Words]
    tool: Mapped[str]
    status: Mapped[str]
    arguments: Mapped[Exact]
    result: Mapped[Exact]
    usage: Mapped[Exact]
    error: Mapped[Exact]
    started_at: Mapped[CreatedAt]
    finished_at: Mapped[Moment]
