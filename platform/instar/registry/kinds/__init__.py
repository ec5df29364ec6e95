"""Kinds: the built-in fourteen and those of installed packages, by name.

A package adds one by an entry point in the group ``instar.kinds`` that gives a class without
arguments, which answers to :class:`instar_core.kinds.Kind`; its name must not be taken.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from instar_core.errors import NotFoundError, PrerequisiteError
from instar_core.kinds import Kind, did_you_mean

__all__ = ["BUILT_IN", "GROUP", "list_kinds", "open_kind"]

GROUP = "instar.kinds"
BUILT_IN: dict[str, str] = {
    "prompt": "prompt:Prompt",
    "lessons": "lessons:LessonsKind",
    "demonstrations": "demonstrations:DemonstrationsKind",
    "skill": "skill:Skill",
    "memory_bank": "memory_bank:MemoryBank",
    "tool_definition": "tool_definition:ToolDefinitionKind",
    "middleware": "middleware:MiddlewareKind",
    "policy": "policy:Policy",
    "workflow": "workflow:WorkflowKind",
    "agent": "agent:Agent",
    "task_set": "task_set:TaskSet",
    "environment": "environment:EnvironmentKind",
    "evaluator": "evaluator:EvaluatorKind",
    "adapter": "adapter:AdapterKind",
}
"""Kind → where its class is; modules are imported when a kind is first opened."""
_PARTS = (
    "name",
    "title",
    "form",
    "limits",
    "examples",
    "check",
    "shown",
    "listing",
    "search_text",
    "problems",
    "components",
    "files",
    "read_files",
)


def list_kinds() -> list[str]:
    """The names of all kinds: the built-in ones in their order, then installed ones by name."""
    installed = {point.name for point in _points(tuple(sys.path))} - set(BUILT_IN)
    return [*BUILT_IN, *sorted(installed)]


@lru_cache(maxsize=256)
def open_kind(name: str) -> Kind:
    """The kind of that name.

    Raises:
        NotFoundError: If there is none; names the nearest.
        PrerequisiteError: If an installed package offers it and cannot be used; names the entry
            point and what is wrong with it.
    """
    points = [point for point in _points(tuple(sys.path)) if point.name == name]
    if name in BUILT_IN:
        if points:
            raise PrerequisiteError(
                f"the entry point {points[0].name} = {points[0].value} offers a kind under a "
                "built-in name.",
                remedy="Uninstall that package, or ask its author to rename the kind.",
            )
        module, _, cls = BUILT_IN[name].partition(":")
        return cast("Kind", getattr(import_module(f"{__name__}.{module}"), cls)())
    if not points:
        raise NotFoundError(
            f"There is no kind {name[:100]!r}.",
            remedy=did_you_mean(name, list_kinds(), what="Kinds"),
        )
    if len(points) > 1:
        offers = " and ".join(point.value for point in points)
        raise PrerequisiteError(
            f"several installed packages offer a kind {name!r}: {offers}.",
            remedy="Uninstall all but one.",
        )
    return _load(points[0])


@lru_cache(maxsize=8)
def _points(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """What packages on the path offer: read once, since that takes longer than a database does."""
    return tuple(entry_points(group=GROUP))


def _load(point: EntryPoint) -> Kind:
    where = f"the kind {point.name!r} (entry point {point.name} = {point.value})"
    remedy = "Repair or uninstall the package that offers it."
    try:
        made = point.load()()
    except Exception as error:
        raise PrerequisiteError(
            f"{where} cannot be loaded: {type(error).__name__}: {error}.", remedy=remedy
        ) from error
    missing = [part for part in _PARTS if not hasattr(made, part)]
    if missing:
        raise PrerequisiteError(f"{where} lacks {', '.join(missing)}.", remedy=remedy)
    if made.name != point.name:
        raise PrerequisiteError(f"{where} calls itself {made.name!r}.", remedy=remedy)
    return cast("Kind", made)
