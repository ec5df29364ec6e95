"""Overlays: a learned change is a version on a person's base, and follows that base.

A run's version holds its whole content and names the person's version that it lies on. When a
person saves a newer base, the learned change is merged onto it as a further version, which nobody
tested and no label names; or, where both changed the same place, the conflict is kept until a
person settles it. Either way the person's version is saved as it is, and the learned one stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry.merge import Conflict, Merge, Prefer, merge_contents
from instar.registry.merge_agents import merge_candidates, same_candidate
from instar.registry.reading import known_kind
from instar.store import overlays
from instar.store.agents import (
    AGENT,
    AgentNote,
    AgentVersion,
    PartLine,
    load_candidate_version,
    save_agent_as,
)
from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    encode_content,
    lock_artifact,
    read_artifact,
    read_content,
    read_version,
    touch_artifact,
)
from instar.store.audit import SYSTEM, AuditEntry, Author, append_audit
from instar.store.saving import Origin, audit_stream, refuse_jobs
from instar.store.tables import OverlayConflictRow, VersionRow
from instar_core.base import Frozen, JsonValue, canonical_json
from instar_core.candidates import Candidate
from instar_core.errors import ConflictError, InvalidContent, NotFoundError
from instar_core.kinds import check_content

__all__ = [
    "LearnedNote",
    "MergedDraft",
    "Rebase",
    "Sides",
    "carry_over",
    "conflict_of",
    "dismiss_conflict",
    "merge_sides",
    "rebase_overlay",
    "resolve_conflict",
    "save_learned",
    "save_merged",
    "sides_of",
]

State = Literal["none", "absorbed", "contained", "rebased", "conflict"]


@dataclass(frozen=True, slots=True)
class LearnedNote:
    """What goes with a learned agent version; ``parents`` are ids of versions it came from."""

    run_id: str
    reason: str = ""
    evidence: JsonValue = None
    rollouts: Sequence[str] = ()
    parents: Sequence[str] = ()


class Rebase(Frozen):
    """What became of the learned change when a person saved a new base.

    ``none``: there is no learned change; ``absorbed``: the person worked from it already;
    ``contained``: the new base holds all of it; ``rebased``: it is ``version`` now, untested;
    ``conflict``: a person has to settle ``conflicts``.
    """

    state: State
    base: int
    overlay: int | None = None
    former_base: int | None = None
    version: int | None = None
    conflict_id: str | None = None
    conflicts: tuple[Conflict, ...] = ()


class Sides(NamedTuple):
    """Three versions to merge: what both came from, the learned (or first), the other one."""

    base: VersionRow
    ours: VersionRow
    theirs: VersionRow


async def save_learned(
    session: AsyncSession,
    ref: ArtifactRef,
    candidate: Candidate,
    incumbent_id: str,
    note: LearnedNote,
) -> AgentVersion:
    """Saves what a run found as an overlay on the person's version that the run started from.

    Args:
        session: A project transaction.
        ref: The agent.
        candidate: What the run found.
        incumbent_id: The agent version that the run started from.
        note: The run, and what it says about its find.

    Returns:
        The agent version; changed components are overlays on the components of the incumbent.
    """
    incumbent = await read_version(session, incumbent_id)
    return await save_agent_as(
        session,
        ref,
        candidate,
        AgentNote(
            Author("run", note.run_id),
            note.reason,
            note.evidence,
            note.parents or [incumbent.id],
            "overlay",
            note.rollouts,
            base=incumbent.base_id or incumbent.id,
            lines=await _lines(session, [incumbent.id]),
        ),
    )


async def carry_over(
    session: AsyncSession, ref: ArtifactRef, version: VersionRow, by: Author
) -> tuple[str, ...]:
    """Carries a learned change over to what a person has just saved; says in words what came of it.

    Nothing happens for what jobs and the system save.
    """
    if by.kind != "person":
        return ()
    found = await rebase_overlay(session, ref, version.id)
    if found.state == "rebased":
        return (
            f"The learned change of version {found.overlay} was carried over to this one as "
            f"version {found.version}; it is untested, and no label moved.",
        )
    if found.state == "conflict":
        places = ", ".join(one.path or f"line {one.line}" for one in found.conflicts[:5])
        return (
            f"The learned change of version {found.overlay} does not fit this one at {places}; it "
            f"stays as it is. Settle the conflict {found.conflict_id}.",
        )
    return ()


async def rebase_overlay(
    session: AsyncSession, ref: ArtifactRef, base_id: str, *, dry_run: bool = False
) -> Rebase:
    """Carries the learned change of an artifact over to a base that a person has just saved.

    No label moves. Whatever an older base left open is superseded by what happens now.

    Args:
        session: The transaction that saved the base; all of it is kept, or nothing.
        ref: The artifact.
        base_id: The new base.
        dry_run: Only tell what would happen.
    """
    new = await read_version(session, base_id)
    overlay = await overlays.find_live_overlay(session, new.artifact_id)
    if new.base_id is not None or overlay is None or overlay.base_id in (None, new.id):
        return Rebase(state="none", base=new.number)
    former = await read_version(session, str(overlay.base_id))
    told = Rebase(
        state="absorbed", base=new.number, overlay=overlay.number, former_base=former.number
    )
    if await overlays.is_ancestor(session, overlay.id, new.id):
        return told
    sides = Sides(former, overlay, new)
    merge, candidate = await merge_sides(session, ref, sides)
    if merge.clean and await _holds(session, ref, new, merge, candidate):
        return told.model_copy(update={"state": "contained"})
    if dry_run:
        state = "rebased" if merge.clean else "conflict"
        return told.model_copy(update={"state": state, "conflicts": merge.conflicts})
    await _supersede(session, ref, new.artifact_id)
    if not merge.clean:
        return await _keep_conflict(session, ref, sides, merge, told)
    evidence: dict[str, JsonValue] = {
        "untested": True,
        "overlay": overlay.number,
        "base": new.number,
        "former_base": former.number,
    }
    reason = (
        f"Rebased: the learned change of version {overlay.number} (on version {former.number}) "
        f"now lies on version {new.number}. Untested."
    )
    draft = MergedDraft(SYSTEM, reason, evidence, "rebase", candidate, merge.content)
    version = await save_merged(session, ref, sides, draft)
    return told.model_copy(update={"state": "rebased", "version": version.number})


class MergedDraft(NamedTuple):
    """A merge about to be saved: an agent as ``candidate``, anything else as ``content``."""

    author: Author
    reason: str
    evidence: JsonValue
    origin: Origin
    candidate: Candidate | None
    content: JsonValue


async def merge_sides(
    session: AsyncSession, ref: ArtifactRef, sides: Sides, *, prefer: Prefer = "none"
) -> tuple[Merge, Candidate | None]:
    """Merges two versions of one artifact in the form of its kind.

    Returns:
        The merge, and for an agent the merged candidate. What merges cleanly and is no content of
        its kind (a header that no longer parses, a lesson too many) is a conflict.
    """
    if ref.kind == AGENT:
        loaded = [await load_candidate_version(session, one.id) for one in sides]
        found = merge_candidates(loaded[0], loaded[1], loaded[2], prefer=prefer)
        clean = found.candidate is not None
        return Merge(clean=clean, conflicts=found.conflicts, dropped=found.dropped), found.candidate
    contents = [await read_content(session, one) for one in sides]
    kind = known_kind(ref.kind)
    form = "json" if kind is None else kind.form
    merge = merge_contents(form, contents[0], contents[1], contents[2], prefer=prefer)
    if merge.clean and kind is not None and merge.content not in contents:
        try:
            check_content(kind, merge.content)
        except InvalidContent as error:
            conflict = Conflict(
                path="",
                what="value",
                base=contents[0],
                ours=contents[1],
                theirs=contents[2],
                note=f"The changes fit together and their merge is not valid: {error.message}",
            )
            merge = Merge(clean=False, conflicts=(conflict,))
    return merge, None


async def save_merged(
    session: AsyncSession, ref: ArtifactRef, sides: Sides, draft: MergedDraft
) -> VersionRow:
    """Saves a merge of two versions as a version with both as parents.

    It is a learned version on the second side's base where one of the sides is learned.
    """
    learned = sides.ours.base_id is not None or sides.theirs.base_id is not None
    learned = learned and sides.ours.artifact_id == sides.theirs.artifact_id
    base = (sides.theirs.base_id or sides.theirs.id) if learned else None
    parents = [sides.ours.id, sides.theirs.id]
    if draft.candidate is not None:
        note = AgentNote(
            draft.author,
            draft.reason,
            draft.evidence,
            parents,
            draft.origin,
            base=base,
            lines=await _lines(session, parents) if learned else {},
        )
        saved = await save_agent_as(session, ref, draft.candidate, note)
        return await read_version(session, saved.id)
    data, media_type = encode_content(draft.content)
    kind = known_kind(ref.kind)
    return await create_version(
        session,
        ref,
        Draft(
            data,
            media_type,
            draft.author,
            draft.reason,
            draft.evidence,
            parents=parents,
            origin=draft.origin,
            base=base,
            search_text=None if kind is None else kind.search_text(draft.content),
        ),
    )


async def resolve_conflict(
    session: AsyncSession,
    ref: ArtifactRef,
    conflict_id: str,
    draft: MergedDraft,
) -> VersionRow:
    """Settles a conflict with a merge that a person made: a version with both sides as parents.

    Raises:
        NotFoundError: If there is no such conflict of this artifact.
        ConflictError: If it was settled before.
        PermissionDenied: If a job does it.
    """
    refuse_jobs(draft.author, "settle a conflict")
    row = await _open_conflict(session, ref, conflict_id, draft.author)
    sides = await sides_of(session, row)
    version = await save_merged(session, ref, sides, draft)
    await overlays.close_conflicts(session, [row.id], "merged", draft.author, version.id)
    await _audit(session, ref, "overlay.merge", row, draft.author)
    return version


async def dismiss_conflict(
    session: AsyncSession, ref: ArtifactRef, conflict_id: str, by: Author
) -> None:
    """Settles a conflict by leaving the learned change on its old base.

    Raises:
        NotFoundError: If there is no such conflict of this artifact.
        ConflictError: If it was settled before.
        PermissionDenied: If a job does it.
    """
    refuse_jobs(by, "settle a conflict")
    row = await _open_conflict(session, ref, conflict_id, by)
    await overlays.close_conflicts(session, [row.id], "dismissed", by)
    await _audit(session, ref, "overlay.dismiss", row, by)


async def conflict_of(
    session: AsyncSession, ref: ArtifactRef, conflict_id: str, *, lock: bool = False
) -> OverlayConflictRow:
    """A conflict of one artifact.

    Raises:
        NotFoundError: If there is no such artifact, or no such conflict of it.
    """
    artifact = await read_artifact(session, ref)
    row = await overlays.read_overlay_conflict(session, conflict_id, lock=lock)
    if row.artifact_id != artifact.id:
        raise NotFoundError(
            f"there is no conflict {conflict_id!r} of {ref.kind} {ref.name!r}.",
            remedy="List its conflicts first.",
        )
    return row


async def sides_of(session: AsyncSession, row: OverlayConflictRow) -> Sides:
    """The three versions of a conflict: the former base, the learned one, the new base."""
    return Sides(
        await read_version(session, row.former_base_id),
        await read_version(session, row.overlay_id),
        await read_version(session, row.base_id),
    )


async def _open_conflict(
    session: AsyncSession, ref: ArtifactRef, conflict_id: str, by: Author
) -> OverlayConflictRow:
    await lock_artifact(session, ref, stream=audit_stream(by))
    row = await conflict_of(session, ref, conflict_id, lock=True)
    if row.resolution:
        raise ConflictError(
            f"the conflict {conflict_id} is settled: {row.resolution} by {row.resolved_by}.",
            remedy="Save a version of your own, if the outcome is not what you want.",
        )
    return row


async def _supersede(session: AsyncSession, ref: ArtifactRef, artifact_id: str) -> None:
    page = await overlays.list_conflicts(
        session, ref.project_id, artifact_id=artifact_id, limit=200
    )
    ids = [row.id for row in page.items]
    await overlays.close_conflicts(session, ids, "superseded", SYSTEM)
    if ids:
        await touch_artifact(session, artifact_id)


async def _keep_conflict(
    session: AsyncSession, ref: ArtifactRef, sides: Sides, merge: Merge, told: Rebase
) -> Rebase:
    dumped: list[JsonValue] = [one.model_dump(mode="json") for one in merge.conflicts]
    row = await overlays.add_conflict(session, sides.ours, sides.theirs, dumped)
    await _audit(session, ref, "overlay.conflict", row, SYSTEM)
    return told.model_copy(
        update={"state": "conflict", "conflict_id": row.id, "conflicts": merge.conflicts}
    )


async def _audit(
    session: AsyncSession, ref: ArtifactRef, action: str, row: OverlayConflictRow, by: Author
) -> None:
    details: dict[str, JsonValue] = {
        "conflict": row.id,
        "overlay": row.overlay_id,
        "base": row.base_id,
    }
    entry = AuditEntry(action=action, subject=f"{ref.kind}/{ref.name}", details=details)
    await append_audit(session, ref.project_id, entry, by)
    # A reader sees whether a version is in conflict, so its ETag changes.
    await touch_artifact(session, row.artifact_id)


async def _holds(
    session: AsyncSession,
    ref: ArtifactRef,
    new: VersionRow,
    merge: Merge,
    candidate: Candidate | None,
) -> bool:
    """Whether the new base is what the merge came to."""
    if candidate is not None:
        return same_candidate(candidate, await load_candidate_version(session, new.id))
    return canonical_json(merge.content) == canonical_json(await read_content(session, new))


async def _lines(session: AsyncSession, version_ids: Sequence[str]) -> Mapping[str, PartLine]:
    """What changed components of a version that came from these lie on, by artifact."""
    found: dict[str, PartLine] = {}
    for version_id in version_ids:
        for artifact, part, base in (await overlays.pinned_parts(session, version_id)).values():
            before = found.get(artifact)
            parents = (part,) if before is None else (*before.parents, part)
            # The last one's base: a rebase lies on the new base, which is named last.
            found[artifact] = PartLine(tuple(dict.fromkeys(parents)), base or part)
    return found
