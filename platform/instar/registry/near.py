"""Near-duplicates: whether a new thing says what an existing one of its kind says already."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import ArtifactRef
from instar.store.catalogue import list_sharing_words
from instar_core.base import JsonValue
from instar_core.errors import ConflictError, InvalidContent
from instar_core.kinds import Kind
from instar_core.similarity import COMPARED_KINDS, Similar, find_similar, rare_words

__all__ = ["find_near_duplicate", "look_for_similar"]


async def find_near_duplicate(
    session: AsyncSession, ref: ArtifactRef, kind: Kind, content: JsonValue
) -> Similar | None:
    """The existing artifact of the kind that a content resembles most, if one does.

    Full-text search picks those that share its longest words; among them the resemblance of the
    whole texts decides (:mod:`instar_core.similarity`).
    """
    text = kind.search_text(content)
    others: dict[str, str] = {}
    for one in await list_sharing_words(session, ref, rare_words(text)):
        try:
            others[one.artifact.name] = kind.search_text(kind.check(one.content))
        except InvalidContent:
            # Saved before contents were checked: nothing to compare with.
            continue
    return find_similar(text, others)


async def look_for_similar(
    session: AsyncSession, ref: ArtifactRef, kind: Kind, content: JsonValue, *, by_run: bool
) -> tuple[str, ...]:
    """What an author of something new should know: that it resembles something that is there.

    Raises:
        ConflictError: If the author is a run, and it does.
    """
    if ref.kind not in COMPARED_KINDS:
        return ()
    similar = await find_near_duplicate(session, ref, kind, content)
    if similar is None:
        return ()
    words = f"it resembles the {ref.kind} {similar.name!r} ({similar.score:.0%} of its wording)"
    if by_run:
        raise ConflictError(
            f"the {ref.kind} {ref.name!r} was not created: {words}.",
            remedy=f"Improve {similar.name!r} instead.",
        )
    return (f"{words}: improve {similar.name!r} instead of keeping both?",)
