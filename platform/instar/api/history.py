"""History: what its routes need around the registry, inside one transaction."""

from __future__ import annotations

from datetime import datetime
from typing import cast

from sqlalchemy.ext.asyncio import AsyncSession

from instar.api.auth import Caller, Role
from instar.api.pages import Page
from instar.api.schemas_history import (
    ConflictOut,
    LabelFactOut,
    LabelTimeline,
    MergeIn,
    ResolveIn,
    RestoreRunIn,
    VersionFact,
)
from instar.api.screening import screen
from instar.registry.behaviour import BehaviourDiff, compare_behaviour
from instar.registry.merge import Conflict, Prefer
from instar.registry.merging import MergeReport, MergeWish, draft_of, merge_versions
from instar.registry.overlay import (
    MergedDraft,
    conflict_of,
    dismiss_conflict,
    merge_sides,
    resolve_conflict,
    sides_of,
)
from instar.registry.restore import RestoreReport, restore_before_run, undo_restore
from instar.registry.verbs import find_label
from instar.store.agents import AGENT
from instar.store.artifacts import ArtifactRef, read_artifact, resolve
from instar.store.label_history import LabelFact, facts_at, facts_between
from instar.store.overlays import artifact_names, list_conflicts
from instar.store.promotions import version_numbers
from instar.store.tables import OverlayConflictRow
from instar_core.errors import ConflictError, PermissionDenied, UserError

__all__ = [
    "behaviour_of",
    "conflicts_out",
    "label_timeline",
    "merge_in",
    "resolve_in",
    "restore_in",
]


async def restore_in(
    session: AsyncSession, caller: Caller, run_id: str, wish: RestoreRunIn
) -> RestoreReport:
    """Restores the state before a run, or takes that back.

    Raises:
        PermissionDenied: If ``force`` would undo a move of a label that the caller may not move.
    """
    project, by = caller.project_id, caller.author
    if wish.undo:
        return await undo_restore(session, project, run_id, by, dry_run=wish.dry_run)
    if wish.force and not wish.dry_run:
        await _check_force(session, caller, run_id)
    return await restore_before_run(
        session, project, run_id, by, dry_run=wish.dry_run, force=wish.force
    )


async def _check_force(session: AsyncSession, caller: Caller, run_id: str) -> None:
    """Refuses to undo what somebody did since to a label that is protected from the caller."""
    plan = await restore_before_run(session, caller.project_id, run_id, caller.author, dry_run=True)
    for one in plan.labels:
        if one.state != "moved_since" or one.now is None:
            continue
        row = await find_label(
            session, ArtifactRef(caller.project_id, one.kind, one.name), one.label
        )
        if not caller.has(cast("Role", row.move_role)):
            raise PermissionDenied(
                f"{one.by} moved the label {one.label!r} of {one.kind} {one.name!r} since, and it "
                f"moves for the role {row.move_role!r} and those above.",
                remedy=f"Restore without force, or let an {row.move_role} do it.",
            )


async def behaviour_of(
    session: AsyncSession, ref: ArtifactRef, old: str, new: str, limit: int
) -> BehaviourDiff:
    """Which tasks come out differently under two versions of an agent.

    Raises:
        UserError: If the artifact is no agent.
    """
    if ref.kind != AGENT:
        raise UserError(
            f"behaviour is compared between versions of agents; {ref.kind!r} is none.",
            remedy="Compare the versions of the agent that pins it.",
        )
    digests = [(await resolve(session, ref, at)).version.subject_digest for at in (old, new)]
    return await compare_behaviour(session, ref.project_id, digests[0], digests[1], most=limit)


async def merge_in(
    session: AsyncSession, ref: ArtifactRef, wish: MergeIn, caller: Caller
) -> MergeReport:
    """Merges two versions, or shows the proposal.

    Raises:
        PermissionDenied: If the written content takes an admin.
    """
    written = "content" in wish.model_fields_set
    wanted = MergeWish(
        ours=wish.ours,
        theirs=wish.theirs,
        other=wish.other,
        content=screen(caller, ref.kind, wish.content) if written else None,
        written=written,
        prefer=wish.prefer,
        reason=wish.reason,
        dry_run=wish.dry_run,
    )
    return await merge_versions(session, ref, wanted, caller.author)


