"""Overlays: learned versions on a person's base, and those that no longer fit their new base."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import Author
from instar.store.pages import Page, read_page
from instar.store.rows import read_row
from instar.store.tables import (
    ArtifactRow,
    LabelRow,
    OverlayConflictRow,
    PromotionRow,
    ProposalRow,
    VersionParentRow,
    VersionPartRow,
    VersionRow,
)
from instar_core.base import JsonValue, new_id

__all__ = [
    "add_conflict",
    "artifact_names",
    "close_conflicts",
    "find_live_overlay",
    "is_ancestor",
    "list_conflicts",
    "open_conflicts",
    "pinned_parts",
    "read_overlay_conflict",
]

_ALIVE = ("testing", "waiting", "approved")


async def find_live_overlay(session: AsyncSession, artifact_id: str) -> VersionRow | None:
    """The learned version of an artifact that a new base has to carry on, if there is one.

    That is the one which ``production`` names, else another label, else the newest. A version whose
    proposal was rejected or withdrawn, or whose promotion was rolled back, is carried on only while
    a label names it.
    """
    proposed = exists().where(ProposalRow.agent_version_id == VersionRow.id)
    alive = exists().where(
        ProposalRow.agent_version_id == VersionRow.id, ProposalRow.state.in_(_ALIVE)
    )
    undone = exists().where(
        PromotionRow.to_version_id == VersionRow.id, PromotionRow.state == "rolled_back"
    )
    labelled = exists().where(LabelRow.version_id == VersionRow.id)
    in_force = exists().where(LabelRow.version_id == VersionRow.id, LabelRow.name == "production")
    row: VersionRow | None = await session.scalar(
        select(VersionRow)
        .where(
            VersionRow.artifact_id == artifact_id,
            VersionRow.base_id.is_not(None),
            VersionRow.deleted_at.is_(None),
            labelled | ((~proposed | alive) & ~undone),
        )
        .order_by(in_force.desc(), labelled.desc(), VersionRow.number.desc())
        .limit(1)
    )
    return row


async def is_ancestor(session: AsyncSession, ancestor_id: str, version_id: str) -> bool:
    """Whether a version came from another one, over any number of parents."""
    walk = (
        select(VersionParentRow.parent_id.label("id"))
        .where(VersionParentRow.version_id == version_id)
        .cte("walk", recursive=True)
    )
    walk = walk.union(
        select(VersionParentRow.parent_id).join(walk, VersionParentRow.version_id == walk.c.id)
    )
    found = await session.scalar(select(walk.c.id).where(walk.c.id == ancestor_id).limit(1))
    return found is not None


async def pinned_parts(
    session: AsyncSession, version_id: str
) -> dict[str, tuple[str, str, str | None]]:
    """Name of a pinned part → its artifact, its version, and the base that this one lies on."""
    rows = await session.execute(
        select(VersionPartRow.name, VersionRow.artifact_id, VersionRow.id, VersionRow.base_id)
        .join(VersionRow, VersionRow.id == VersionPartRow.part_id)
        .where(VersionPartRow.version_id == version_id)
    )
    return {name: (artifact, version, base) for name, artifact, version, base in rows.tuples()}


async def add_conflict(
    session: AsyncSession, overlay: VersionRow, base: VersionRow, conflicts: JsonValue
) -> OverlayConflictRow:
    """Keeps that an overlay could not be laid on a new base, and where."""
    row = OverlayConflictRow(
        id=new_id(),
        project_id=overlay.project_id,
        artifact_id=overlay.artifact_id,
        overlay_id=overlay.id,
        former_base_id=overlay.base_id,
        base_id=base.id,
        conflicts=conflicts,
    )
    session.add(row)
    await session.flush()
    return row


async def close_conflicts(
    session: AsyncSession,
    conflict_ids: Sequence[str],
    resolution: str,
    by: Author,
    version_id: str | None = None,
) -> None:
    """Closes open conflicts: ``merged``, ``superseded`` or ``dismissed``."""
    await session.execute(
        update(OverlayConflictRow)
        .where(OverlayConflictRow.id.in_(list(conflict_ids)), OverlayConflictRow.resolution == "")
        .values(
            resolution=resolution,
            resolved_by=f"{by.kind}:{by.name}",
            resolved_version_id=version_id,
            resolved_at=func.clock_timestamp(),
        )
        .execution_options(synchronize_session=False)
    )


async def read_overlay_conflict(
    session: AsyncSession, conflict_id: str, *, lock: bool = False
) -> OverlayConflictRow:
    """The conflict.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    return await read_row(session, OverlayConflictRow, conflict_id, "overlay conflict", lock=lock)


async def list_conflicts(
    session: AsyncSession,
    project_id: str,
    *,
    artifact_id: str | None = None,
    only_open: bool = True,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[OverlayConflictRow]:
    """Conflicts of a project or of one artifact, newest first."""
    query = (
        select(OverlayConflictRow)
        .join(ArtifactRow, ArtifactRow.id == OverlayConflictRow.artifact_id)
        .where(OverlayConflictRow.project_id == project_id, ArtifactRow.deleted_at.is_(None))
    )
    if artifact_id is not None:
        query = query.where(OverlayConflictRow.artifact_id == artifact_id)
    if only_open:
        query = query.where(OverlayConflictRow.resolution == "")
    return await read_page(session, query, OverlayConflictRow, limit=limit, cursor=cursor)


async def artifact_names(
    session: AsyncSession, artifact_ids: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """Artifact id → its kind and name."""
    rows = await session.execute(
        select(ArtifactRow.id, ArtifactRow.kind, ArtifactRow.name).where(
            ArtifactRow.id.in_(list(artifact_ids))
        )
    )
    return {one: (kind, name) for one, kind, name in rows.tuples()}


async def open_conflicts(session: AsyncSession, version_ids: Sequence[str]) -> dict[str, str]:
    """Learned version → the open conflict that it is in, for those of these that are in one."""
    rows = await session.execute(
        select(OverlayConflictRow.overlay_id, OverlayConflictRow.id).where(
            OverlayConflictRow.overlay_id.in_(list(version_ids)),
            OverlayConflictRow.resolution == "",
        )
    )
    return dict(rows.tuples().all())
