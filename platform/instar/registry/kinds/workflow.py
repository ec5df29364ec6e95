"""Workflow: agents in roles, and the order in which they work, as a graph of steps.

The steps are an execution blueprint with explicit dependencies, kept outputs and stated error
handling, after Agent Context Protocols (Bhardwaj et al., 2025). Ours differs: the blueprint is an
artifact that is tested and versioned, not something that a run writes for itself.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from pydantic import Field, model_validator

from instar.registry.kinds.base import ModelKind
from instar_core.base import Frozen, JsonValue, short
from instar_core.candidates import Limits
from instar_core.json_schema import schema_problem
from instar_core.kinds import TrainableComponent, estimate_tokens

__all__ = ["Role", "WorkflowContent", "WorkflowKind", "WorkflowStep"]

_PLACE = re.compile(r"\{\{\s*([^{}\s]+)\s*\}\}")


class Role(Frozen):
    """Who does the work of a step: an agent by name and label, or a model with instructions."""

    agent: str = Field(default="", description="name of an agent, or name@label")
    model: str = ""
    instructions: str = ""

    @model_validator(mode="after")
    def _someone(self) -> Role:
        if bool(self.agent) == bool(self.model):
            raise ValueError("a role needs either 'agent' or 'model'")
        if self.agent and self.instructions:
            raise ValueError("a role with an agent has that agent's instructions")
        return self


class WorkflowStep(Frozen):
    """One step: a role is given an input made of the task's and of earlier steps' outputs.

    ``{{input}}`` stands for the task's input and ``{{steps.ID}}`` for what the step ID gave; ID
    must be among ``needs``.
    """

    id: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")
    role: str
    input: str = "{{input}}"
    needs: tuple[str, ...] = ()
    output_schema: dict[str, JsonValue] | None = None
    on_error: Literal["stop", "skip", "retry"] = "stop"
    retries: int = Field(default=0, ge=0, le=10)
    rounds: int = Field(default=1, ge=1, le=100, description="most repetitions until it is done")

    @model_validator(mode="after")
    def _consistent(self) -> WorkflowStep:
        for place in _PLACE.findall(self.input):
            if place != "input" and place.removeprefix("steps.") not in self.needs:
                raise ValueError(
                    f"the step {self.id!r} uses {{{{{short(place)}}}}}, which is neither the input "
                    "nor a step that it needs"
                )
        if (self.on_error == "retry") != (self.retries > 0):
            raise ValueError(f"the step {self.id!r}: 'retries' go with on_error 'retry'")
        problem = None if self.output_schema is None else schema_problem(self.output_schema)
        if problem is not None:
            raise ValueError(f"the step {self.id!r}: output_schema: {problem}")
        return self


class WorkflowContent(Frozen):
    """Roles, steps in order, the step whose output is the answer, and the limits of one run."""

    roles: dict[str, Role] = Field(min_length=1)
    steps: tuple[WorkflowStep, ...] = Field(min_length=1, max_length=200)
    answer: str = Field(default="", description="id of the step that answers; '' means the last")
    limits: Limits = Limits()
    parallel: int = Field(default=1, ge=1, le=64, description="most steps at the same time")

    @model_validator(mode="after")
    def _is_graph(self) -> WorkflowContent:
        ids = [step.id for step in self.steps]
        for one in ids:
            if ids.count(one) > 1:
                raise ValueError(f"two steps have the id {one!r}")
        for step in self.steps:
            if step.role not in self.roles:
                raise ValueError(
                    f"the step {step.id!r} is for the role {step.role!r}; roles: "
                    f"{', '.join(self.roles)}"
                )
            for need in step.needs:
                if need not in ids:
                    raise ValueError(f"the step {step.id!r} needs {need!r}, which is no step")
        if self.answer and self.answer not in ids:
            raise ValueError(f"the answer is to come from {self.answer!r}, which is no step")
        try:
            TopologicalSorter({step.id: step.needs for step in self.steps}).prepare()
        except CycleError as error:
            raise ValueError(f"steps wait for each other: {' -> '.join(error.args[1])}") from None
        return self


class WorkflowKind(ModelKind[WorkflowContent]):
    """A workflow as an artifact."""

    name = "workflow"
    title = "agents in roles, and the order in which they work"
    model = WorkflowContent
    budget_tokens = 1_000

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two workflows."""
        roles: dict[str, JsonValue] = {
            "writer": {"agent": "desk@production"},
            "critic": {"model": "scripted/critic"},
        }
        draft: dict[str, JsonValue] = {"id": "draft", "role": "writer"}
        check: dict[str, JsonValue] = {
            "id": "check",
            "role": "critic",
            "needs": ["draft"],
            "input": "Question: {{input}} Answer: {{steps.draft}}",
        }
        return {"roles": roles, "steps": [draft]}, {"roles": roles, "steps": [draft, check]}

    def summary(self, content: JsonValue) -> str:
        """The steps and who does them."""
        return ", ".join(f"{step.id} ({step.role})" for step in self.parse(content).steps)

    def components(self, content: JsonValue) -> tuple[TrainableComponent, ...]:
        """Instructions of roles and inputs of steps; the order itself is one more component."""
        found = self.parse(content)
        texts = {
            **{f"roles/{name}": role.instructions for name, role in found.roles.items()},
            **{f"steps/{step.id}": step.input for step in found.steps},
        }
        named = [
            TrainableComponent(
                name=name,
                kind=self.name,
                tokens=estimate_tokens(text),
                budget_tokens=self.budget_tokens,
            )
            for name, text in texts.items()
            if text and text != "{{input}}"
        ]
        return (TrainableComponent(name="order", kind=self.name), *named)
