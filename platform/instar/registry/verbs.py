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

from instar.registry.diffs import Diff, diff_contents
from instar.registry.kinds import list_kinds, open_kind
from instar.registry.kinds.agent import agent_content, candidate_of
from instar.registry.kinds.task_set import TaskSetContent
from instar.registry.near import look_for_similar
from instar.store.agents import AGENT, AgentNote, load_candidate_version, save_agent_as
from instar.store.artifacts import (
    ArtifactFilter,
    ArtifactRef,
    Draft,
    Resolved,
    create_version,
    encode_content,
    list_artifacts,
    lock_artifact,
    read_artifact,
    read_content,
    read_version,
    resolve,
)
from instar.store.audit import Author
from instar.store.catalogue import labels_of_many
from instar.store.labels import (
    LabelMove,
    delete_artifact,
    delete_version,
    list_label_events,
    list_labels,
    move_label,
    restore_artifact,
    restore_version,
)
from instar.store.saving import Origin, audit_stream
from instar.store.tables import ArtifactRow, LabelRow, VersionRow
from instar.store.task_sets import (
    TASK_SET,
    copy_task_set,
    create_task_set_as,
    read_bindings,
    read_open,
)
from instar.store.versions import numbers_of_parents, version_ids
from instar_core.base import JsonValue, content_hash
from instar_core.errors import ConflictError, NotFoundError
from instar_core.kinds import Kind, check_content, did_you_mean

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
    "list_",
    "move_label",
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


class Read(NamedTuple):
    """What a reference means now, with its content and the numbers of its parents."""

    found: Resolved
    content: JsonValue
    parents: tuple[int, ...] = ()


class Listing(NamedTuple):
    """Artifacts with their labels, and the cursor of the page after them."""

    items: list[tuple[ArtifactRow, list[LabelRow]]]
    next_cursor: str | None


def known_kind(kind: str) -> Kind | None:
    """The kind of that name; ``None`` for one that an older version or another package stored."""
    return open_kind(kind) if kind in list_kinds() else None


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
    if await _exists(session, ref):
        raise _taken(ref)
    by_run = note.author.kind == "run"
    similar: tuple[str, ...] = ()
    if by_run or not note.allow_similar:
        similar = await look_for_similar(session, ref, kind, checked, by_run=by_run)
    version = await _store(session, ref, checked, note, ())
    if version.number != 1:
        # Somebody made it between the look and the save; the transaction takes this one back.
        raise _taken(ref)
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
    parents = await version_ids(session, artifact, note.parents)
    version = await _store(session, ref, checked, note, parents)
    return Saved(version, kind.shown(checked), kind.problems(ref.name, checked))


async def save(session: AsyncSession, ref: ArtifactRef, content: JsonValue, note: Note) -> Saved:
    """Saves a content as the next version, or as the first of a new artifact."""
    if await _exists(session, ref):
        return await update(session, ref, content, note)
    return await create(session, ref, content, note)


async def read(session: AsyncSession, ref: ArtifactRef, at: str | int = "latest") -> Read:
    """What a version number, a label or ``latest`` means now, with what a reader may see of it.

    Raises:
        NotFoundError: If there is no such kind, artifact, version or label; names the nearest.
    """
    found = await resolve_known(session, ref, at)
    content = await read_shown(session, ref, found.version)
    return Read(found, content, await numbers_of_parents(session, found.version))


async def resolve_known(
    session: AsyncSession, ref: ArtifactRef, at: str | int = "latest"
) -> Resolved:
    """What a reference means now; where its kind does not even exist, the nearest kinds are named.

    Raises:
        NotFoundError: If there is no such kind, artifact, version or label.
    """
    try:
        return await resolve(session, ref, at)
    except NotFoundError:
        open_kind(ref.kind)
        raise


async def read_shown(session: AsyncSession, ref: ArtifactRef, version: VersionRow) -> JsonValue:
    """The content of a version as a reader sees it: whole, but nothing that is sealed."""
    if ref.kind == AGENT:
        return agent_content(await load_candidate_version(session, version.id))
    if ref.kind == TASK_SET:
        tasks: list[JsonValue] = [
            task.model_dump(mode="json") for task in await read_open(session, version.id)
        ]
        return {"tasks": tasks, "bindings": await read_bindings(session, version.id)}
    content = await read_content(session, version)
    kind = known_kind(ref.kind)
    return content if kind is None else kind.shown(content)


async def list_(
    session: AsyncSession,
    project_id: str,
    where: ArtifactFilter | None = None,
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> Listing:
    """A page of the project's artifacts with their labels, newest first.

    Raises:
        NotFoundError: If the filter names a kind that does not exist; names the nearest.
        InvalidContent: If a filter cannot be one.
    """
    where = where or ArtifactFilter()
    page = await list_artifacts(session, project_id, where=where, limit=limit, cursor=cursor)
    if where.kind and not page.items:
        open_kind(where.kind)
    labels = await labels_of_many(session, [row.id for row in page.items])
    return Listing([(row, labels[row.id]) for row in page.items], page.next_cursor)


async def diff(session: AsyncSession, ref: ArtifactRef, old: str | int, new: str | int) -> Diff:
    """What changed between two versions, in the form of the kind; nothing sealed is compared.

    Raises:
        NotFoundError: If there is no such artifact or version; names the nearest.
    """
    kind = known_kind(ref.kind)
    left = await resolve_known(session, ref, old)
    right = await resolve_known(session, ref, new)
    return diff_contents(
        await read_shown(session, ref, left.version),
        await read_shown(session, ref, right.version),
        None if kind is None else kind.form,
    )


async def find_label(session: AsyncSession, ref: ArtifactRef, label: str) -> LabelRow:
    """A label by name.

    Raises:
        NotFoundError: If there is no such kind, artifact or label; names the nearest.
    """
    try:
        rows = {row.name: row for row in await list_labels(session, ref)}
    except NotFoundError:
        open_kind(ref.kind)
        raise
    if label not in rows:
        raise NotFoundError(
            f"There is no label {label[:80]!r} on {ref.kind} {ref.name!r}.",
            remedy=f"Its labels: {', '.join(rows) or 'none'}."
            + (f" {did_you_mean(label, rows)}" if rows else ""),
        )
    return rows[label]


async def roll_back(
    session: AsyncSession, ref: ArtifactRef, label: str, by: Author, *, role: str, cause: str = ""
) -> LabelRow:
    """Moves a label to the version that it named before its last move.

    Raises:
        NotFoundError: If there is no such label.
        ConflictError: If the label has named no other version before.
        PermissionDenied: If the role is below the label's.
    """
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
    if scope == ALL:
        return await delete_artifact(session, ref, by)
    await delete_version(session, ref, scope, by)
    return 1


async def restore(
    session: AsyncSession, ref: ArtifactRef, scope: int | Literal["all"], by: Author
) -> None:
    """Brings back what was archived, under its old numbers.

    Raises:
        NotFoundError: If there never was such an artifact or version.
    """
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
    if version.number != 1:
        raise _taken(target)
    return Saved(version, content, kind.problems(to, content))


def artifact_etag(artifact: ArtifactRow, labels: Sequence[LabelRow]) -> str:
    """An ETag that changes with anything that is shown of an artifact."""
    seen: list[JsonValue] = [artifact.id, artifact.revision, artifact.last_version]
    seen.extend([label.name, label.epoch] for label in labels)
    return content_hash(seen)[:32]


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
