"""Agent: named components in order, and the harness that stays fixed while they evolve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import cast

from pydantic import Field

from instar.registry.kinds import open_kind
from instar.registry.kinds.base import BaseKind, texts_in
from instar_core.base import Frozen, JsonValue, short
from instar_core.candidates import ARTIFACT_KINDS, Candidate, Component, Harness
from instar_core.errors import InvalidContent
from instar_core.kinds import KindLimits, TrainableComponent, estimate_tokens, parse_content

__all__ = ["Agent", "agent_content", "candidate_of", "check_parts"]

_MOST_COMPONENTS = 200
# Kinds of components that the runtime reads; others are kept for what will read them.
_CHECKED = frozenset({"instructions", "lessons", "demonstrations", "tool_descriptions"})


class _NamedComponent(Component):
    name: str = Field(min_length=1, max_length=128, pattern=r"^[^/@\s]+$")


class _AgentContent(Frozen):
    components: tuple[_NamedComponent, ...]
    harness: Harness


class Agent(BaseKind):
    """An agent as an artifact.

    Its canonical form lists the components, because objects of JSON have no order and an agent's
    components do; a map of names to components is taken too, in the order in which it came.
    """

    name = "agent"
    title = "components and the harness they run in"
    limits = KindLimits(max_bytes=5_000_000, max_depth=80)

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two agents."""
        prompt: dict[str, JsonValue] = {"kind": "instructions", "content": "Name the queue."}
        lesson: dict[str, JsonValue] = {
            "kind": "lessons",
            "content": {"entries": [{"id": "L1", "text": "Be brief."}]},
        }
        harness: dict[str, JsonValue] = {"model": "scripted/desk"}
        return (
            {"components": {"prompt": prompt}, "harness": harness},
            {"components": {"prompt": prompt, "learned": lesson}, "harness": harness},
        )

    def check(self, content: JsonValue) -> JsonValue:
        """Components with unique names, and a harness under which their tools can be used."""
        if isinstance(content, dict) and isinstance(content.get("components"), dict):
            by_name = cast("dict[str, JsonValue]", content["components"])
            listed: list[JsonValue] = [
                {"name": name, **part} if isinstance(part, dict) else part
                for name, part in by_name.items()
            ]
            content = {**content, "components": listed}
        found = parse_content(_AgentContent, content, "agent")
        names = [part.name for part in found.components]
        twice = next((one for one, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise InvalidContent(f"agent: two components have the name {short(twice)!r}.")
        check_parts({part.name: part for part in found.components}, found.harness)
        dumped: JsonValue = found.model_dump(mode="json")
        return dumped

    def summary(self, content: JsonValue) -> str:
        """Its model and its components."""
        candidate = candidate_of(content)
        parts = ", ".join(f"{name} ({one.kind})" for name, one in candidate.components.items())
        return f"{candidate.harness.model}: {parts or 'no components'}"

    def components(self, content: JsonValue) -> tuple[TrainableComponent, ...]:
        """Its components with their owners, whether they are trained, and their budgets."""
        return tuple(
            TrainableComponent(
                name=name,
                kind=part.kind,
                owner=part.owner,
                trainable=part.trainable,
                tokens=estimate_tokens("\n".join(texts_in(part.content))),
                budget_tokens=part.budget_tokens,
            )
            for name, part in candidate_of(content).components.items()
        )


def check_parts(components: Mapping[str, Component], harness: Harness) -> None:
    """Refuses what the runtime could not run: an unusable component, or tools that no model sees.

    Raises:
        InvalidContent: Naming the component and the place, or the tools.
    """
    if len(components) > _MOST_COMPONENTS:
        raise InvalidContent(
            f"an agent of {len(components):,} components cannot be saved; at most "
            f"{_MOST_COMPONENTS} are: each is an artifact with versions of its own.",
            remedy="Put what belongs together into one component.",
        )
    for name, part in components.items():
        _check_component(name, part)
    if harness.tools and harness.tool_protocol == "none":
        named = ", ".join(repr(tool.name) for tool in harness.tools)
        raise InvalidContent(
            f"The harness names the tools {named} and the tool_protocol 'none', under which no "
            "model is shown a tool.",
            remedy="Set tool_protocol to 'native' (the provider's tool calls) or 'text' (for "
            "models without them), or leave the tools out.",
        )


def _check_component(name: str, component: Component) -> None:
    if component.kind not in _CHECKED:
        return
    what = f"the component {name!r}"
    if component.kind == "instructions" and not isinstance(component.content, str):
        raise InvalidContent(
            f"{what} of kind 'instructions' must be a text.", remedy="Send its text."
        )
    try:
        open_kind(ARTIFACT_KINDS[component.kind]).check(component.content)
    except InvalidContent as error:
        raise InvalidContent(f"{what}: {error.message}", remedy=error.remedy) from error


def candidate_of(content: JsonValue) -> Candidate:
    """The candidate that a checked content is; it has no parents."""
    found = parse_content(_AgentContent, content, "agent")
    parts = {
        part.name: Component.model_validate(part.model_dump(mode="json", exclude={"name"}))
        for part in found.components
    }
    return Candidate(components=parts, harness=found.harness)


def agent_content(candidate: Candidate) -> JsonValue:
    """The content that a candidate is, in canonical form."""
    parts: list[JsonValue] = [
        {**part.model_dump(mode="json"), "name": name}
        for name, part in candidate.components.items()
    ]
    return {"components": parts, "harness": candidate.harness.model_dump(mode="json")}
