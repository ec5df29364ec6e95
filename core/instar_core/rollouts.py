"""Rollouts: one attempt of a candidate at a task, with its trajectory, score and usage."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from instar_core.base import Frozen, JsonValue
from instar_core.messages import Message, ToolCall
from instar_core.usage import Usage

__all__ = ["Rollout", "Score", "Step", "StopReason", "TokenCapture", "Trajectory"]

StopReason = Literal[
    "answered",
    "tool_final",
    "max_steps",
    "max_tokens",
    "max_cost",
    "timeout",
    "identical_calls",
    "context_overflow",
    "cancelled",
    "infrastructure_error",
]


class TokenCapture(Frozen):
    """Token-faithful record of one reply of an open model; never re-tokenised later."""

    prompt_ids: tuple[int, ...] = ()
    reply_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = Field(default=(), description="natural log, one per reply id")
    adapter: str = ""


class Step(Frozen):
    """One step of a trajectory: a model's reply, a tool's result, or a note of the harness."""

    index: int = Field(ge=0)
    kind: Literal["model", "tool", "note"]
    message: Message
    request_hash: str = Field(default="", description="sha256 of the messages sent to the model")
    model: str = Field(default="", description="what replied, as exactly as its client can say")
    finish_reason: str = Field(
        default="", description="why the model ended its reply: stop, length, tool_calls"
    )
    tool_call: ToolCall | None = None
    is_error: bool = False
    capture: TokenCapture | None = None
    usage: Usage = Usage()


class Trajectory(Frozen):
    """What happened in a rollout, step by step, from the first messages on."""

    opening: tuple[Message, ...] = Field(default=(), description="messages before the first reply")
    steps: tuple[Step, ...] = ()
    stop: StopReason = "answered"
    answer: str = ""
    final_state: JsonValue = Field(default=None, description="environment state, where inspected")


class Score(Frozen):
    """A verifier's judgement: reward in [0, 1] (higher is better) and feedback in words."""

    reward: float = Field(ge=0.0, le=1.0)
    feedback: str = ""
    verifier: str = ""
    details: dict[str, JsonValue] = Field(default_factory=dict)


class Rollout(Frozen):
    """One attempt. ``score`` is ``None`` exactly when infrastructure failed (never a zero)."""

    id: str
    task_id: str
    candidate_digest: str
    draw: int = Field(ge=0)
    arm: str = ""
    trajectory: Trajectory = Trajectory()
    score: Score | None = None
    usage: Usage = Usage()
    error: str = ""

    @property
    def reward(self) -> float:
        """The reward in [0, 1].

        Raises:
            ValueError: If infrastructure failed, so that a missing score is never read as zero.
        """
        if self.score is None:
            raise ValueError(f"rollout {self.id} has no score: {self.error or 'not scored'}")
        return self.score.reward
