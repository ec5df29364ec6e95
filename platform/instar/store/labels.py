"""Labels: movable pointers to versions, moved by compare-and-swap, with a history that only grows.

Also deleting and restoring: always soft, with the scope spelled out, refused while a label or
another version depends on what would go.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal, NamedTuple, get_args

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from instar.store.artifacts import ArtifactRef, lock_artifact, read_artifact, touch_artifact
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.contents import check_words
from instar.store.resolving import no_such_label
from instar.store.saving import audit_stream, refuse_jobs
from instar.store.tables import (
    ArtifactRow,
    LabelEventRow,
    LabelRow,
    VersionPartRow,
    VersionRow,
)
from instar_core.base import JsonValue, short
from instar_core.errors import (
    ConflictError,
    InvalidContent,
    NotFoundError,
    PermissionDenied,
    UserError,
)

__all__ = [
    "ANY",
    "MOVE_ROLES",
    "LabelMove",
    "MoveRole",
    "check_label",
    "delete_artifact",
    "delete_label",
    "delete_version",
    "list_label_events",
    "list_labels",
    "move_label",
    "protect_label",
    "restore_artifact",
    "restore_version",
]

ANY: Literal["any"] = "any"
"""For ``expected``: move the label wherever it is."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_RESERVED = frozenset({"latest"})
MoveRole = Literal["operator", "approver", "admin"]
"""The least role that may move a label, in rising order."""
MOVE_ROLES: tuple[str, ...] = get_args(MoveRole)
_RANK = {"viewer": 0, "operator": 1, "approver": 2, "admin": 3}
_MOVED_BY: dict[str, MoveRole] = {"production": "admin"}
_MAX_CAUSE = 2_000


class LabelMove(NamedTuple):
    """A move: the label, the version number it shall point to, and where it is believed to be.

    ``expected`` is a version number, ``None`` (the label must not exist yet) or :data:`ANY`.
    ``role`` is the mover's: a label that exists moves only for its ``move_role`` and those above.
    ``unlock`` is for promotions of tested proposals, which move any label. ``run_id`` is the
    evolution run whose work the move puts in force.
    """

    label: str
    to: int
    expected: int | Literal["any"] | None
    cause: str = ""
    unlock: bool = False
    role: str = "operator"
    run_id: str | None = None


async def move_label(
    session: AsyncSession, ref: ArtifactRef, move: LabelMove, by: Author
) -> LabelRow:
    """Points a label at a version, if it is where the caller believes it to be.

    Args:
        session: A project transaction; the artifact's row is locked until it ends, so that moves
            happen one after the other.
        ref: The artifact.
        move: What to move, where to, and from where.
        by: Who moves it.

    Returns:
        The label; its ``epoch`` grew by one.

    Raises:
        ConflictError: If the label is elsewhere; nothing was moved.
        PermissionDenied: If the mover's role is below the label's (one that was removed keeps the
            rule it starts with), or a job moves it.
        UserError: If the name cannot be a label's (only digits, ``latest``, odd characters).
        NotFoundError: If there is no such version.
    """
    check_label(move.label)
    check_words(move.cause, _MAX_CAUSE, "the cause")
    if not move.unlock:
        refuse_jobs(by, "move a label")
    artifact = await lock_artifact(session, ref, stream=audit_stream(by))
    version = await _live_version(session, artifact, move.to)
    label = await session.get(LabelRow, (artifact.id, move.label), populate_existing=True)
    before = None if label is None else label.number
    if move.expected != ANY and move.expected != before:
        raise ConflictError(
            f"the label {move.label!r} of {ref.kind} {ref.name!r} is "
            f"{_place(before)}, not {_place(move.expected)} as expected; it was not moved.",
            remedy="Read it again and decide anew.",
        )
    if label is not None and not move.unlock:
        _check_role(ref, label, move.role)
    if label is None:
        label = await _new_label(session, ref, artifact, version, move)
    else:
        label.version_id = version.id
        label.number = version.number
        label.epoch += 1
        label.moved_at = await _now(session)
    change = _Change(move.label, before, version.number, move.cause, move.run_id)
    await _record(session, ref, artifact, change, by)
    return label


