"""Merging versions: a proposal that shows both sources and what is dropped of each, then the merge.

Two versions of one artifact are merged over their nearest common ancestor; a merge that somebody
wrote is taken as it is. Either way the report lists what of each source the merge does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry.kinds.agent import agent_content, candidate_of
from instar.registry.merge import Conflict, Merge, Prefer, merge_contents
from instar.registry.merge_report import Lost, dropped_from
from instar.registry.overlay import MergedDraft, Sides, merge_sides, save_merged
from instar.registry.reading import known_kind
from instar.store.agents import AGENT, load_candidate_version
from instar.store.artifacts import ArtifactRef, lock_artifact, read_content, read_version, resolve
from instar.store.audit import Author
from instar.store.lineage import walk_lineage
from instar.store.saving import audit_stream, refuse_jobs
from instar.store.tables import VersionRow
from instar.store.task_sets import TASK_SET
from instar_core.base import Frozen, JsonValue
from instar_core.candidates import Candidate
from instar_core.errors import ConflictError, UserError
from instar_core.kinds import check_content

__all__ = ["MergeReport", "MergeWish", "draft_of", "merge_versions"]

_MOST_ANCESTORS = 20_000


@dataclass(frozen=True, slots=True)
class MergeWish:
    """Which two versions are to become one, and how.

    Attributes:
        ours: Version of the artifact: number, label or ``latest``.
        theirs: The other version.
        other: Name of the artifact of the same kind that ``theirs`` is a version of, if another.
        content: The merged content, where somebody wrote it.
        written: Whether ``content`` is given.
        prefer: The side that wins where both changed a place.
        reason: Why, in words.
        dry_run: Only show what the merge would be.
    """

    ours: str
    theirs: str
    other: str = ""
    content: JsonValue = None
    written: bool = False
    prefer: Prefer = "none"
    reason: str = ""
    dry_run: bool = True


class MergeReport(Frozen):
    """Both sources, their merge, and what of each it does not hold.

    ``content`` is the merge where ``clean``; ``version`` is its number once it is saved. What is in
    the common base and was removed by one side on purpose is dropped of the other side too.
    """

    ours: int
    theirs: int
    base: int | None
    clean: bool
    content: JsonValue = None
    conflicts: tuple[Conflict, ...] = ()
    dropped_of_ours: tuple[Lost, ...] = ()
    dropped_of_theirs: tuple[Lost, ...] = ()
    version: int | None = None


class _Made(NamedTuple):
    merge: Merge
    candidate: Candidate | None
    base: VersionRow | None


async def merge_versions(
    session: AsyncSession, ref: ArtifactRef, wish: MergeWish, by: Author
) -> MergeReport:
    """Merges two versions into a new one, or shows what that would be.

    Args:
        session: A project transaction.
        ref: The artifact that gets the merged version.
        wish: What to merge.
        by: Who merges; a job may only look (``dry_run``).

    Returns:
        The report. Unless it is clean nothing is saved.

    Raises:
        NotFoundError: If there is no such artifact or version.
        InvalidContent: If the written content is none of the kind.
        PermissionDenied: If a job would save a merge.
        UserError: If it is a task set, whose sealed tasks nobody may see.
    """
    if ref.kind == TASK_SET:
        raise UserError(
            "task sets are not merged: their sealed tasks would have to be shown.",
            remedy="Import one JSONL file with the tasks of both.",
        )
    if not wish.dry_run:
        refuse_jobs(by, "merge artifacts")
        await lock_artifact(session, ref, stream=audit_stream(by))
    ours = (await resolve(session, ref, wish.ours)).version
    other = ref._replace(name=wish.other) if wish.other else ref
    theirs = (await resolve(session, other, wish.theirs)).version
    made = await _make(session, ref, wish, ours, theirs)
    report = await _report(session, ref, made, ours, theirs)
    if wish.dry_run or not made.merge.clean:
        return report
    draft = MergedDraft(
        by,
        wish.reason or f"Merged version {wish.ours} with {other.name} {wish.theirs}.",
        None,
        "merge",
        made.candidate,
        made.merge.content,
    )
    saved = await save_merged(session, ref, Sides(made.base or ours, ours, theirs), draft)
    return report.model_copy(update={"version": saved.number})


def draft_of(ref: ArtifactRef, content: JsonValue, by: Author, reason: str) -> MergedDraft:
    """A merge that somebody wrote, checked as a content of its kind.

    Raises:
        InvalidContent: If it is none.
    """
    kind = known_kind(ref.kind)
    checked = content if kind is None else check_content(kind, content)
    candidate = candidate_of(checked) if ref.kind == AGENT else None
    return MergedDraft(by, reason, None, "merge", candidate, checked)


async def _make(
    session: AsyncSession, ref: ArtifactRef, wish: MergeWish, ours: VersionRow, theirs: VersionRow
) -> _Made:
    base = await _common_ancestor(session, ours, theirs)
    if wish.written:
        draft = draft_of(ref, wish.content, Author("person", ""), "")
        return _Made(Merge(clean=True, content=draft.content), draft.candidate, base)
    if base is not None:
        sides = Sides(base, ours, theirs)
        merge, candidate = await merge_sides(session, ref, sides, prefer=wish.prefer)
        if candidate is not None:
            merge = merge.model_copy(update={"content": agent_content(candidate)})
        return _Made(merge, candidate, base)
    if ref.kind == AGENT:
        raise ConflictError(
            "the two versions have no common ancestor, so agents cannot be merged by themselves.",
            remedy="Send the merged content.",
        )
    kind = known_kind(ref.kind)
    form = "json" if kind is None else kind.form
    contents = [await read_content(session, one) for one in (ours, theirs)]
    empty: JsonValue = "" if isinstance(contents[0], str) else {}
    if form == "tree":
        empty = {"files": {}}
    return _Made(
        merge_contents(form, empty, contents[0], contents[1], prefer=wish.prefer), None, None
    )


async def _common_ancestor(
    session: AsyncSession, ours: VersionRow, theirs: VersionRow
) -> VersionRow | None:
    """The nearest version, seen from the first one, that both came from (or are)."""
    walks = [
        await walk_lineage(session, one.id, "ancestors", most=_MOST_ANCESTORS)
        for one in (ours, theirs)
    ]
    known = {node.id for node in walks[1].nodes}
    for node in walks[0].nodes:
        if node.id in known:
            return await read_version(session, node.id)
    return None


async def _report(
    session: AsyncSession, ref: ArtifactRef, made: _Made, ours: VersionRow, theirs: VersionRow
) -> MergeReport:
    dropped: list[tuple[Lost, ...]] = [(), ()]
    if made.merge.clean:
        merged = made.merge.content
        if made.candidate is not None:
            merged = _by_name(made.candidate)
        for place, side in enumerate((ours, theirs)):
            source = await _source(session, ref, side)
            dropped[place] = tuple(dropped_from(source, merged))
    return MergeReport(
        ours=ours.number,
        theirs=theirs.number,
        base=None if made.base is None else made.base.number,
        clean=made.merge.clean,
        content=made.merge.content,
        conflicts=made.merge.conflicts,
        dropped_of_ours=dropped[0],
        dropped_of_theirs=dropped[1],
    )


async def _source(session: AsyncSession, ref: ArtifactRef, version: VersionRow) -> JsonValue:
    if ref.kind == AGENT:
        return _by_name(await load_candidate_version(session, version.id))
    return await read_content(session, version)


def _by_name(candidate: Candidate) -> JsonValue:
    """An agent with its components by name, so that each is compared with its own."""
    dumped: JsonValue = candidate.model_dump(mode="json", include={"components", "harness"})
    return dumped
