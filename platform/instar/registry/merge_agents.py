"""Merging agents: component by component, each in the form of its kind, and the harness."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from instar.registry.kinds import open_kind
from instar.registry.merge import Conflict, Dropped, Prefer, merge_contents
from instar.registry.merge_parts import merge_order
from instar_core.base import JsonValue, canonical_json
from instar_core.candidates import ARTIFACT_KINDS, Candidate, Component, Harness

__all__ = ["AgentMerge", "merge_candidates", "same_candidate"]

T = TypeVar("T", Conflict, Dropped)


class AgentMerge(NamedTuple):
    """The merged agent, or ``None`` and the conflicts; what a preferred side cost the other."""

    candidate: Candidate | None
    conflicts: tuple[Conflict, ...]
    dropped: tuple[Dropped, ...]


class _Part(NamedTuple):
    component: Component | None
    conflicts: tuple[Conflict, ...] = ()
    dropped: tuple[Dropped, ...] = ()


def merge_candidates(
    base: Candidate, ours: Candidate, theirs: Candidate, *, prefer: Prefer = "none"
) -> AgentMerge:
    """Merges two changes of one agent.

    A component, and the harness, that one side left alone is the other side's. Both sides are the
    parents of the merged candidate.

    Args:
        base: What both started from.
        ours: One side.
        theirs: The other one.
        prefer: The side that wins where both changed a place; ``none`` leaves it a conflict.
    """
    merged: dict[str, Component] = {}
    conflicts: list[Conflict] = []
    dropped: list[Dropped] = []
    for name in sorted({*base.components, *ours.components, *theirs.components}):
        sides = [one.components.get(name) for one in (base, ours, theirs)]
        part = _merge_component(name, sides, prefer)
        conflicts += part.conflicts
        dropped += part.dropped
        if part.component is not None:
            merged[name] = part.component
    dumped = [one.harness.model_dump(mode="json") for one in (base, ours, theirs)]
    harness = merge_contents("json", dumped[0], dumped[1], dumped[2], prefer=prefer)
    conflicts += [_under("/harness", one) for one in harness.conflicts]
    dropped += [_under("/harness", one) for one in harness.dropped]
    names = [list(one.components) for one in (base, ours, theirs)]
    order = merge_order(names[0], names[1], names[2], set(merged))
    if order is None and prefer == "none":
        shown: list[JsonValue] = [list(one) for one in names]
        conflicts.append(
            Conflict(
                path="/components#order",
                what="order",
                base=shown[0],
                ours=shown[1],
                theirs=shown[2],
            )
        )
    if conflicts:
        return AgentMerge(None, tuple(conflicts), ())
    if order is None:
        first = names[1 if prefer == "ours" else 2]
        order = [one for one in first if one in merged]
        order += [one for one in merged if one not in order]
    candidate = Candidate(
        components={name: merged[name] for name in order},
        harness=Harness.model_validate(harness.content),
        parents=(ours.digest, theirs.digest),
    )
    return AgentMerge(candidate, (), tuple(dropped))


def _merge_component(name: str, sides: list[Component | None], prefer: Prefer) -> _Part:
    base, ours, theirs = sides
    place = f"/components/{name.replace('~', '~0').replace('/', '~1')}"
    if base is None or ours is None or theirs is None or ours.kind != theirs.kind:
        dumped = [{} if one is None else {"c": one.model_dump(mode="json")} for one in sides]
        whole = merge_contents("json", {**dumped[0]}, {**dumped[1]}, {**dumped[2]}, prefer=prefer)
        conflicts = tuple(
            one.model_copy(update={"path": place + one.path.removeprefix("/c")})
            for one in whole.conflicts
        )
        dropped = tuple(
            one.model_copy(update={"path": place + one.path.removeprefix("/c")})
            for one in whole.dropped
        )
        if not isinstance(whole.content, dict) or "c" not in whole.content:
            return _Part(None, conflicts, dropped)
        return _Part(Component.model_validate(whole.content["c"]), conflicts, dropped)
    about = [one.model_dump(mode="json", exclude={"content"}) for one in (base, ours, theirs)]
    facts = merge_contents("json", about[0], about[1], about[2], prefer=prefer)
    form = open_kind(ARTIFACT_KINDS[ours.kind]).form
    content = merge_contents(form, base.content, ours.content, theirs.content, prefer=prefer)
    conflicts = tuple(_under(place, one) for one in facts.conflicts)
    conflicts += tuple(_under(f"{place}/content", one) for one in content.conflicts)
    dropped = tuple(_under(place, one) for one in facts.dropped)
    dropped += tuple(_under(f"{place}/content", one) for one in content.dropped)
    if conflicts or not isinstance(facts.content, dict):
        return _Part(ours, conflicts, dropped)
    merged = {**facts.content, "content": content.content}
    return _Part(Component.model_validate(merged), (), dropped)


def same_candidate(one: Candidate, other: Candidate) -> bool:
    """Whether two candidates are one agent: what is tested, and who may change it."""
    return canonical_json(_shown(one)) == canonical_json(_shown(other))


def _shown(candidate: Candidate) -> JsonValue:
    dumped: JsonValue = candidate.model_dump(mode="json", include={"components", "harness"})
    return [dumped, list(candidate.components)]


def _under(place: str, told: T) -> T:
    between = "" if not told.path or told.path[0] in "/#" else "/"
    return told.model_copy(update={"path": f"{place}{between}{told.path}"})
