"""Trainable components of a stored version: what evolution may change, whose it is, how large."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry.verbs import known_kind, read_shown, resolve_known
from instar.store.artifacts import ArtifactRef
from instar_core.kinds import TrainableComponent

__all__ = ["components"]


async def components(
    session: AsyncSession, ref: ArtifactRef, at: str | int = "latest"
) -> tuple[TrainableComponent, ...]:
    """The parts of a version that may be trained, with owners and size budgets.

    An agent's components have owners of their own; of everything else the owner is whoever made the
    artifact.

    Raises:
        NotFoundError: If there is no such artifact or version; names the nearest.
        InvalidContent: If what is stored is older than its kind's check and does not pass it.
    """
    found = await resolve_known(session, ref, at)
    kind = known_kind(ref.kind)
    if kind is None:
        return ()
    content = await read_shown(session, ref, found.version)
    parts = kind.components(kind.check(content))
    if found.artifact.owner_kind != "run" or ref.kind == "agent":
        return parts
    return tuple(part.model_copy(update={"owner": "job"}) for part in parts)