async def _new_label(
    session: AsyncSession, ref: ArtifactRef, artifact: ArtifactRow, to: VersionRow, move: LabelMove
) -> LabelRow:
    """A label that is not there: one that was removed is put back by who may move it alone."""
    role = _MOVED_BY.get(move.label, "operator")
    moves = await _moves_so_far(session, artifact, move.label)
    if moves and not move.unlock and _RANK.get(move.role, -1) < _RANK[role]:
        raise PermissionDenied(
            f"the label {move.label!r} of {ref.kind} {ref.name!r} was removed; whoever may "
            f"move it ({role!r}) may put it back, and this one is {move.role!r}.",
            remedy=f"Promote a tested proposal, or let an {role} do it.",
        )
    label = LabelRow(
        artifact_id=artifact.id,
        name=move.label,
        project_id=ref.project_id,
        version_id=to.id,
        number=to.number,
        move_role=role,
        protected=role != "operator",
        # A label made anew goes on counting where the one before ended, so no ETag comes back.
        epoch=1 + moves,
    )
    session.add(label)
    return label


async def delete_label(
    session: AsyncSession,
    ref: ArtifactRef,
    label: str,
    by: Author,
    *,
    unlock: bool = False,
    role: str = "operator",
) -> None:
    """Removes a label; the version it pointed to stays.

    Raises:
        NotFoundError: If there is no such label.
        PermissionDenied: If the role is below the label's and ``unlock`` is not given, or a job
            removes it.
    """
    refuse_jobs(by, "remove a label")
    artifact = await lock_artifact(session, ref)
    row = await _label(session, ref, artifact, label)
    if not unlock:
        _check_role(ref, row, role)
    before = row.number
    await session.delete(row)
    await session.flush()
    await _record(session, ref, artifact, _Change(label, before, None, "deleted", None), by)


async def protect_label(
    session: AsyncSession, ref: ArtifactRef, label: str, by: Author, *, role: MoveRole
) -> LabelRow:
    """Sets the least role that may move a label, ``operator`` for everybody who may write.

    Raises:
        NotFoundError: If there is no such label.
        InvalidContent: If there is no such role.
        PermissionDenied: If a job does it.
    """
    refuse_jobs(by, "change who may move a label")
    if role not in ("operator", "approver", "admin"):
        raise InvalidContent(
            f"{role!r} cannot be the role that moves a label.",
            remedy="Use operator, approver or admin.",
        )
    artifact = await lock_artifact(session, ref)
    row = await _label(session, ref, artifact, label)
    details: dict[str, JsonValue] = {"label": label, "move_role": [row.move_role, role]}
    row.move_role = role
    row.protected = role != "operator"
    # What a reader is shown of the label changed, so its ETag does.
    row.epoch += 1
    await session.flush()
    await touch_artifact(session, artifact.id)
    await _audit(session, ref, "label.protect", details, by)
    return row


async def list_labels(session: AsyncSession, ref: ArtifactRef) -> list[LabelRow]:
    """The labels of an artifact, by name."""
    artifact = await read_artifact(session, ref)
    rows = await session.scalars(
        select(LabelRow).where(LabelRow.artifact_id == artifact.id).order_by(LabelRow.name)
    )
    return list(rows)


async def list_label_events(
    session: AsyncSession, ref: ArtifactRef, label: str | None = None
) -> list[LabelEventRow]:
    """The history of an artifact's labels (or of one), oldest first."""
    artifact = await read_artifact(session, ref, deleted=True)
    query = select(LabelEventRow).where(LabelEventRow.artifact_id == artifact.id)
    if label is not None:
        query = query.where(LabelEventRow.label == label)
    rows = await session.scalars(query.order_by(LabelEventRow.created_at, LabelEventRow.id))
    return list(rows)


async def delete_version(session: AsyncSession, ref: ArtifactRef, number: int, by: Author) -> None:
    """Deletes one version softly.

    Raises:
        ConflictError: If a label points to it, or a version that is not deleted pins it.
        NotFoundError: If there is no such version.
    """
    refuse_jobs(by, "archive a version")
    artifact = await lock_artifact(session, ref)
    version = await _live_version(session, artifact, number)
    labels = await session.scalars(select(LabelRow.name).where(LabelRow.version_id == version.id))
    await _refuse_in_use(session, [version.id], list(labels), f"version {number} of {ref.name!r}")
    version.deleted_at = await _now(session)
    await session.flush()
    await touch_artifact(session, artifact.id)
    await _audit(session, ref, "version.archive", {"number": number}, by)


