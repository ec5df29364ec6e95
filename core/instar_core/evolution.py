"""Evolution's words: verdicts, states, quotes, events, evidence, and the sealed test's outcome."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from instar_core.base import Frozen, JsonValue
from instar_core.usage import Amount

__all__ = [
    "AcceptanceConfig",
    "Event",
    "Evidence",
    "Prediction",
    "ProposalState",
    "PromotionState",
    "Quote",
    "RunState",
    "SealedOutcome",
    "Verdict",
]

Verdict = Literal["accepted", "no_improvement", "undecided", "blocked"]
RunState = Literal[
    "queued",
    "running",
    "paused",
    "interrupted",
    "succeeded",
    "no_improvement",
    "failed",
    "cancelled",
    "budget_exhausted",
]
ProposalState = Literal["testing", "waiting", "stale", "approved", "rejected", "withdrawn"]
PromotionState = Literal["watching", "kept", "rolled_back"]


class AcceptanceConfig(Frozen):
    """Defaults of the sealed test (acceptance-stats.md §1), kept in this one place."""

    alpha: float = Field(default=0.05, gt=0.0, lt=1.0, description="level per epoch")
    bets: int = Field(
        default=20, ge=1, le=1000, description="number of constant bets in the mixture"
    )
    epoch_tests: int = Field(default=50, ge=1, le=10_000, description="H: proposals per epoch")
    max_pairs: int = Field(default=200, ge=1, le=100_000)
    min_pairs: int = Field(default=20, ge=1, le=100_000)
    futility_effect: float = Field(default=0.05, gt=0.0, le=1.0)
    futility_evidence: float = Field(default=10.0, gt=1.0, le=1e300)
    harm_evidence: float = Field(default=20.0, gt=1.0, le=1e300)
    max_missing: float = Field(default=0.02, ge=0.0, le=1.0)
    repeats: int = Field(
        default=1, ge=1, le=100, description="rollouts per arm averaged into one pair"
    )
    max_uses_of_group: int = Field(
        default=5, ge=1, le=10_000, description="tests a group serves per epoch"
    )


class SealedOutcome(Frozen):
    """What a finished sealed test found. Code sees only ``verdict``; the rest is for approvers."""

    verdict: Verdict
    reason: str = ""
    pairs: int = 0
    wins: int = 0
    losses: int = 0
    ties: int = 0
    missing: int = 0
    mean_difference: float = 0.0
    interval: tuple[float, float] = (-1.0, 1.0)
    interval_level: float = 0.95
    evidence: float = Field(
        default=1.0, description="e-value at the stopping time (not the maximum)"
    )
    threshold: float = Field(default=77.0, description="1/alpha_t that the evidence had to reach")
    candidate_mean: float = 0.0
    incumbent_mean: float = 0.0
    words: str = ""
    groups_used: int = Field(default=0, description="groups of the ticket that were run or begun")
    state: JsonValue = Field(
        default=None, description="the statistic's state, from which an undecided test goes on"
    )


class Evidence(Frozen):
    """Why a candidate is put forward: the rollouts and scores that speak for it."""

    reason: str
    rollout_ids: tuple[str, ...] = ()
    validation_mean: float | None = None
    incumbent_validation_mean: float | None = None


class Prediction(Frozen):
    """What a proposer expects of a change, to be scored on validation outcomes later."""

    fixes: tuple[str, ...] = ()
    at_risk: tuple[str, ...] = ()


class Event(Frozen):
    """One thing worth showing about a run: a kind, words, and data for plots."""

    kind: str
    message: str
    data: dict[str, JsonValue] = Field(default_factory=dict)


class Quote(Frozen):
    """What a run is expected to take, and the smallest effect that it could detect."""

    expected: Amount
    limit: Amount
    seconds_per_rollout: float
    sealed_pairs: int
    alpha_t: float
    pairs_for_half_power: int | None = None
    pairs_for_80_power: int | None = None
    smallest_detectable_effect: float | None = Field(
        default=None,
        description="gain found with at least 80 % power, counted carefully; None when nothing "
        "could be found",
    )
    probes: Amount = Field(
        default=Amount(),
        description="what measuring a few rollouts for this quote took; spent, outside the run",
    )
    assumptions: dict[str, JsonValue] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    made_at: datetime | None = None
