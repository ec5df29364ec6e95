"""The registry of verifiers: built-in ones by name, and those of installed packages.

A package adds one by an entry point in the group ``instar.verifiers`` that gives a class without
arguments; its name must not be taken.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import entry_points

from instar.rollouts.verifiers.actions import State, ToolCalls
from instar.rollouts.verifiers.answers import Exact, JsonSchema, Numeric, Regex
from instar.rollouts.verifiers.base import Verifier
from instar.rollouts.verifiers.reasoning_gym import ReasoningGym
from instar_core.errors import VerifierError

__all__ = ["GROUP", "find_verifier", "list_verifiers"]

GROUP = "instar.verifiers"
_BUILT_IN: dict[str, Verifier] = {
    verifier.name: verifier
    for verifier in (
        Exact(),
        Numeric(),
        Regex(),
        JsonSchema(),
        ToolCalls(),
        State(),
        ReasoningGym(),
    )
}


def list_verifiers() -> list[str]:
    """The names of all verifiers that tasks may use, sorted."""
    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


@lru_cache(maxsize=256)
def find_verifier(name: str) -> Verifier:
    """The verifier of that name.

    Raises:
        VerifierError: If there is none, an installed one takes a built-in's name, or it cannot be
            loaded.
    """
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    if name in _BUILT_IN:
        if points:
            raise VerifierError(
                f"an installed package offers a verifier {name!r}, which is a built-in name",
                remedy="Uninstall it, or ask its author to rename it.",
            )
        return _BUILT_IN[name]
    if not points:
        raise VerifierError(
            f"there is no verifier {name!r}; there are: {', '.join(list_verifiers())}"
        )
    if len(points) > 1:
        raise VerifierError(f"several installed packages offer a verifier {name!r}")
    try:
        made = points[0].load()()
    except Exception as error:
        raise VerifierError(
            f"verifier {name!r} ({points[0].value}) cannot be loaded: {error}"
        ) from error
    missing = [
        part for part in ("name", "check", "score", "needs_state") if not hasattr(made, part)
    ]
    if missing:
        raise VerifierError(f"verifier {name!r} ({points[0].value}) lacks {', '.join(missing)}")
    found: Verifier = made
    return found
