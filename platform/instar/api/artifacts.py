"""What the registry's routes do, over its verbs, inside one transaction."""

from __future__ import annotations

from typing import Literal

from fastapi import Request, Response
from sqlalchemy.ext.asyncio import AsyncSession

from instar.api.auth import Caller
from instar.api.pages import Page
from instar.api.preconditions import check_match, unchanged
from instar.api.schemas import ArtifactOut, LabelIn, NewVersionIn, VersionOut
from instar.api.schemas_artifacts import (
    ArchiveIn,
    ArchiveOut,
    ContentIn,
    CopyIn,
    DescribeIn,
    KindOut,
    NewArtifactIn,
)
from instar.api.screening import screen
from instar.api.views import artifact_out, set_etag, version_out
from instar.registry import verbs
from instar.registry.kinds import list_kinds, open_kind
from instar.registry.verbs import ALL, Note, find_label
from instar.store.artifacts import (
    ArtifactFilter,
    ArtifactRef,
    describe_artifact,
    lock_artifact,
    read_artifact,
    read_parents,
    set_job_access,
)
from instar.store.catalogue import count_scope
from instar.store.labels import ANY, LabelMove, MoveRole, list_labels, move_label, protect_label
from instar.store.overlays import open_conflicts
from instar.store.tables import ArtifactRow, LabelRow
from instar_core.base import JsonValue
from instar_core.errors import ConflictError, NotFoundError, PermissionDenied, UserError

__all__ = [
    "archive_many",
    "archive_one",
    "copy_artifact",
    "describe_if",
    "etag_of_label",
    "list_page",
    "move_label_if",
    "protect_label_if",
    "put_content",
    "read_artifact_out",
    "read_version_out",
    "save_new",
    "save_version",
    "show_kinds",
]


def show_kinds() -> list[KindOut]:
    """All kinds with what a person needs to write one."""
    kinds = [open_kind(name) for name in list_kinds()]
    return [
        KindOut(
            name=kind.name,
            title=kind.title,
            form=kind.form,
            max_bytes=kind.limits.max_bytes,
            max_depth=kind.limits.max_depth,
            examples=list(kind.examples()),
        )
        for kind in kinds
    ]


async def list_page(
    session: AsyncSession, project_id: str, where: ArtifactFilter, limit: int, after: str | None
) -> Page[ArtifactOut]:
    """A page of artifacts with their labels."""
    page = await verbs.list_(session, project_id, where, limit=limit, cursor=after)
    return Page(
        data=[artifact_out(row, labels) for row, labels in page.items], next=page.next_cursor
    )


async def read_artifact_out(
    session: AsyncSession, ref: ArtifactRef, request: Request, response: Response
) -> ArtifactOut | Response:
    """One artifact with its labels, or 304 where the reader has seen just this."""
    row, labels = await _present(session, ref)
    if unchanged(request, response, verbs.artifact_etag(row, labels)):
        return Response(status_code=304, headers=dict(response.headers))
    return artifact_out(row, labels)


async def read_version_out(
    session: AsyncSession, ref: ArtifactRef, at: str, request: Request, response: Response
) -> VersionOut | Response:
    """What a version number, label or ``latest`` means now, or 304 where the reader has it."""
    found = await verbs.resolve_known(session, ref, at)
    if unchanged(request, response, found.etag):
        return Response(status_code=304, headers=dict(response.headers))
    return version_out(
        found.version,
        label=found.label,
        conflict=(await open_conflicts(session, [found.version.id])).get(found.version.id),
        content=await verbs.read_shown(session, ref, found.version),
        parents=await read_parents(session, found.version.id),
    )


async def save_new(session: AsyncSession, new: NewArtifactIn, caller: Caller) -> VersionOut:
    """Makes an artifact with its first version.

    Raises:
        ConflictError: If it exists.
    """
    ref = ArtifactRef(caller.project_id, new.kind, new.name)
    note = Note(
        caller.author,
        new.reason,
        new.evidence,
        description=new.description or None,
        allow_similar=new.allow_similar,
    )
    saved = await verbs.create(session, ref, screen(caller, ref.kind, new.content), note)
    if new.tags:
        await describe_artifact(session, ref, caller.author, tags=new.tags)
    return await _saved_out(session, saved)


