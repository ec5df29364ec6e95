"""Evaluator: a verifier with its data, or a judge that asks a model, as an artifact."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from instar.registry.kinds.base import ModelKind
from instar_core.base import Frozen, JsonValue
from instar_core.kinds import TrainableComponent, estimate_tokens
from instar_core.messages import Sampling
from instar_core.tasks import VerifierSpec

__all__ = ["Criterion", "EvaluatorContent", "EvaluatorKind", "JudgeConfig"]


class Criterion(Frozen):
    """One thing that a judge looks at, and how much it counts."""

    id: str = Field(min_length=1)
    text: str = Field(min_length=1)
    weight: float = Field(default=1.0, gt=0.0, le=1_000.0)


class JudgeConfig(Frozen):
    """A judge: its model, what it is told, what it looks at, and the scale that it answers on.

    What is judged is shown to it between marks, as data: nothing in it is an instruction.
    """

    model: str = Field(min_length=1)
    instructions: str = Field(min_length=1)
    criteria: tuple[Criterion, ...] = ()
    scale: tuple[float, float] = (0.0, 1.0)
    sees: tuple[Literal["input", "answer", "steps", "reference", "state"], ...] = (
        "input",
        "answer",
        "reference",
    )
    samples: int = Field(default=1, ge=1, le=32, description="replies that are averaged")
    sampling: Sampling = Sampling()

    @model_validator(mode="after")
    def _consistent(self) -> JudgeConfig:
        if self.scale[0] >= self.scale[1]:
            raise ValueError(f"the scale {list(self.scale)} does not rise")
        ids = [one.id for one in self.criteria]
        for one in ids:
            if ids.count(one) > 1:
                raise ValueError(f"two criteria have the id {one!r}")
        if not self.sees:
            raise ValueError("a judge must see something")
        return self


class EvaluatorContent(Frozen):
    """Either a verifier or a judge. ``pass_at`` is the score from which a rollout counts as solved.

    ``role`` says what it is for: a ``reward`` is searched on, a ``safety`` or ``cost`` evaluator is
    a guard that a promotion must not make worse.
    """

    verifier: VerifierSpec | None = None
    judge: JudgeConfig | None = None
    pass_at: float = Field(default=1.0, gt=0.0, le=1.0)
    role: Literal["reward", "safety", "cost", "diagnostic"] = "reward"

    @model_validator(mode="after")
    def _one(self) -> EvaluatorContent:
        if (self.verifier is None) == (self.judge is None):
            raise ValueError("an evaluator is either a 'verifier' or a 'judge'")
        return self


class EvaluatorKind(ModelKind[EvaluatorContent]):
    """An evaluator as an artifact."""

    name = "evaluator"
    title = "what scores a rollout: a verifier or a judge"
    model = EvaluatorContent
    budget_tokens = 2_000

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two evaluators."""
        return (
            {"verifier": {"name": "exact", "config": {"answer": "billing"}}},
            {
                "judge": {
                    "model": "scripted/judge",
                    "instructions": "Say how well the answer fits the question.",
                    "criteria": [{"id": "polite", "text": "It is polite."}],
                },
                "pass_at": 0.5,
            },
        )

    def summary(self, content: JsonValue) -> str:
        """Which verifier, or which model judges."""
        found = self.parse(content)
        if found.judge is not None:
            return f"judge: {found.judge.model}"
        return f"verifier: {found.verifier.name if found.verifier else ''}"

    def components(self, content: JsonValue) -> tuple[TrainableComponent, ...]:
        """A judge's instructions, never trained unless a person says so: who grades is not graded
        by itself."""
        judge = self.parse(content).judge
        if judge is None:
            return ()
        tokens = estimate_tokens(judge.instructions)
        return (
            TrainableComponent(
                name="instructions",
                kind=self.name,
                trainable=False,
                tokens=tokens,
                budget_tokens=self.budget_tokens,
            ),
        )
