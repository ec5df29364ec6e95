"""Catalogue: the newest contents of many artifacts at once, their labels, and who looks alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, exists, func, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.contents import decode_content
from instar.store.saving import ArtifactRef
from instar.store.tables import ArtifactRow, BlobRow, LabelRow, VersionRow
from instar.store.words import query_words
from instar_core.base import JsonValue

__all__ = [
    "Newest",
    "count_newest",
    "count_scope",
    "labels_of_many",
    "list_newest",
    "list_sharing_words",
]

_MOST = 1_000


class Newest(NamedTuple):
    """An artifact with the number and the content of its newest version."""

    artifact: ArtifactRow
    number: int
    content: JsonValue


async def list_newest(
    session: AsyncSession, project_id: str, kind: str | None = None, *, limit: int = _MOST
) -> list[Newest]:
    """The newest live version of each artifact (of one kind), in the order of kind and name."""
    query = _newest().where(ArtifactRow.project_id == project_id)
    if kind is not None:
        query = query.where(ArtifactRow.kind == kind)
    query = query.order_by(ArtifactRow.kind, ArtifactRow.name).limit(limit)
    return await _read(session, query)


async def count_newest(session: AsyncSession, project_id: str, kind: str | None = None) -> int:
    """How many artifacts (of one kind) have a live version: those that could be listed."""
    query = select(func.count()).where(
        ArtifactRow.project_id == project_id,
        ArtifactRow.deleted_at.is_(None),
        exists().where(VersionRow.artifact_id == ArtifactRow.id, VersionRow.deleted_at.is_(None)),
    )
    if kind is not None:
        query = query.where(ArtifactRow.kind == kind)
    return int(await session.scalar(query) or 0)


async def list_sharing_words(
    session: AsyncSession, ref: ArtifactRef, words: Sequence[str], *, limit: int = 20
) -> list[Newest]:
    """Live artifacts of the same kind, other than this one, that share words: most alike first.

    Args:
        session: A project transaction.
        ref: The artifact that is left out.
        words: Any of them; without any, nothing is found.
        limit: Most artifacts.
    """
    asked = query_words(" or ".join(f'"{word}"' for word in words if '"' not in word))
    if not asked.strip():
        return []
    question = func.websearch_to_tsquery("simple", asked)
    found = await session.scalars(
        select(ArtifactRow.name)
        .where(
            ArtifactRow.project_id == ref.project_id,
            ArtifactRow.kind == ref.kind,
            ArtifactRow.name != ref.name,
            ArtifactRow.deleted_at.is_(None),
            ArtifactRow.search.op("@@")(question),
        )
        .order_by(func.ts_rank(ArtifactRow.search, question).desc(), ArtifactRow.name)
        .limit(limit)
    )
    names = list(found)
    if not names:
        return []
    query = _newest().where(
        ArtifactRow.project_id == ref.project_id,
        ArtifactRow.kind == ref.kind,
        ArtifactRow.name.in_(names),
    )
    return await _read(session, query)


async def labels_of_many(
    session: AsyncSession, artifact_ids: Sequence[str]
) -> dict[str, list[LabelRow]]:
    """Artifact id → its labels by name, for many artifacts in one statement."""
    found: dict[str, list[LabelRow]] = {one: [] for one in artifact_ids}
    rows = await session.scalars(
        select(LabelRow)
        .where(LabelRow.artifact_id.in_(artifact_ids))
        .order_by(LabelRow.name)
        .execution_options(populate_existing=True)
    )
    for row in rows:
        found[row.artifact_id].append(row)
    return found


async def count_scope(
    session: AsyncSession, project_id: str, kind: str, names: Sequence[str]
) -> dict[str, int]:
    """Name → number of live versions, of those artifacts that exist and are not archived."""
    rows = await session.execute(
        select(ArtifactRow.name, func.count(VersionRow.id))
        .outerjoin(
            VersionRow,
            (VersionRow.artifact_id == ArtifactRow.id) & VersionRow.deleted_at.is_(None),
        )
        .where(
            ArtifactRow.project_id == project_id,
            ArtifactRow.kind == kind,
            ArtifactRow.name.in_(names),
            ArtifactRow.deleted_at.is_(None),
        )
        .group_by(ArtifactRow.name)
        .order_by(ArtifactRow.name)
    )
    return {name: int(count) for name, count in rows}


def _newest() -> Select[Any, Any, Any, Any]:
    """Live artifacts with the number, media type and content of their newest live version."""
    # One step down the index of numbers for each artifact, however many versions it has.
    newest = (
        select(VersionRow.number, VersionRow.media_type, VersionRow.blob_digest)
        .where(VersionRow.artifact_id == ArtifactRow.id, VersionRow.deleted_at.is_(None))
        .order_by(VersionRow.number.desc())
        .limit(1)
        .lateral("newest")
    )
    return (
        select(ArtifactRow, newest.c.number, newest.c.media_type, BlobRow.content)
        .select_from(ArtifactRow)
        .join(newest, true())
        .join(
            BlobRow,
            (BlobRow.project_id == ArtifactRow.project_id)
            & (BlobRow.digest == newest.c.blob_digest),
        )
        .where(ArtifactRow.deleted_at.is_(None))
        .execution_options(populate_existing=True)
    )


async def _read(session: AsyncSession, query: Select[Any, Any, Any, Any]) -> list[Newest]:
    return [
        Newest(artifact, number, decode_content(content, media_type))
        for artifact, number, media_type, content in await session.execute(query)
    ]
