"""Labels: movable pointers to versions, moved by compare-and-swap, with a history that only grows.

Also deleting and restoring: always soft, with the scope spelled out, refused while a label or
another version depends on what would go.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal, NamedTuple

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import ArtifactRef, lock_artifact, read_artifact, touch_artifact
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.tables import (
    ArtifactRow,
    LabelEventRow,
    LabelRow,
    VersionPartRow,
    VersionRow,
)
from instar_core.base import JsonValue
from instar_core.errors import ConflictError, NotFoundError, PermissionDenied, UserError

__all__ = [
    "ANY",
    "LabelMove",
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
_PROTECTED = frozenset({"production"})


class LabelMove(NamedTuple):
    """A move: the label, the version number it shall point to, and where it is believed to be.

    ``expected`` is a version number, ``None`` (the label must not exist yet) or :data:`ANY`.
    ``unlock`` allows a protected label that exists to be moved: for promotions and admins.
    """

    label: str
    to: int
    expected: int | Literal["any"] | None
    cause: str = ""
    unlock: bool = False


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
        PermissionDenied: If the label is protected and the move does not unlock it.
        UserError: If the name cannot be a label's (only digits, ``latest``, odd characters).
        NotFoundError: If there is no such version.
    """
    _check_name(move.label)
    artifact = await lock_artifact(session, ref)
    version = await _live_version(session, artifact, move.to)
    label = await session.get(LabelRow, (artifact.id, move.label), populate_existing=True)
    before = None if label is None else label.number
    if move.expected != ANY and move.expected != before:
        raise ConflictError(
            f"the label {move.label!r} of {ref.kind} {ref.name!r} is "
            f"{_place(before)}, not {_place(move.expected)} as expected; it was not moved.",
            remedy="Read it again and decide anew.",
        )
    if label is not None and label.protected and not move.unlock:
        raise PermissionDenied(
            f"the label {move.label!r} of {ref.kind} {ref.name!r} is protected.",
            remedy="Promote a tested proposal, or let an admin move it.",
        )
    if label is None:
        label = LabelRow(
            artifact_id=artifact.id,
            name=move.label,
            project_id=ref.project_id,
            version_id=version.id,
            number=version.number,
            protected=move.label in _PROTECTED,
            # A label made anew goes on counting where the one before ended, so no ETag comes back.
            epoch=1 + await _moves_so_far(session, artifact, move.label),
        )
        session.add(label)
    else:
        label.version_id = version.id
        label.number = version.number
        label.epoch += 1
        label.moved_at = await _now(session)
    await _record(session, ref, artifact, (move.label, before, version.number, move.cause), by)
    return label


async def delete_label(
    session: AsyncSession, ref: ArtifactRef, label: str, by: Author, *, unlock: bool = False
) -> None:
    """Removes a label; the version it pointed to stays.

    Raises:
        NotFoundError: If there is no such label.
        PermissionDenied: If it is protected and ``unlock`` is not given.
    """
    artifact = await lock_artifact(session, ref)
    row = await _label(session, ref, artifact, label)
    if row.protected and not unlock:
        raise PermissionDenied(f"the label {label!r} of {ref.kind} {ref.name!r} is protected.")
    before = row.number
    await session.delete(row)
    await session.flush()
    await _record(session, ref, artifact, (label, before, None, "deleted"), by)


async def protect_label(
    session: AsyncSession, ref: ArtifactRef, label: str, by: Author, *, protected: bool
) -> None:
    """Protects a label, or ends its protection; audited."""
    artifact = await lock_artifact(session, ref)
    row = await _label(session, ref, artifact, label)
    row.protected = protected
    await session.flush()
    details: dict[str, JsonValue] = {"label": label, "protected": protected}
    await _audit(session, ref, "label.protect", details, by)


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
    artifact = await lock_artifact(session, ref)
    version = await _live_version(session, artifact, number)
    labels = await session.scalars(select(LabelRow.name).where(LabelRow.version_id == version.id))
    await _refuse_in_use(session, [version.id], list(labels), f"version {number} of {ref.name!r}")
    version.deleted_at = await _now(session)
    await session.flush()
    await touch_artifact(session, artifact.id)
    await _audit(session, ref, "version.delete", {"number": number}, by)


async def restore_version(session: AsyncSession, ref: ArtifactRef, number: int, by: Author) -> None:
    """Brings a deleted version back, under its old number.

    Raises:
        NotFoundError: If there never was one.
    """
    artifact = await lock_artifact(session, ref)
    version = await _any_version(session, artifact, number)
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
    await _audit(session, ref, "artifact.delete", {"versions": len(ids)}, by)
    return len(ids)


async def restore_artifact(session: AsyncSession, ref: ArtifactRef, by: Author) -> None:
    """Brings a deleted artifact back, with its versions as they were."""
    artifact = await read_artifact(session, ref, deleted=True)
    artifact.deleted_at = None
    artifact.revision += 1
    await session.flush()
    await _audit(session, ref, "artifact.restore", None, by)


def _check_name(label: str) -> None:
    if label.isdecimal():
        raise UserError(
            f"{label!r} cannot be a label: labels of digits alone would be taken for versions.",
            remedy=f"Name it 'v{label}', for example.",
        )
    if label in _RESERVED or not _NAME.fullmatch(label):
        raise UserError(
            f"{label!r} cannot be a label.",
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
    row = await session.get(LabelRow, (artifact.id, label), populate_existing=True)
    if row is None:
        raise NotFoundError(f"{ref.kind} {ref.name!r} has no label {label!r}.")
    return row


async def _any_version(session: AsyncSession, artifact: ArtifactRow, number: int) -> VersionRow:
    row = await session.scalar(
        select(VersionRow)
        .where(VersionRow.artifact_id == artifact.id, VersionRow.number == number)
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


async def _now(session: AsyncSession) -> datetime:
    now: datetime = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    return now


async def _record(
    session: AsyncSession,
    ref: ArtifactRef,
    artifact: ArtifactRow,
    change: tuple[str, int | None, int | None, str],
    by: Author,
) -> None:
    label, before, after, cause = change
    session.add(
        LabelEventRow(
            project_id=ref.project_id,
            artifact_id=artifact.id,
            label=label,
            from_number=before,
            to_number=after,
            actor_kind=by.kind,
            actor=by.name,
            cause=cause,
        )
    )
    await session.flush()
    details: dict[str, JsonValue] = {"label": label, "from": before, "to": after, "cause": cause}
    await _audit(session, ref, "label.move", details, by)


async def _audit(
    session: AsyncSession, ref: ArtifactRef, action: str, details: JsonValue, by: Author
) -> None:
    entry = AuditEntry(action=action, subject=f"{ref.kind}/{ref.name}", details=details)
    await append_audit(session, ref.project_id, entry, by)
