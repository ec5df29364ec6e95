"""Search: lists of artifacts and versions, filtered, by words, and in stable pages."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.pages import Page, read_page
from instar.store.resolving import read_artifact
from instar.store.saving import ArtifactRef
from instar.store.tables import ArtifactRow, LabelRow, VersionRow
from instar.store.words import query_words
from instar_core.errors import InvalidContent

__all__ = ["MAX_QUESTION", "ArtifactFilter", "list_artifacts", "list_versions"]

MAX_QUESTION = 500


class ArtifactFilter(NamedTuple):
    """Which artifacts a list shows; what is left out filters nothing.

    ``q`` are words as a person types them: all must occur in name, description, tags or newest
    content; ``"…"`` for words in a row, ``or`` between alternatives, ``-`` before what must not
    occur. ``archived`` shows archived artifacts instead of the others.
    """

    kind: str | None = None
    tag: str | None = None
    owner_kind: str | None = None
    label: str | None = None
    q: str | None = None
    archived: bool = False


async def list_artifacts(
    session: AsyncSession,
    project_id: str,
    kind: str | None = None,
    *,
    where: ArtifactFilter | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[ArtifactRow]:
    """The project's artifacts (of one kind), newest first, without archived ones.

    Args:
        session: A project transaction.
        project_id: The project.
        kind: Their kind; the same as in ``where``.
        where: Further filters.
        limit: Items per page, 1 to 200.
        cursor: What the page before returned. Pages follow (created_at, id), so that what is made
            or changed meanwhile shifts nothing.

    Raises:
        UserError: If the limit is out of range or the cursor is none of ours.
        InvalidContent: If a filter cannot be one (too long, NUL).
    """
    chosen = where or ArtifactFilter()
    for name, value in chosen._asdict().items():
        if isinstance(value, str) and ("\x00" in value or len(value) > MAX_QUESTION):
            raise InvalidContent(
                f"the filter {name!r} holds NUL or more than {MAX_QUESTION} characters.",
                remedy="Shorten it.",
            )
    query = select(ArtifactRow).where(
        ArtifactRow.project_id == project_id,
        ArtifactRow.deleted_at.is_not(None)
        if chosen.archived
        else ArtifactRow.deleted_at.is_(None),
    )
    if kind or chosen.kind:
        query = query.where(ArtifactRow.kind == (kind or chosen.kind))
    if chosen.owner_kind:
        query = query.where(ArtifactRow.owner_kind == chosen.owner_kind)
    if chosen.tag:
        query = query.where(ArtifactRow.tags.op("@>")(literal([chosen.tag], JSONB)))
    if chosen.label:
        query = query.where(
            select(LabelRow.name)
            .where(LabelRow.artifact_id == ArtifactRow.id, LabelRow.name == chosen.label)
            .exists()
        )
    if chosen.q and chosen.q.strip():
        asked = func.websearch_to_tsquery("simple", query_words(chosen.q))
        query = query.where(ArtifactRow.search.op("@@")(asked))
    # Rows are shown as they are now, whatever the session has seen of them before.
    query = query.execution_options(populate_existing=True)
    return await read_page(session, query, ArtifactRow, limit=limit, cursor=cursor)


async def list_versions(
    session: AsyncSession, ref: ArtifactRef, *, limit: int = 50, before: int | None = None
) -> list[VersionRow]:
    """Versions of an artifact, highest number first, from below ``before`` on."""
    artifact = await read_artifact(session, ref)
    query = select(VersionRow).where(
        VersionRow.artifact_id == artifact.id, VersionRow.deleted_at.is_(None)
    )
    if before is not None:
        query = query.where(VersionRow.number < min(before, 2**31 - 1))
    rows = await session.scalars(query.order_by(VersionRow.number.desc()).limit(limit))
    return list(rows)
