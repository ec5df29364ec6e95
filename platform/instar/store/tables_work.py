"""Tables of work and money: budgets, reservations, jobs, outbox, idempotency keys, audit trail."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Float, ForeignKey, Index, Numeric, text
from sqlalchemy.orm import Mapped, mapped_column

from instar.store.tables_base import (
    SCHEMA,
    Base,
    Big,
    Cost,
    CreatedAt,
    Exact,
    Id,
    Maybe,
    Moment,
    OwnId,
    ProjectId,
    Query,
    Seconds,
    Words,
)

__all__ = [
    "AuditCheckpointRow",
    "AuditEventRow",
    "AuditHeadRow",
    "AuditSealedRow",
    "BudgetRow",
    "IdempotencyKeyRow",
    "JobRow",
    "OutboxRow",
    "ReservationRow",
]


class BudgetRow(Base):
    """What may be used: limits (NULL means none), what is reserved and spent. Budgets nest."""

    __tablename__ = "budget"
    __table_args__ = (
        Index(None, "project_id", "kind", "subject", unique=True),
        CheckConstraint("kind in ('project', 'agent', 'day', 'run')", name="kind"),
        CheckConstraint(
            "reserved_rollouts >= 0 and reserved_tokens >= 0 and reserved_cost_usd >= 0",
            name="reserved",
        ),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    kind: Mapped[str]
    subject: Mapped[str]
    parent_id: Mapped[Maybe] = mapped_column(ForeignKey(f"{SCHEMA}.budget.id"))
    limit_rollouts: Mapped[int | None] = mapped_column(BigInteger)
    limit_tokens: Mapped[int | None] = mapped_column(BigInteger)
    limit_cost_usd: Mapped[float | None] = mapped_column(Numeric(20, 10, asdecimal=False))
    limit_wall_s: Mapped[float | None] = mapped_column(Float(53))
    reserved_rollouts: Mapped[Big]
    reserved_tokens: Mapped[Big]
    reserved_cost_usd: Mapped[Cost]
    reserved_wall_s: Mapped[Seconds]
    spent_rollouts: Mapped[Big]
    spent_tokens: Mapped[Big]
    spent_cost_usd: Mapped[Cost]
    spent_wall_s: Mapped[Seconds]
    created_at: Mapped[CreatedAt]


class ReservationRow(Base):
    """An amount set aside in a budget for one effect, or as a block for one run."""

    __tablename__ = "reservation"
    __table_args__ = (
        Index(None, "budget_id", "state"),
        Index(None, "run_id", "key"),
        CheckConstraint("kind in ('effect', 'block')", name="kind"),
        CheckConstraint("state in ('open', 'settled', 'released', 'orphaned')", name="state"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    budget_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.budget.id"))
    run_id: Mapped[Maybe]
    key: Mapped[Words]
    kind: Mapped[str]
    state: Mapped[str]
    rollouts: Mapped[Big]
    tokens: Mapped[Big]
    cost_usd: Mapped[Cost]
    wall_s: Mapped[Seconds]
    spent_rollouts: Mapped[Big]
    spent_tokens: Mapped[Big]
    spent_cost_usd: Mapped[Cost]
    spent_wall_s: Mapped[Seconds]
    fencing_token: Mapped[Big]
    created_at: Mapped[CreatedAt]
    closed_at: Mapped[Moment]


class JobRow(Base):
    """A piece of background work. The row decides what runs; the broker only rings the bell."""

    __tablename__ = "job"
    __table_args__ = (
        Index("ix_job_due", "queue", "run_after", postgresql_where=text("state = 'queued'")),
        Index(
            "ix_job_leased",
            "lease_until",
            postgresql_where=text("state in ('leased', 'running')"),
        ),
        Index(None, "project_id", "created_at", "id"),
        CheckConstraint(
            "state in ('queued', 'leased', 'running', 'succeeded', 'failed', 'cancelled', 'dead')",
            name="state",
        ),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    queue: Mapped[str] = mapped_column(server_default=text("'default'"))
    kind: Mapped[str]
    payload: Mapped[Query]
    state: Mapped[str] = mapped_column(server_default=text("'queued'"))
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(server_default=text("5"))
    fencing_token: Mapped[Big]
    worker: Mapped[Words]
    lease_until: Mapped[Moment]
    heartbeat_at: Mapped[Moment]
    run_after: Mapped[CreatedAt]
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    last_error: Mapped[Words]
    created_at: Mapped[CreatedAt]
    finished_at: Mapped[Moment]


class OutboxRow(Base):
    """A message to send after its transaction committed. Sent at least once."""

    __tablename__ = "outbox"
    __table_args__ = (Index("ix_outbox_unsent", "id", postgresql_where=text("sent_at is null")),)
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    topic: Mapped[str]
    ref_id: Mapped[Id]
    created_at: Mapped[CreatedAt]
    sent_at: Mapped[Moment]


class IdempotencyKeyRow(Base):
    """The answer to a request that was sent with an idempotency key, to be given again."""

    __tablename__ = "idempotency_key"
    project_id: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.project.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_hash: Mapped[str]
    status: Mapped[int | None]
    response: Mapped[Exact]
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[Moment]


class AuditEventRow(Base):
    """One line of the audit trail, chained by hash within its stream. Append-only by grant."""

    __tablename__ = "audit_event"
    __table_args__ = (
        Index(None, "project_id", "stream", "seq"),
        {"postgresql_partition_by": "RANGE (id)"},
    )
    id: Mapped[OwnId]
    project_id: Mapped[Id]
    stream: Mapped[str]
    seq: Mapped[Big]
    actor_kind: Mapped[str]
    actor: Mapped[Words]
    action: Mapped[str]
    subject: Mapped[Words]
    details: Mapped[Exact]
    previous_hash: Mapped[Words]
    hash: Mapped[Words]
    # 1: linked by the application, without the moment; 2: by instar.append_audit, with it.
    format: Mapped[int] = mapped_column(server_default=text("1"))
    created_at: Mapped[CreatedAt]


class AuditHeadRow(Base):
    """The last link of one stream's chain; written by ``instar.append_audit`` alone."""

    __tablename__ = "audit_head"
    project_id: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.project.id"), primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[Big]
    hash: Mapped[Words]
    at: Mapped[CreatedAt]


class AuditSealedRow(Base):
    """Up to which row a stream is in a signed checkpoint; ``instar.seal_audit`` alone writes it."""

    __tablename__ = "audit_sealed"
    project_id: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.project.id"), primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[Big]


class AuditCheckpointRow(Base):
    """The heads of a project's streams at one moment, signed; a copy lies outside the database."""

    __tablename__ = "audit_checkpoint"
    project_id: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.project.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    document: Mapped[Exact] = mapped_column(nullable=False)
    hash: Mapped[str]
    key_id: Mapped[str]
    signature: Mapped[str]
    created_at: Mapped[CreatedAt]
