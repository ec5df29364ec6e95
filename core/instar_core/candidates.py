"""Candidates: an agent version under test, as an ordered map of named components.

The harness names what stays fixed while text evolves: model, sampling, tools, limits. The digest
covers components and harness, so what is tested is what ships, byte for byte.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field

from instar_core.base import Frozen, JsonValue, content_hash
from instar_core.messages import Sampling, ToolCall

__all__ = [
    "ARTIFACT_KINDS",
    "Candidate",
    "Component",
    "ComponentKind",
    "Demonstration",
    "Demonstrations",
    "Harness",
    "Lesson",
    "Lessons",
    "Limits",
    "ToolServer",
]

ComponentKind = Literal[
    "instructions",
    "lessons",
    "demonstrations",
    "tool_descriptions",
    "tool_policy",
    "skill",
    "memory",
    "workflow",
    "judge",
    "middleware",
]


ARTIFACT_KINDS: dict[ComponentKind, str] = {
    "instructions": "prompt",
    "lessons": "lessons",
    "demonstrations": "demonstrations",
    "tool_descriptions": "tool_definition",
    "tool_policy": "policy",
    "skill": "skill",
    "memory": "memory_bank",
    "workflow": "workflow",
    "judge": "evaluator",
    "middleware": "middleware",
}
"""Kind of a component → kind of the artifact that its versions are kept under."""


class Lesson(Frozen):
    """One learned entry with a stable id (never renumbered): when a condition holds, do this."""

    id: str
    text: str


class Lessons(Frozen):
    """Content of a ``lessons`` component: entries in order, rendered into the system prompt."""

    entries: tuple[Lesson, ...] = ()


class Demonstration(Frozen):
    """One solved case shown as chat turns: the input, then the agent's turns that solved it."""

    id: str
    input: str
    actions: tuple[ToolCall, ...] = ()
    answer: str | None = None
    source: str = Field(default="", description="rollout id or 'reference:<task id>'")


class Demonstrations(Frozen):
    """Content of a ``demonstrations`` component: a pool and how many are shown, chosen how.

    ``fixed`` shows ``order`` (ids) as given; ``nearest`` shows the ``k`` pool entries whose input
    embedding is most similar to the task's input, most similar last.
    """

    pool: tuple[Demonstration, ...] = ()
    retrieval: Literal["fixed", "nearest"] = "fixed"
    k: int = Field(default=0, ge=0)
    order: tuple[str, ...] = ()


class Component(Frozen):
    """One named text or structure of an agent that may be changed."""

    kind: ComponentKind
    content: JsonValue
    trainable: bool = True
    owner: Literal["person", "job"] = "person"
    budget_tokens: int | None = None


class Limits(Frozen):
    """Bounds of one rollout or run; reaching one ends it with a distinct stop reason."""

    max_steps: int = Field(default=8, ge=1, le=10_000)
    max_tokens: int = Field(default=20_000, ge=1, le=10**9)
    max_cost_usd: float = Field(default=1.0, ge=0.0, le=1e6)
    timeout_s: float = Field(default=120.0, gt=0.0, le=86_400.0)
    max_identical_calls: int = Field(default=3, ge=1, le=10_000)


class ToolServer(Frozen):
    """A reference to a registered tool source by name; bindings say where it runs."""

    name: str
    allow: tuple[str, ...] = Field(default=(), description="tool names offered; empty means all")


class Harness(Frozen):
    """The fixed part of an agent version: model, sampling, tools, limits, tool protocol.

    ``tool_protocol`` is ``native`` (provider tool calls), ``text`` (one JSON object per reply,
    parsed tolerantly), or ``none``. ``environment`` names the rollout backend: ``agent`` runs the
    real agent loop, ``world:<name>`` a world with a known answer.
    """

    model: str
    sampling: Sampling = Sampling()
    tools: tuple[ToolServer, ...] = ()
    tool_protocol: Literal["native", "text", "none"] = "none"
    final_after_tool: bool = Field(
        default=False, description="end the rollout after the first executed tool call"
    )
    limits: Limits = Limits()
    environment: str = "agent"


class Candidate(Frozen):
    """An agent version under test: components by name, and the harness they run in."""

    components: dict[str, Component]
    harness: Harness
    parents: tuple[str, ...] = Field(
        default=(), description="digests of the candidates it came from"
    )
    note: str = ""

    @cached_property
    def digest(self) -> str:
        """The sha256 of the tested form: contents and kinds of components, and the harness."""
        tested = {
            "components": {
                name: {"kind": part.kind, "content": part.content}
                for name, part in self.components.items()
            },
            "order": list(self.components),
            "harness": self.harness.model_dump(mode="json"),
        }
        return content_hash(tested)

    def with_component(self, name: str, content: JsonValue, *, note: str = "") -> Candidate:
        """A child candidate in which one component has other content; self is its parent.

        Raises:
            KeyError: If no component has that name.
        """
        changed = self.components[name].model_copy(update={"content": content})
        return Candidate(
            components={**self.components, name: changed},
            harness=self.harness,
            parents=(self.digest,),
            note=note,
        )