async def restore_version(session: AsyncSession, ref: ArtifactRef, number: int, by: Author) -> None:
    """Brings a deleted version back, under its old number.

    Raises:
        ConflictError: If it pins a version that is archived.
        NotFoundError: If there never was one.
    """
    refuse_jobs(by, "restore a version")
    artifact = await lock_artifact(session, ref)
    version = await _any_version(session, artifact, number)
    await _refuse_torn(session, VersionRow.id == version.id, f"version {number} of {ref.name!r}")
    version.deleted_at = None
    await session.flush()
    await touch_artifact(session, artifact.id)
    await _audit(session, ref, "version.restore", {"number": number}, by)


async def delete_artifact(session: AsyncSession, ref: ArtifactRef, by: Author) -> int:
    """Deletes an artifact with all its versions, softly. There is no shorter way to say "all".

    Returns:
        How many versions went.

    Raises:
        ConflictError: If it has labels, or versions of others pin its versions.
    """
    refuse_jobs(by, "archive an artifact")
    artifact = await lock_artifact(session, ref)
    labels = await session.scalars(
        select(LabelRow.name).where(LabelRow.artifact_id == artifact.id).order_by(LabelRow.name)
    )
    versions = await session.scalars(
        select(VersionRow.id).where(
            VersionRow.artifact_id == artifact.id, VersionRow.deleted_at.is_(None)
        )
    )
    ids = list(versions)
    await _refuse_in_use(session, ids, list(labels), f"{ref.kind} {ref.name!r}")
    artifact.deleted_at = await _now(session)
    artifact.revision += 1
    await session.flush()
    await _audit(session, ref, "artifact.archive", {"versions": len(ids)}, by)
    return len(ids)


async def restore_artifact(session: AsyncSession, ref: ArtifactRef, by: Author) -> None:
    """Brings a deleted artifact back, with its versions as they were.

    Raises:
        ConflictError: If one of them pins a version that was archived since.
    """
    refuse_jobs(by, "restore an artifact")
    artifact = await lock_artifact(session, ref, deleted=True)
    live = (VersionRow.artifact_id == artifact.id) & VersionRow.deleted_at.is_(None)
    await _refuse_torn(session, live, f"{ref.kind} {ref.name!r}")
    artifact.deleted_at = None
    artifact.revision += 1
    await session.flush()
    await _audit(session, ref, "artifact.restore", None, by)


class _Change(NamedTuple):
    label: str
    before: int | None
    after: int | None
    cause: str
    run_id: str | None


def _check_role(ref: ArtifactRef, label: LabelRow, role: str) -> None:
    if _RANK.get(role, -1) < _RANK[label.move_role]:
        raise PermissionDenied(
            f"the label {label.name!r} of {ref.kind} {ref.name!r} is protected: it moves for the "
            f"role {label.move_role!r} and those above, and this one is {role!r}.",
            remedy=f"Promote a tested proposal, or let an {label.move_role} move it.",
        )


def check_label(label: str) -> None:
    """Refuses what cannot be a label: only digits, ``latest``, odd characters.

    Raises:
        UserError: If the name is none.
    """
    if label.isdecimal():
        raise UserError(
            f"{short(label, 80)!r} cannot be a label: labels of digits alone would be taken for "
            "versions.",
            remedy=f"Name it 'v{short(label, 20)}', for example.",
        )
    if label in _RESERVED or not _NAME.fullmatch(label):
        raise UserError(
            f"{short(label, 80)!r} cannot be a label.",
            remedy="Use 1 to 63 lower-case letters, digits, '.', '_' and '-'; 'latest' is taken.",
        )


def _place(number: int | str | None) -> str:
    return "absent" if number is None else f"at version {number}"


async def _moves_so_far(session: AsyncSession, artifact: ArtifactRow, label: str) -> int:
    found = await session.scalar(
        select(func.count())
        .select_from(LabelEventRow)
        .where(LabelEventRow.artifact_id == artifact.id, LabelEventRow.label == label)
    )
    return int(found or 0)


