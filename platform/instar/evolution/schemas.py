"""What the service takes and gives about evolution: specs, run status, proposals, promotions.

The models are frozen and travel as they are through REST, the command line and the database.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field, field_validator

from instar_core.base import Frozen, JsonValue
from instar_core.evolution import (
    AcceptanceConfig,
    PromotionState,
    ProposalState,
    Quote,
    RunState,
    SealedOutcome,
    Verdict,
)
from instar_core.usage import Remaining

__all__ = [
    "EvolutionSpec",
    "PromotionRule",
    "PromotionView",
    "ProposalView",
    "RunEvent",
    "RunPhase",
    "RunStatus",
]

_MOST = 1e15
"""Largest limit: far beyond any run, and within what the database and JSON's numbers can hold."""
PromotionRule = Literal["ask", "auto"]
RunPhase = Literal["waiting", "baseline", "search", "sealed_test", "promotion", "done"]


class EvolutionSpec(Frozen):
    """What a person asks for: which agent, on which tasks, with which evolver and limits."""

    agent: str = Field(description="name of the agent")
    version: str = Field(
        default="production", description="version number or label to start from: the incumbent"
    )
    label: str = Field(default="production", description="label that a promotion moves")
    task_set: str = Field(description="name of the task set")
    task_set_version: int | None = Field(
        default=None, ge=1, description="version of the task set; None takes the newest"
    )
    evolver: str = Field(default="bootstrap", description="name of the evolver")
    evolver_config: dict[str, JsonValue] = Field(
        default_factory=dict, description="configuration of the evolver, checked by it"
    )
    limit: Remaining = Field(
        default=Remaining(),
        description="limits of the run; what is None is filled in by the quote",
    )
    acceptance: AcceptanceConfig = AcceptanceConfig()
    target_effect: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="gain that must be detectable with 80 % power, else the quote refuses",
    )
    validation_tasks: int = Field(
        default=60,
        ge=1,
        le=100_000,
        description="validation tasks the incumbent is measured on, at most",
    )
    promotion: PromotionRule | None = Field(
        default=None, description="'auto' promotes on acceptance; None takes the project's rule"
    )
    seed: int = Field(default=0, ge=0, le=2**53, description="seed of the run's random streams")
    model: str | None = Field(
        default=None, description="model of the proposer and judge; None takes the agent's own"
    )
    seconds_per_rollout: float | None = Field(
        default=None,
        ge=1e-6,
        le=1e6,
        description="measured seconds; None takes earlier rollouts or a probe",
    )

    @field_validator("limit")
    @classmethod
    def _possible(cls, limit: Remaining) -> Remaining:
        for name, value in limit.model_dump().items():
            if value is not None and not 0 <= value <= _MOST:
                raise ValueError(f"{name} is {value}; a limit lies between 0 and {_MOST:.0e}")
        return limit

    @field_validator("acceptance")
    @classmethod
    def _keeps_the_promise(cls, wanted: AcceptanceConfig) -> AcceptanceConfig:
        """Lets a run be stricter than an epoch's rules, never laxer: they hold for all tests."""
        rules = AcceptanceConfig()
        if wanted.epoch_tests != rules.epoch_tests:
            raise ValueError(
                f"epoch_tests is {wanted.epoch_tests}; an epoch has {rules.epoch_tests} tests, "
                "whatever one run asks for"
            )
        for name in ("alpha", "max_missing", "max_uses_of_group"):
            most, asked = getattr(rules, name), getattr(wanted, name)
            if asked > most:
                raise ValueError(
                    f"{name} is {asked}; a run may be stricter than {most} and not laxer"
                )
        return wanted


class RunStatus(Frozen):
    """Where an evolution run stands: progress, spend, verdict, and what was lost and replayed."""

    id: str
    agent: str
    evolver: str
    state: RunState
    reason: str = Field(default="", description="why it ended as it did, or what it waits for")
    phase: RunPhase = "waiting"
    spec: EvolutionSpec
    quote: Quote
    rollouts_done: int = Field(default=0, description="rollouts finished, both arms together")
    rollouts_planned: int = Field(default=0, description="rollouts the quote expects")
    tokens: int = 0
    cost_usd: float = 0.0
    cost_known: bool = True
    wall_s: float = Field(default=0.0, description="seconds of work so far, over all attempts")
    remaining: Remaining = Remaining()
    baseline_mean: float | None = Field(
        default=None, description="mean validation reward of the incumbent, in [0, 1]"
    )
    best_mean: float | None = Field(
        default=None, description="mean validation reward of the best candidate, in [0, 1]"
    )
    candidates: int = Field(default=0, description="candidates seen, without the incumbent")
    verdict: Verdict | None = None
    verdict_words: str = ""
    proposal_id: str | None = None
    promotion_id: str | None = None
    in_flight_lost: int = Field(
        default=0, description="calls in flight at a crash: settled as spent, issued again"
    )
    replayed: int = Field(default=0, description="recorded effects the last start reused")
    attempts: int = Field(default=0, description="how often a worker took the run up")
    worker: str = Field(default="", description="who works on it now")
    heartbeat_at: datetime | None = Field(
        default=None, description="when a worker last said that it works on it"
    )
    last_error: str = Field(default="", description="what went wrong last, kept over retries")
    last_seq: int = Field(default=0, description="number of the newest event")
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class RunEvent(Frozen):
    """One event of a run's gap-free stream."""

    seq: int = Field(ge=1)
    kind: str
    message: str
    data: dict[str, JsonValue] = Field(default_factory=dict)
    at: datetime


class ProposalView(Frozen):
    """A candidate put forward for promotion, with the evidence that only approvers see."""

    id: str
    run_id: str
    agent: str
    label: str
    state: ProposalState
    verdict: Verdict | None = None
    incumbent_version: int
    candidate_version: int | None = None
    candidate_digest: str
    reason: str = ""
    outcome: SealedOutcome | None = None
    validation_mean: float | None = None
    incumbent_validation_mean: float | None = None
    decided_by: str = ""
    note: str = ""
    created_at: datetime
    decided_at: datetime | None = None


class PromotionView(Frozen):
    """A label move made because of a proposal, and what became of it."""

    id: str
    proposal_id: str
    run_id: str
    agent: str
    label: str
    from_version: int
    to_version: int
    state: PromotionState
    by: str
    cause: str = Field(default="", description="why it was rolled back")
    created_at: datetime
    ended_at: datetime | None = None
