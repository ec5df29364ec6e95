"""Label history: what a label named when, and why."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Select, and_, select
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import ArtifactRef, read_artifact
from instar.store.tables import LabelEventRow, VersionRow

__all__ = ["LabelFact", "facts_at", "facts_between"]


class LabelFact(NamedTuple):
    """One move of a label, and the version that it put in force (``None`` for a removal)."""

    event: LabelEventRow
    version: VersionRow | None


async def facts_at(
    session: AsyncSession, ref: ArtifactRef, label: str, at: datetime
) -> LabelFact | None:
    """The move by which a label stood where it did at a moment; ``None`` before its first one.

    Raises:
        NotFoundError: If there is no such artifact.
    """
    query = await _facts(session, ref, label)
    query = query.where(LabelEventRow.created_at <= at).order_by(
        LabelEventRow.created_at.desc(), LabelEventRow.id.desc()
    )
    found = (await session.execute(query.limit(1))).first()
    return None if found is None else LabelFact(found[0], found[1])


async def facts_between(
    session: AsyncSession,
    ref: ArtifactRef,
    label: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 200,
) -> list[LabelFact]:
    """The moves of a label after ``since`` and up to ``until``, newest first.

    Raises:
        NotFoundError: If there is no such artifact.
    """
    query = await _facts(session, ref, label)
    if since is not None:
        query = query.where(LabelEventRow.created_at > since)
    if until is not None:
        query = query.where(LabelEventRow.created_at <= until)
    query = query.order_by(LabelEventRow.created_at.desc(), LabelEventRow.id.desc())
    rows = await session.execute(query.limit(limit))
    return [LabelFact(row[0], row[1]) for row in rows]


async def _facts(
    session: AsyncSession, ref: ArtifactRef, label: str
) -> Select[LabelEventRow, VersionRow]:
    artifact = await read_artifact(session, ref, deleted=True)
    return (
        select(LabelEventRow, VersionRow)
        .outerjoin(
            VersionRow,
            and_(
                VersionRow.artifact_id == LabelEventRow.artifact_id,
                VersionRow.number == LabelEventRow.to_number,
            ),
        )
        .where(LabelEventRow.artifact_id == artifact.id, LabelEventRow.label == label)
    )