async def resolve_in(
    session: AsyncSession, ref: ArtifactRef, conflict_id: str, wish: ResolveIn, caller: Caller
) -> ConflictOut:
    """Settles a conflict, as its reader decided.

    Raises:
        ConflictError: If the preferred side does not make a valid content.
        PermissionDenied: If the written content takes an admin.
    """
    by = caller.author
    if wish.dismiss:
        await dismiss_conflict(session, ref, conflict_id, by)
    elif wish.prefer == "none":
        draft = draft_of(ref, screen(caller, ref.kind, wish.content), by, wish.reason)
        await resolve_conflict(session, ref, conflict_id, draft)
    else:
        row = await conflict_of(session, ref, conflict_id)
        prefer: Prefer = "ours" if wish.prefer == "learned" else "theirs"
        sides = await sides_of(session, row)
        merge, candidate = await merge_sides(session, ref, sides, prefer=prefer)
        if not merge.clean:
            raise ConflictError(
                f"the merge with {wish.prefer!r} preferred is no valid {ref.kind}.",
                remedy="Send the merged content.",
            )
        made = MergedDraft(by, wish.reason, None, "merge", candidate, merge.content)
        await resolve_conflict(session, ref, conflict_id, made)
    row = await conflict_of(session, ref, conflict_id)
    return (await _conflicts(session, [row]))[0]


async def conflicts_out(
    session: AsyncSession,
    project_id: str,
    *,
    ref: ArtifactRef | None = None,
    only_open: bool = True,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[ConflictOut]:
    """Conflicts of the project, or of one artifact, newest first."""
    artifact = None if ref is None else (await read_artifact(session, ref)).id
    page = await list_conflicts(
        session,
        project_id,
        artifact_id=artifact,
        only_open=only_open,
        limit=limit,
        cursor=cursor,
    )
    return Page(data=await _conflicts(session, page.items), next=page.next_cursor)


async def label_timeline(
    session: AsyncSession,
    ref: ArtifactRef,
    label: str,
    *,
    at: datetime | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> LabelTimeline:
    """What a label named at a moment, and its changes between two."""
    in_force = None if at is None else await facts_at(session, ref, label, at)
    changes = await facts_between(session, ref, label, since=since, until=until, limit=limit)
    return LabelTimeline(
        label=label,
        at=at,
        in_force=None if in_force is None else _fact(in_force),
        changes=[_fact(one) for one in changes],
    )


def _fact(found: LabelFact) -> LabelFactOut:
    event, version = found
    shown = None
    if version is not None:
        shown = VersionFact(
            number=version.number,
            digest=version.blob_digest,
            origin=version.origin,
            author_kind=version.author_kind,
            author=version.author,
            reason=version.reason,
            evidence=version.evidence,
            run_id=version.run_id,
            created_at=version.created_at,
        )
    return LabelFactOut(
        at=event.created_at,
        before=event.from_number,
        after=event.to_number,
        actor_kind=event.actor_kind,
        actor=event.actor,
        cause=event.cause,
        run_id=event.run_id,
        version=shown,
    )


async def _conflicts(session: AsyncSession, rows: list[OverlayConflictRow]) -> list[ConflictOut]:
    names = await artifact_names(session, [row.artifact_id for row in rows])
    ids = [
        one
        for row in rows
        for one in (row.overlay_id, row.former_base_id, row.base_id, row.resolved_version_id)
        if one is not None
    ]
    numbers = await version_numbers(session, ids)
    return [
        ConflictOut(
            id=row.id,
            kind=names[row.artifact_id][0],
            name=names[row.artifact_id][1],
            overlay=numbers[row.overlay_id],
            former_base=numbers[row.former_base_id],
            base=numbers[row.base_id],
            conflicts=[Conflict.model_validate(one) for one in row.conflicts],
            resolution=row.resolution,
            resolved_by=row.resolved_by,
            resolved_version=numbers.get(row.resolved_version_id or ""),
            created_at=row.created_at,
            resolved_at=row.resolved_at,
        )
        for row in rows
    ]