async def _label(
    session: AsyncSession, ref: ArtifactRef, artifact: ArtifactRow, label: str
) -> LabelRow:
    row = None
    if "\x00" not in label:
        row = await session.get(LabelRow, (artifact.id, label), populate_existing=True)
    if row is None:
        raise await no_such_label(session, ref, artifact.id, label)
    return row


async def _any_version(session: AsyncSession, artifact: ArtifactRow, number: int) -> VersionRow:
    row = await session.scalar(
        select(VersionRow)
        .where(
            VersionRow.artifact_id == artifact.id,
            # A number that no column could hold is no version either.
            VersionRow.number == max(min(number, 2**31 - 1), 0),
        )
        .execution_options(populate_existing=True)
    )
    if row is None:
        raise NotFoundError(f"there is no version {number} of {artifact.kind} {artifact.name!r}.")
    return row


async def _live_version(session: AsyncSession, artifact: ArtifactRow, number: int) -> VersionRow:
    row = await _any_version(session, artifact, number)
    if row.deleted_at is not None:
        raise NotFoundError(
            f"version {number} of {artifact.kind} {artifact.name!r} was deleted.",
            remedy="Restore it first.",
        )
    return row


async def _refuse_in_use(
    session: AsyncSession, versions: list[str], labels: list[str], what: str
) -> None:
    if labels:
        raise ConflictError(
            f"{what} is what the label {labels[0]!r} points to; nothing was deleted.",
            remedy=f"Move or remove first: {', '.join(labels)}.",
        )
    pinned = await session.scalar(
        select(ArtifactRow.name)
        .join(VersionRow, VersionRow.artifact_id == ArtifactRow.id)
        .join(VersionPartRow, VersionPartRow.version_id == VersionRow.id)
        .where(
            VersionPartRow.part_id.in_(versions),
            VersionRow.deleted_at.is_(None),
            ArtifactRow.deleted_at.is_(None),
        )
        .order_by(ArtifactRow.name)
        .limit(1)
    )
    if pinned is not None:
        raise ConflictError(
            f"{what} is in use: a version of {pinned!r} pins it; nothing was deleted.",
            remedy="Delete that version first.",
        )


async def _refuse_torn(session: AsyncSession, which: ColumnElement[bool], what: str) -> None:
    """Refuses to bring back what pins something archived: it could be neither saved nor copied."""
    part, owner = aliased(VersionRow), aliased(ArtifactRow)
    found = (
        await session.execute(
            select(owner.kind, owner.name, part.number, owner.deleted_at)
            .join(part, part.artifact_id == owner.id)
            .join(VersionPartRow, VersionPartRow.part_id == part.id)
            .join(VersionRow, VersionRow.id == VersionPartRow.version_id)
            .where(which, part.deleted_at.is_not(None) | owner.deleted_at.is_not(None))
            .order_by(owner.kind, owner.name, part.number)
            .limit(1)
        )
    ).first()
    if found is not None:
        kind, name, number, gone = found
        pinned = f"{kind} {name!r}" if gone is not None else f"version {number} of {kind} {name!r}"
        raise ConflictError(
            f"{what} pins {pinned}, which is archived; nothing was restored.",
            remedy="Restore that first.",
        )


async def _now(session: AsyncSession) -> datetime:
    now: datetime = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    return now


async def _record(
    session: AsyncSession, ref: ArtifactRef, artifact: ArtifactRow, change: _Change, by: Author
) -> None:
    session.add(
        LabelEventRow(
            project_id=ref.project_id,
            artifact_id=artifact.id,
            label=change.label,
            from_number=change.before,
            to_number=change.after,
            actor_kind=by.kind,
            actor=by.name,
            cause=change.cause,
            run_id=change.run_id,
        )
    )
    await session.flush()
    details: dict[str, JsonValue] = {
        "label": change.label,
        "from": change.before,
        "to": change.after,
        "cause": change.cause,
    }
    if change.run_id is not None:
        details["run"] = change.run_id
    await _audit(session, ref, "label.move", details, by)


async def _audit(
    session: AsyncSession, ref: ArtifactRef, action: str, details: JsonValue, by: Author
) -> None:
    subject = f"{ref.kind}/{ref.name}"
    entry = AuditEntry(action=action, subject=subject, details=details, stream=audit_stream(by))
    await append_audit(session, ref.project_id, entry, by)