async def save_version(
    session: AsyncSession, ref: ArtifactRef, new: NewVersionIn, match: str | None, caller: Caller
) -> VersionOut:
    """Appends a version, or makes the artifact with it; honours ``If-Match`` where it is sent."""
    if match is not None:
        await _check_present(session, ref, match)
    note = Note(caller.author, new.reason, description=new.description)
    return await _save(session, ref, new.content, note, caller)


async def put_content(
    session: AsyncSession, ref: ArtifactRef, new: ContentIn, match: str | None, caller: Caller
) -> VersionOut:
    """Saves a content as the next version of what is there, or makes the artifact.

    Raises:
        ProblemError: ``precondition-required`` or ``precondition-failed`` where it is there.
    """
    await _check_present(session, ref, match)
    note = Note(caller.author, new.reason, new.evidence, new.parents)
    return await _save(session, ref, new.content, note, caller)


async def describe_if(
    session: AsyncSession, ref: ArtifactRef, new: DescribeIn, match: str | None, caller: Caller
) -> tuple[ArtifactOut, str]:
    """Edits description, tags or what jobs may do; the new ETag comes along.

    Raises:
        PermissionDenied: If an operator opens or closes it to jobs.
        ProblemError: ``precondition-required`` or ``precondition-failed``.
    """
    if new.job_access is not None and not caller.has("approver"):
        raise PermissionDenied(
            f"A key of role {caller.role!r} may not change what jobs may do; it takes "
            "'approver' or more.",
            remedy="Ask an approver.",
        )
    with verbs.naming_kinds(ref.kind):
        await lock_artifact(session, ref)
    row, labels = await _present(session, ref)
    what = f"The {ref.kind} {ref.name!r}"
    check_match(match, await _etags(session, ref, row, labels), what)
    if new.description is not None or new.tags is not None:
        row = await describe_artifact(
            session, ref, caller.author, description=new.description, tags=new.tags
        )
    if new.job_access is not None and new.job_access != row.job_access:
        row = await set_job_access(session, ref, new.job_access, caller.author)
    return artifact_out(row, labels), verbs.artifact_etag(row, labels)


async def move_label_if(
    session: AsyncSession,
    ref: ArtifactRef,
    move: tuple[str, LabelIn],
    match: str | None,
    by: Caller,
) -> LabelRow:
    """Moves a label if it still is as its reader saw it; makes it where there is none.

    Raises:
        ProblemError: ``precondition-required`` or ``precondition-failed`` for one that exists.
        PermissionDenied: If it is protected from the caller.
    """
    name, wanted = move
    # The artifact's lock is held until the end of the transaction: between this look at the label
    # and its move nobody else can move it.
    with verbs.naming_kinds(ref.kind):
        await lock_artifact(session, ref)
    now = {row.name: row for row in await list_labels(session, ref)}.get(name)
    if now is not None or match != "*":
        what = f"The label {name!r} of {ref.kind} {ref.name!r}"
        check_match(match, None if now is None else now.epoch, what)
    target = LabelMove(name, wanted.version, ANY, wanted.cause or "moved by API", role=by.role)
    return await move_label(session, ref, target, by.author)


async def protect_label_if(
    session: AsyncSession,
    ref: ArtifactRef,
    rule: tuple[str, MoveRole],
    match: str | None,
    by: Caller,
) -> LabelRow:
    """Sets the least role that may move a label, if it still is as its reader saw it."""
    name, role = rule
    with verbs.naming_kinds(ref.kind):
        await lock_artifact(session, ref)
    now = await find_label(session, ref, name)
    check_match(match, now.epoch, f"The label {name!r} of {ref.kind} {ref.name!r}")
    return await protect_label(session, ref, name, by.author, role=role)


