"""Verbs: what can be done with an artifact of any kind, over the store.

Every function takes a project transaction and the artifact; all of it happens, or nothing. Kinds
differ in how they check and in where their parts are kept: agents and task sets have stores of
their own, and their contents are put together here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry.kinds import open_kind
from instar.registry.kinds.agent import candidate_of
from instar.registry.kinds.task_set import TaskSetContent
from instar.registry.near import look_for_similar
from instar.registry.overlay import carry_over
from instar.registry.reading import (
    Listing,
    Read,
    artifact_etag,
    diff,
    find_label,
    known_kind,
    label_events_of,
    labels_of_artifact,
    list_,
    list_versions_of,
    naming_kinds,
    read,
    read_shown,
    resolve_known,
)
from instar.store.agents import AGENT, AgentNote, save_agent_as
from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    encode_content,
    lock_artifact,
    read_artifact,
    read_version,
)
from instar.store.audit import Author
from instar.store.contents import lock_stream
from instar.store.labels import (
    LabelMove,
    delete_artifact,
    delete_version,
    list_label_events,
    move_label,
    restore_artifact,
    restore_version,
)
from instar.store.saving import Origin, audit_stream
from instar.store.tables import LabelRow, VersionRow
from instar.store.task_sets import (
    TASK_SET,
    copy_task_set,
    create_task_set_as,
)
from instar.store.versions import version_ids
from instar_core.base import JsonValue
from instar_core.errors import ConflictError, NotFoundError
from instar_core.kinds import check_content

__all__ = [
    "ALL",
    "Listing",
    "Note",
    "Read",
    "Saved",
    "archive",
    "artifact_etag",
    "copy",
    "create",
    "diff",
    "find_label",
    "known_kind",
    "label_events_of",
    "labels_of_artifact",
    "list_",
    "list_versions_of",
    "move_label",
    "naming_kinds",
    "read",
    "read_shown",
    "resolve_known",
    "restore",
    "roll_back",
    "save",
    "update",
]

ALL: Literal["all"] = "all"
"""The artifact with all its versions, as a scope of archiving and restoring."""


@dataclass(frozen=True, slots=True)
class Note:
    """What goes with a version: who saved it, why, on what evidence, from what.

    ``parents`` are numbers of versions of the same artifact; left out, the newest one is meant.
    ``allow_similar`` is for people: they may keep what resembles something that is there.
    """

    author: Author
    reason: str = ""
    evidence: JsonValue = None
    parents: Sequence[int] = ()
    rollouts: Sequence[str] = ()
    description: str | None = None
    allow_similar: bool = False
    origin: Origin = "save"


class Saved(NamedTuple):
    """A version that was saved, its content in canonical form, and what its author should know."""

    version: VersionRow
    content: JsonValue
    notices: tuple[str, ...] = ()


async def create(session: AsyncSession, ref: ArtifactRef, content: JsonValue, note: Note) -> Saved:
    """Saves the first version of a new artifact.

    Args:
        session: A project transaction.
        ref: The artifact.
        content: Its content, in any form that its kind takes.
        note: What goes with it.

    Returns:
        The version, and notices: what it resembles, what a strict reader would object to.

    Raises:
        ConflictError: If it exists, archived or not; or, for a run, if it resembles one that does.
        InvalidContent: If it is no content of its kind, or the name cannot be one.
        NotFoundError: If there is no such kind; names the nearest.
    """
    kind = open_kind(ref.kind)
    checked = check_content(kind, content)
    await lock_stream(session, ref.project_id, audit_stream(note.author))
    if await _exists(session, ref):
        raise _taken(ref)
    by_run = note.author.kind == "run"
    similar: tuple[str, ...] = ()
    if by_run or not note.allow_similar:
        similar = await look_for_similar(session, ref, kind, checked, by_run=by_run)
    version = await _store(session, ref, checked, note, ())
    return Saved(version, kind.shown(checked), (*similar, *kind.problems(ref.name, checked)))


async def update(session: AsyncSession, ref: ArtifactRef, content: JsonValue, note: Note) -> Saved:
    """Saves a content as the next version of an artifact that exists.

    Raises:
        NotFoundError: If there is no such artifact, or a parent is no version of it.
        InvalidContent: If it is no content of its kind.
        PermissionDenied: If the author is a run and the artifact is closed to jobs.
    """
    kind = open_kind(ref.kind)
    checked = check_content(kind, content)
    artifact = await lock_artifact(session, ref, stream=audit_stream(note.author))
    by_run = note.author.kind == "run"
    parents = await version_ids(session, artifact, note.parents, learned=by_run)
    version = await _store(session, ref, checked, note, parents)
    told: tuple[str, ...] = ()
    if note.origin == "save":
        told = await carry_over(session, ref, version, note.author)
    return Saved(version, kind.shown(checked), (*told, *kind.problems(ref.name, checked)))


async def save(session: AsyncSession, ref: ArtifactRef, content: JsonValue, note: Note) -> Saved:
    """Saves a content as the next version, or as the first of a new artifact.

    Every writer takes the lock first, so that nobody makes it between the look and the save.
    """
    await lock_stream(session, ref.project_id, audit_stream(note.author))
    if await _exists(session, ref):
        return await update(session, ref, content, note)
    return await create(session, ref, content, note)


async def roll_back(
    session: AsyncSession, ref: ArtifactRef, label: str, by: Author, *, role: str, cause: str = ""
) -> LabelRow:
    """Moves a label to the version that it named before its last move.

    Raises:
        NotFoundError: If there is no such label.
        ConflictError: If the label has named no other version before.
        PermissionDenied: If the role is below the label's.
    """
    with naming_kinds(ref.kind):
        await lock_artifact(session, ref)
    now = await find_label(session, ref, label)
    events = await list_label_events(session, ref, label)
    before = next(
        (event.from_number for event in reversed(events) if event.to_number == now.number), None
    )
    if before is None:
        raise ConflictError(
            f"The label {label!r} of {ref.kind} {ref.name!r} has named no version before "
            f"{now.number}.",
            remedy="Point it at a version instead.",
        )
    move = LabelMove(label, before, now.number, cause or "rolled back", role=role)
    return await move_label(session, ref, move, by)


async def archive(
    session: AsyncSession, ref: ArtifactRef, scope: int | Literal["all"], by: Author
) -> int:
    """Hides one version, or the artifact with all of them; returns how many versions went.

    What an agent pins stays: components are artifacts of their own, and others may use them.

    Raises:
        ConflictError: If a label points to what would go, or something that stays pins it.
        NotFoundError: If there is no such artifact or version.
    """
    with naming_kinds(ref.kind):
        if scope == ALL:
            return await delete_artifact(session, ref, by)
        await delete_version(session, ref, scope, by)
        return 1


async def restore(
    session: AsyncSession, ref: ArtifactRef, scope: int | Literal["all"], by: Author
) -> None:
    """Brings back what was archived, under its old numbers.

    Raises:
        ConflictError: If it pins what is archived still.
        NotFoundError: If there never was such an artifact or version.
    """
    with naming_kinds(ref.kind):
        if scope == ALL:
            await restore_artifact(session, ref, by)
        else:
            await restore_version(session, ref, scope, by)


async def copy(
    session: AsyncSession, ref: ArtifactRef, to: str, note: Note, *, at: str | int = "latest"
) -> Saved:
    """Saves a version's content as the first version of a new artifact of the same kind.

    The copy's parent is the version that was copied. Of a task set the sealed tasks come along, and
    nobody sees them on the way.

    Raises:
        NotFoundError: If there is no such version.
        ConflictError: If the new name is taken.
    """
    kind = open_kind(ref.kind)
    found = await resolve_known(session, ref, at)
    target = ref._replace(name=to)
    await lock_stream(session, ref.project_id, audit_stream(note.author))
    if await _exists(session, target):
        raise _taken(target)
    content = await read_shown(session, ref, found.version)
    described = found.artifact.description if note.description is None else note.description
    note = replace(note, origin="copy", description=described)
    if ref.kind == TASK_SET:
        draft = Draft(
            b"", "", note.author, note.reason, note.evidence, origin="copy", description=described
        )
        version = await copy_task_set(session, found.version, target, draft)
    else:
        version = await _store(session, target, content, note, [found.version.id])
    return Saved(version, content, kind.problems(to, content))


async def _exists(session: AsyncSession, ref: ArtifactRef) -> bool:
    try:
        await read_artifact(session, ref, deleted=True)
    except NotFoundError:
        return False
    return True


def _taken(ref: ArtifactRef) -> ConflictError:
    return ConflictError(
        f"there is a {ref.kind} named {ref.name[:80]!r} already, archived or not.",
        remedy="Save a version of it, restore it, or choose another name.",
    )


async def _store(
    session: AsyncSession, ref: ArtifactRef, content: JsonValue, note: Note, parents: Sequence[str]
) -> VersionRow:
    """Saves a checked content where contents of its kind are kept."""
    if ref.kind == AGENT:
        about = AgentNote(
            note.author,
            note.reason,
            note.evidence,
            parents,
            note.origin,
            note.rollouts,
            note.description,
        )
        saved = await save_agent_as(session, ref, candidate_of(content), about)
        return await read_version(session, saved.id)
    if ref.kind == TASK_SET:
        tasks = TaskSetContent.model_validate(content)
        draft = Draft(
            b"",
            "",
            note.author,
            note.reason,
            note.evidence,
            parents,
            origin=note.origin,
            rollouts=note.rollouts,
            description=note.description,
        )
        made = await create_task_set_as(session, ref, tasks.tasks, draft, bindings=tasks.bindings)
        return await read_version(session, made.id)
    data, media_type = encode_content(content)
    kind = open_kind(ref.kind)
    return await create_version(
        session,
        ref,
        Draft(
            data,
            media_type,
            note.author,
            note.reason,
            note.evidence,
            parents,
            origin=note.origin,
            rollouts=note.rollouts,
            search_text=kind.search_text(content),
            description=note.description,
        ),
    )
