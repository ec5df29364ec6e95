"""Resolving: what a reference to an artifact means now, in one statement.

A reference is a version number, a label, or ``latest``. Labels are read from the database each
time and never cached, so that a move holds from the next read on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import RowMapping, TextualSelect, column, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.names import did_you_mean
from instar.store.saving import VERSION_COLUMNS, ArtifactRef, version_row
from instar.store.tables import ArtifactRow, LabelRow, VersionRow
from instar_core.base import JsonValue, content_hash, short
from instar_core.errors import NotFoundError

__all__ = ["Resolved", "read_artifact", "resolve"]

_ARTIFACT_COLUMNS = (
    "id",
    "kind",
    "name",
    "skeleton",
    "owner_kind",
    "job_access",
    "description",
    "tags",
    "last_version",
    "revision",
    "created_at",
)
_NAMES = (
    *(f"a_{name}" for name in _ARTIFACT_COLUMNS),
    *(f"v_{name}" for name in VERSION_COLUMNS),
    "label",
    "epoch",
)
_COLUMNS = ", ".join(
    [f"a.{name} as a_{name}" for name in _ARTIFACT_COLUMNS]
    + [f"v.{name} as v_{name}" for name in VERSION_COLUMNS]
)
_WHERE = (
    " where a.project_id = cast(:project as uuid) and a.kind = :kind and a.name = :name "
    "and a.deleted_at is null and v.deleted_at is null"
)


def _statement(sql: str) -> TextualSelect:
    """A statement whose columns are declared, so that each call need not find them out anew."""
    return text(sql).columns(*(column(name) for name in _NAMES))


_BY_LABEL = _statement(
    f"select {_COLUMNS}, l.name as label, l.epoch from instar.artifact a "
    "join instar.label l on l.artifact_id = a.id and l.name = :at "
    "join instar.version v on v.id = l.version_id" + _WHERE
)
_BY_NUMBER = _statement(
    f"select {_COLUMNS}, null as label, null as epoch from instar.artifact a "
    "join instar.version v on v.artifact_id = a.id and v.number = :at" + _WHERE
)
_LATEST = _statement(
    f"select {_COLUMNS}, null as label, null as epoch from instar.artifact a "
    "join instar.version v on v.artifact_id = a.id" + _WHERE + " order by v.number desc limit 1"
)
_LARGEST = 2**31 - 1
_DIGITS = len(str(_LARGEST))
_KNOWN_NAMES = 5_000


class Resolved(NamedTuple):
    """What a reference means at this moment, and an ETag that changes with anything it tells."""

    artifact: ArtifactRow
    version: VersionRow
    label: str | None
    etag: str


async def resolve(session: AsyncSession, ref: ArtifactRef, at: str | int = "latest") -> Resolved:
    """What a reference means now: one statement, read from the database each time.

    Args:
        session: A project transaction.
        ref: The artifact.
        at: A version number (an int, or digits), a label, or ``latest`` for the highest number.

    Returns:
        Artifact and version as they are now. They belong to no session: changing them changes
        nothing that is stored.

    Raises:
        NotFoundError: If there is no such artifact, version or label, or it was archived; names
            the nearest that there are.
    """
    if session.new or session.dirty or session.deleted:
        await session.flush()
    values: dict[str, Any] = {"project": ref.project_id, "kind": ref.kind, "name": ref.name}
    statement = _BY_LABEL
    if isinstance(at, int) or at.isdecimal():
        # A number that no column could hold is no version either.
        statement, values["at"] = _BY_NUMBER, _number(at)
    elif at in ("", "latest"):
        statement = _LATEST
    else:
        values["at"] = at
    row: RowMapping | None = None
    if not any("\x00" in str(value) for value in values.values()):
        row = (await session.execute(statement, values)).mappings().one_or_none()
    if row is None:
        raise await _missing(session, ref, at)
    artifact = ArtifactRow(
        project_id=ref.project_id,
        deleted_at=None,
        **{name: row[f"a_{name}"] for name in _ARTIFACT_COLUMNS[1:]},
        id=str(row["a_id"]),
    )
    version = version_row(ref.project_id, row, "v_")
    seen: list[JsonValue] = [artifact.id, artifact.revision, version.id]
    seen.append(None if row["label"] is None else [row["label"], row["epoch"]])
    return Resolved(artifact, version, row["label"], content_hash(seen)[:32])


async def read_artifact(
    session: AsyncSession, ref: ArtifactRef, *, deleted: bool = False
) -> ArtifactRow:
    """The artifact as it is now.

    Raises:
        NotFoundError: If the project has none of that kind and name, or it was archived (unless
            ``deleted``); names the nearest that there are.
    """
    row = None
    if "\x00" not in ref.kind + ref.name:
        row = await session.scalar(
            select(ArtifactRow)
            .where(
                ArtifactRow.project_id == ref.project_id,
                ArtifactRow.kind == ref.kind,
                ArtifactRow.name == ref.name,
            )
            # A save goes past the session's memory of the row.
            .execution_options(populate_existing=True)
        )
    if row is None:
        raise await _no_such_artifact(session, ref)
    if row.deleted_at is not None and not deleted:
        raise NotFoundError(
            f"there is no {ref.kind} named {ref.name!r} any more: it was deleted.",
            remedy="Restore it, or use another.",
        )
    return row


async def _missing(session: AsyncSession, ref: ArtifactRef, at: str | int) -> NotFoundError:
    """Why nothing was found; only a miss pays for finding out."""
    try:
        artifact = await read_artifact(session, ref)
    except NotFoundError as error:
        return error
    if isinstance(at, int) or at.isdecimal() or at in ("", "latest"):
        live = select(VersionRow.number).where(
            VersionRow.artifact_id == artifact.id, VersionRow.deleted_at.is_(None)
        )
        newest = await session.scalar(live.order_by(VersionRow.number.desc()).limit(1))
        there = "It has none now." if newest is None else f"Its newest version is {newest}."
        if isinstance(at, int) or at.isdecimal():
            wanted = _number(at)
            below = live.where(VersionRow.number < wanted).order_by(VersionRow.number.desc())
            above = live.where(VersionRow.number > wanted).order_by(VersionRow.number)
            near = [await session.scalar(side.limit(1)) for side in (below, above)]
            named = " and ".join(str(number) for number in near if number is not None)
            there = f"The nearest: {named}." if named else there
        return NotFoundError(
            f"there is no version {short(str(at), 40)} of {ref.kind} {ref.name!r}; the newest was "
            f"{artifact.last_version}.",
            remedy=there,
        )
    return await no_such_label(session, ref, artifact.id, at)


def _number(at: str | int) -> int:
    """A version number; one with more digits than any has is read no further (Python refuses)."""
    digits = at.lstrip("0") or "0" if isinstance(at, str) else at
    if isinstance(digits, str) and len(digits) > _DIGITS:
        return _LARGEST
    return min(int(digits), _LARGEST)


async def no_such_label(
    session: AsyncSession, ref: ArtifactRef, artifact_id: str, label: str
) -> NotFoundError:
    """The error for a label that an artifact does not have, or whose version was deleted."""
    rows = await session.scalars(
        select(LabelRow.name).where(LabelRow.artifact_id == artifact_id).order_by(LabelRow.name)
    )
    names = list(rows)
    meant = did_you_mean(label, names) if names else ""
    guess = f" {meant}" if meant.startswith("Did") else ""
    return NotFoundError(
        f"{ref.kind} {ref.name!r} has no label {short(label, 80)!r}.",
        remedy=f"Its labels: {', '.join(names) or 'none'}; version numbers and 'latest' work "
        f"too.{guess}",
    )


async def _no_such_artifact(session: AsyncSession, ref: ArtifactRef) -> NotFoundError:
    base = (ArtifactRow.project_id == ref.project_id, ArtifactRow.deleted_at.is_(None))
    names = list(
        await session.scalars(
            select(ArtifactRow.name)
            .where(*base, ArtifactRow.kind == ref.kind)
            .order_by(ArtifactRow.created_at.desc())
            .limit(_KNOWN_NAMES)
        )
        if "\x00" not in ref.kind
        else ()
    )
    remedy = did_you_mean(ref.name, names)
    if not names:
        kinds = await session.scalars(select(ArtifactRow.kind).where(*base).distinct())
        meant = did_you_mean(ref.kind, sorted(kinds))
        remedy = f"This project has no artifact of kind {short(ref.kind, 80)!r}. {meant}".strip()
    return NotFoundError(
        f"there is no {short(ref.kind, 80)} named {short(ref.name, 80)!r}.", remedy=remedy
    )