async def archive_one(
    session: AsyncSession, ref: ArtifactRef, scope: Literal["all"] | None, caller: Caller
) -> ArchiveOut:
    """Archives an artifact with all its versions, if the request says that it means all of them.

    Raises:
        UserError: If it does not say so.
    """
    if scope is None:
        count = (await _present(session, ref))[0].last_version
        raise UserError(
            f"Archiving the {ref.kind} {ref.name!r} would hide all its versions (up to {count}), "
            "and the request does not say so.",
            remedy="Add ?versions=all, or archive one: DELETE …/versions/NUMBER.",
        )
    count = await verbs.archive(session, ref, ALL, caller.author)
    return ArchiveOut(kind=ref.kind, versions={ref.name: count}, count=count, archived=True)


async def archive_many(session: AsyncSession, scope: ArchiveIn, caller: Caller) -> ArchiveOut:
    """Counts what a scope holds, or archives it where the count was seen.

    Raises:
        NotFoundError: If the project is another one, or a name does not exist.
        ConflictError: If the scope holds something else than was counted, or something is in use;
            nothing is archived then.
    """
    if scope.project != caller.project_id:
        raise NotFoundError(f"There is no project {scope.project[:80]!r} for this credential.")
    names = sorted(set(scope.names))
    there = await count_scope(session, caller.project_id, scope.kind, names)
    for name in names:
        if name not in there:
            await _present(session, ArtifactRef(caller.project_id, scope.kind, name))
    total = sum(there.values())
    if scope.count is not None and scope.count != total:
        raise ConflictError(
            f"The scope holds {total} versions, not {scope.count}; nothing was archived.",
            remedy="Leave 'count' out to see what would be archived, then send what you see.",
        )
    for name in names if scope.count is not None else ():
        ref = ArtifactRef(caller.project_id, scope.kind, name)
        await verbs.archive(session, ref, ALL, caller.author)
    return ArchiveOut(
        kind=scope.kind, versions=there, count=total, archived=scope.count is not None
    )


async def copy_artifact(
    session: AsyncSession, ref: ArtifactRef, wanted: CopyIn, caller: Caller
) -> VersionOut:
    """Copies a version into a new artifact of the same kind."""
    note = Note(caller.author, wanted.reason or f"copy of {ref.name}", None)
    if wanted.description is not None:
        note = Note(caller.author, note.reason, description=wanted.description)
    saved = await verbs.copy(session, ref, wanted.to, note, at=wanted.version)
    return await _saved_out(session, saved)


async def _save(
    session: AsyncSession, ref: ArtifactRef, content: JsonValue, note: Note, caller: Caller
) -> VersionOut:
    """Saves a content that this caller may save."""
    return await _saved_out(
        session, await verbs.save(session, ref, screen(caller, ref.kind, content), note)
    )


async def _present(session: AsyncSession, ref: ArtifactRef) -> tuple[ArtifactRow, list[LabelRow]]:
    with verbs.naming_kinds(ref.kind):
        row = await read_artifact(session, ref)
    return row, await list_labels(session, ref)


async def _etags(
    session: AsyncSession, ref: ArtifactRef, row: ArtifactRow, labels: list[LabelRow]
) -> list[str]:
    """The ETags under which the present state can be read: the artifact's, its newest version's."""
    found = [verbs.artifact_etag(row, labels)]
    try:
        found.append((await verbs.resolve_known(session, ref, "latest")).etag)
    except NotFoundError:
        # Every version of it is archived; the artifact itself can still be edited.
        return found
    return found


async def _check_present(session: AsyncSession, ref: ArtifactRef, match: str | None) -> None:
    """Locks the artifact and checks a save's precondition, where there is one to save over."""
    what = f"The {ref.kind} {ref.name!r}"
    try:
        await lock_artifact(session, ref)
    except NotFoundError:
        check_match(match, None, what)
        return
    row, labels = await _present(session, ref)
    check_match(match, await _etags(session, ref, row, labels), what)


async def _saved_out(session: AsyncSession, saved: verbs.Saved) -> VersionOut:
    return version_out(
        saved.version,
        content=saved.content,
        parents=await read_parents(session, saved.version.id),
        notices=list(saved.notices),
    )


def etag_of_label(response: Response, row: LabelRow) -> None:
    """Names the state of a label, for a later ``If-Match``; labels are never kept by readers."""
    set_etag(response, row.epoch)
    response.headers["Cache-Control"] = "no-store"
