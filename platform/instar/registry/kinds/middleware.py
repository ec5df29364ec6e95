"""Middleware: what happens around an agent's model and tool calls, step by step, in order."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from instar.registry.kinds.base import ModelKind
from instar_core.base import Frozen, JsonValue
from instar_core.kinds import TrainableComponent, estimate_tokens

__all__ = ["Hook", "MiddlewareContent", "MiddlewareKind", "MiddlewareStep"]

Hook = Literal["start", "before_model", "after_model", "before_tool", "after_tool", "end"]


class MiddlewareStep(Frozen):
    """One step: at a hook, either a registered function by name or Python code for the sandbox.

    ``tools`` narrows a tool hook to tools of these names; empty means all.
    """

    id: str = Field(min_length=1)
    on: Hook
    use: str = Field(default="", description="name of a registered middleware")
    code: str = Field(default="", description="Python source, run in the sandbox")
    config: dict[str, JsonValue] = Field(default_factory=dict)
    tools: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_body(self) -> MiddlewareStep:
        if bool(self.use) == bool(self.code):
            raise ValueError(f"the step {self.id!r} needs either 'use' or 'code'")
        if self.tools and not self.on.endswith("_tool"):
            raise ValueError(f"the step {self.id!r} names tools and is not at a tool hook")
        if self.code:
            try:
                compile(self.code, f"middleware {self.id}", "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise ValueError(f"the code of {self.id!r} is no Python: {error}") from None
        return self


class MiddlewareContent(Frozen):
    """Steps in the order in which they run at their hook."""

    steps: tuple[MiddlewareStep, ...] = Field(min_length=1, max_length=100)

    @model_validator(mode="after")
    def _unique(self) -> MiddlewareContent:
        ids = [step.id for step in self.steps]
        for one in ids:
            if ids.count(one) > 1:
                raise ValueError(f"two steps have the id {one!r}")
        return self


class MiddlewareKind(ModelKind[MiddlewareContent]):
    """Middleware as an artifact."""

    name = "middleware"
    title = "what happens around an agent's model and tool calls"
    model = MiddlewareContent
    budget_tokens = 2_000

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """A registered step, and one with code of its own."""
        cut: dict[str, JsonValue] = {
            "id": "cut",
            "on": "after_tool",
            "use": "truncate",
            "config": {"bytes": 4096},
        }
        ask: dict[str, JsonValue] = {
            "id": "ask",
            "on": "end",
            "code": "def run(state):\n    return state\n",
        }
        return {"steps": [cut]}, {"steps": [cut, ask]}

    def summary(self, content: JsonValue) -> str:
        """The steps by hook."""
        return ", ".join(f"{step.id} ({step.on})" for step in self.parse(content).steps)

    def components(self, content: JsonValue) -> tuple[TrainableComponent, ...]:
        """The code of each step that has some."""
        return tuple(
            TrainableComponent(
                name=step.id,
                kind=self.name,
                tokens=estimate_tokens(step.code),
                budget_tokens=self.budget_tokens,
            )
            for step in self.parse(content).steps
            if step.code
        )
