"""Components: finding the part of a candidate that an evolver may change."""

from __future__ import annotations

from instar_core.candidates import Candidate, ComponentKind
from instar_core.errors import UserError

__all__ = ["find_component"]


def find_component(candidate: Candidate, kind: ComponentKind) -> str:
    """The name of the first trainable component of a kind.

    Raises:
        UserError: If there is none; lists what there is.
    """
    for name, part in candidate.components.items():
        if part.kind == kind and part.trainable:
            return name
    present = ", ".join(f"{name} ({part.kind})" for name, part in candidate.components.items())
    raise UserError(
        f"The agent has no trainable component of kind {kind!r}; it has: {present or 'none'}.",
        remedy=f"Add an empty component of kind {kind!r} to the agent, or mark one as trainable.",
    )
