"""Tables of evolution: runs, effects, candidates, sealed tests, proposals, promotions."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Float, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from instar.store.tables_base import (
    SCHEMA,
    Base,
    Big,
    Cost,
    CreatedAt,
    Exact,
    Id,
    Key,
    Maybe,
    Moment,
    OwnId,
    ProjectId,
    Query,
    Seconds,
    Words,
)

__all__ = [
    "CandidateRow",
    "EffectRow",
    "EvaluationRow",
    "EvolutionRunRow",
    "PromotionRow",
    "ProposalRow",
    "SealedEpochRow",
    "SealedTestRow",
    "SealedUseRow",
]

_RUN_STATES = (
    "'queued', 'running', 'paused', 'interrupted', 'succeeded', 'no_improvement', 'failed', "
    "'cancelled', 'budget_exhausted'"
)


class EvolutionRunRow(Base):
    """One execution of an evolver; its effects are in ``effect``, its events in ``run_event``."""

    __tablename__ = "evolution_run"
    __table_args__ = (
        Index(None, "project_id", "created_at", "id"),
        Index(None, "project_id", "idempotency_key", unique=True),
        CheckConstraint(f"state in ({_RUN_STATES})", name="state"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    agent: Mapped[str]
    label: Mapped[str] = mapped_column(server_default=text("'production'"))
    state: Mapped[str]
    reason: Mapped[Words]
    evolver: Mapped[str]
    evolver_digest: Mapped[Words]
    config: Mapped[Exact]
    seed: Mapped[Big]
    incumbent_version_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    incumbent_digest: Mapped[str]
    task_set_version_id: Mapped[Maybe] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    task_source: Mapped[Words]
    budget_id: Mapped[Maybe]
    job_id: Mapped[Maybe]
    quote: Mapped[Exact]
    result: Mapped[Exact]
    best_digest: Mapped[Words]
    phase: Mapped[str] = mapped_column(server_default=text("'waiting'"))
    progress: Mapped[Query]
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    replayed: Mapped[Big]
    in_flight_lost: Mapped[Big]
    # The last group of writes that committed, by fencing token: a writer whose connection broke
    # during a commit reads here whether that commit happened.
    writer_token: Mapped[Big]
    writer_batch: Mapped[Big]
    event_seq: Mapped[Big]
    idempotency_key: Mapped[str | None]
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    created_by: Mapped[Words]
    created_at: Mapped[CreatedAt]
    started_at: Mapped[Moment]
    finished_at: Mapped[Moment]


class EffectRow(Base):
    """One effect of a run under its key; ``started`` commits with its reservation, beforehand."""

    __tablename__ = "effect"
    __table_args__ = (
        CheckConstraint("status in ('started', 'finished', 'abandoned')", name="status"),
        {"postgresql_partition_by": "RANGE (run_id)"},
    )
    run_id: Mapped[Key]
    key: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[Id]
    kind: Mapped[str]
    content: Mapped[str]
    status: Mapped[str]
    request: Mapped[Exact]
    result: Mapped[Exact]
    attempt: Mapped[int] = mapped_column(server_default=text("1"))
    reserved_rollouts: Mapped[Big]
    reserved_tokens: Mapped[Big]
    reserved_cost_usd: Mapped[Cost]
    reserved_wall_s: Mapped[Seconds]
    usage: Mapped[Exact]
    usage_rollouts: Mapped[Big]
    usage_tokens: Mapped[Big]
    usage_cost_usd: Mapped[Cost]
    usage_wall_s: Mapped[Seconds]
    fencing_token: Mapped[Big]
    started_at: Mapped[CreatedAt]
    finished_at: Mapped[Moment]


class CandidateRow(Base):
    """A candidate that a run looked at; ``content`` keeps the order of its components."""

    __tablename__ = "candidate"
    __table_args__ = (Index(None, "run_id", "digest", unique=True),)
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    run_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.evolution_run.id"))
    digest: Mapped[str]
    content: Mapped[Exact] = mapped_column(nullable=False)
    parents: Mapped[Exact]
    note: Mapped[Exact]
    created_at: Mapped[CreatedAt]


class EvaluationRow(Base):
    """A candidate's scores on one split, as of one moment of a run."""

    __tablename__ = "evaluation"
    __table_args__ = (
        Index(None, "run_id", "candidate_digest", "split"),
        Index("ix_evaluation_candidate", "project_id", "candidate_digest"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    run_id: Mapped[Maybe] = mapped_column(ForeignKey(f"{SCHEMA}.evolution_run.id"))
    candidate_digest: Mapped[str]
    agent_version_id: Mapped[Maybe]
    task_set_version_id: Mapped[Maybe]
    split: Mapped[str]
    rollouts: Mapped[int]
    mean: Mapped[float | None]
    scores: Mapped[Exact]
    created_at: Mapped[CreatedAt]


class SealedEpochRow(Base):
    """An epoch of an agent's sealed tests: the count of tests and of acceptances (R of e-LOND)."""

    __tablename__ = "sealed_epoch"
    __table_args__ = (
        Index(None, "project_id", "agent", "number", unique=True),
        CheckConstraint("state in ('open', 'closed')", name="state"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    agent: Mapped[str]
    number: Mapped[int]
    task_set: Mapped[str]
    tests: Mapped[int] = mapped_column(server_default=text("0"))
    accepted: Mapped[int] = mapped_column(server_default=text("0"))
    state: Mapped[str] = mapped_column(server_default=text("'open'"))
    start_version_id: Mapped[Maybe]
    created_at: Mapped[CreatedAt]
    closed_at: Mapped[Moment]


class SealedTestRow(Base):
    """One sealed test. Its level and its groups, in order, are fixed when it opens."""

    __tablename__ = "sealed_test"
    __table_args__ = (
        Index(None, "epoch_id", "index_in_epoch", unique=True),
        Index(
            "uq_sealed_test_open",
            "project_id",
            "agent",
            unique=True,
            postgresql_where=text("state = 'open'"),
        ),
        CheckConstraint("state in ('open', 'closed')", name="state"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    epoch_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.sealed_epoch.id"))
    run_id: Mapped[Maybe]
    agent: Mapped[str]
    # NULL for a test that was withdrawn before its first pair ran: it used up no index.
    index_in_epoch: Mapped[int | None]
    alpha_t: Mapped[float] = mapped_column(Float(53))
    candidate_digest: Mapped[str]
    incumbent_digest: Mapped[str]
    task_set_version_id: Mapped[Maybe] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    groups: Mapped[Exact] = mapped_column(nullable=False)
    groups_used: Mapped[int] = mapped_column(server_default=text("0"))
    resumes: Mapped[int] = mapped_column(server_default=text("0"))
    seed: Mapped[int] = mapped_column(BigInteger)
    config: Mapped[Exact]
    state: Mapped[str] = mapped_column(server_default=text("'open'"))
    verdict: Mapped[str | None]
    outcome: Mapped[Exact]
    opened_at: Mapped[CreatedAt]
    closed_at: Mapped[Moment]


class SealedUseRow(Base):
    """How many tests of an epoch a sealed group has served."""

    __tablename__ = "sealed_use"
    epoch_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.sealed_epoch.id"))
    group_key: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[ProjectId]
    uses: Mapped[int] = mapped_column(server_default=text("0"))
    last_test_id: Mapped[Maybe]


class ProposalRow(Base):
    """A candidate put forward for promotion, with the incumbent that it was tested against."""

    __tablename__ = "proposal"
    __table_args__ = (
        Index(None, "project_id", "created_at", "id"),
        Index(None, "run_id"),
        Index(None, "agent_version_id"),
        CheckConstraint(
            "state in ('testing', 'waiting', 'stale', 'approved', 'rejected', 'withdrawn')",
            name="state",
        ),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    run_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.evolution_run.id"))
    agent: Mapped[str]
    label: Mapped[str]
    candidate_digest: Mapped[str]
    agent_version_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    incumbent_version_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    sealed_test_id: Mapped[Maybe] = mapped_column(ForeignKey(f"{SCHEMA}.sealed_test.id"))
    state: Mapped[str]
    verdict: Mapped[str | None]
    outcome: Mapped[Exact]
    evidence: Mapped[Exact]
    rule: Mapped[str] = mapped_column(server_default=text("'person'"))
    decided_by: Mapped[Words]
    decision_reason: Mapped[Words]
    decided_at: Mapped[Moment]
    created_at: Mapped[CreatedAt]


class PromotionRow(Base):
    """A label move that a proposal caused, and what became of it."""

    __tablename__ = "promotion"
    __table_args__ = (
        Index(None, "project_id", "created_at", "id"),
        CheckConstraint("state in ('watching', 'kept', 'rolled_back')", name="state"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    proposal_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.proposal.id"), unique=True)
    agent: Mapped[str]
    label: Mapped[str]
    from_version_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    to_version_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    state: Mapped[str]
    promoted_by: Mapped[Words]
    rolled_back_by: Mapped[Words]
    rolled_back_reason: Mapped[Words]
    rolled_back_at: Mapped[Moment]
    details: Mapped[Query]
    created_at: Mapped[CreatedAt]
