"""Versions: their numbers and ids, one for the other, within one artifact."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.tables import ArtifactRow, VersionParentRow, VersionRow
from instar_core.errors import NotFoundError

__all__ = ["numbers_of_parents", "version_ids"]


async def version_ids(
    session: AsyncSession, artifact: ArtifactRow, numbers: Sequence[int], *, learned: bool = True
) -> list[str]:
    """Ids of versions of an artifact by number; without numbers, the newest one that is live.

    Without ``learned``, versions that lie on a person's base are passed over: who does not say
    otherwise worked on that base.

    Raises:
        NotFoundError: If one of the numbers is none of its versions, or is archived.
    """
    live = select(VersionRow.number, VersionRow.id).where(
        VersionRow.artifact_id == artifact.id, VersionRow.deleted_at.is_(None)
    )
    if not numbers:
        if not learned:
            live = live.where(VersionRow.base_id.is_(None))
        newest = (await session.execute(live.order_by(VersionRow.number.desc()).limit(1))).first()
        return [] if newest is None else [newest.id]
    rows = await session.execute(live.where(VersionRow.number.in_(numbers)))
    found = {row.number: row.id for row in rows}
    for number in numbers:
        if number not in found:
            raise NotFoundError(
                f"there is no version {number} of {artifact.kind} {artifact.name!r} to be a "
                f"parent; the newest is {artifact.last_version}."
            )
    return [found[number] for number in dict.fromkeys(numbers)]


async def numbers_of_parents(session: AsyncSession, version: VersionRow) -> tuple[int, ...]:
    """Numbers of a version's parents that are versions of the same artifact, in order."""
    rows = await session.scalars(
        select(VersionRow.number)
        .join(VersionParentRow, VersionParentRow.parent_id == VersionRow.id)
        .where(
            VersionParentRow.version_id == version.id,
            VersionRow.artifact_id == version.artifact_id,
        )
        .order_by(VersionRow.number)
    )
    return tuple(rows)
