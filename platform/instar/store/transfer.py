"""Transfer: all of a project's registry as rows, in and out, with the foreign facts kept apart.

What was true elsewhere (who saved a version, when, as what) is no event of this project: an
imported version was saved here by whoever imported it, and carries those facts in its evidence; an
imported move of a label carries them in its own column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from sqlalchemy import ColumnElement, Table, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import ArtifactRef, lock_artifact
from instar.store.audit import Author
from instar.store.labels import MOVE_ROLES
from instar.store.tables import (
    ArtifactRow,
    BlobRow,
    LabelEventRow,
    LabelRow,
    RolloutRow,
    SealedTaskRow,
    SecretRow,
    TaskRow,
    VersionParentRow,
    VersionPartRow,
    VersionRolloutRow,
    VersionRow,
)
from instar_core.base import JsonValue, content_hash
from instar_core.errors import ConflictError, StoreError

__all__ = [
    "ImportedMove",
    "PlacedLabel",
    "RegistryRows",
    "archive_imported",
    "fill_sealed",
    "list_rollout_ids",
    "place_labels",
    "read_blob",
    "read_registry",
    "read_secret_names",
    "read_task_rows",
    "save_task_rows",
    "set_owner_kind",
]


@dataclass(slots=True)
class RegistryRows:
    """All artifacts of a project with what hangs on them, by id, each list in a fixed order."""

    artifacts: list[ArtifactRow] = field(default_factory=list)
    versions: dict[str, list[VersionRow]] = field(default_factory=lambda: defaultdict(list))
    parents: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    parts: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    rollouts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    labels: dict[str, list[LabelRow]] = field(default_factory=lambda: defaultdict(list))
    moves: dict[str, list[LabelEventRow]] = field(default_factory=lambda: defaultdict(list))


class ImportedMove(NamedTuple):
    """A move of a label that took place elsewhere, and the facts of that place."""

    label: str
    from_number: int | None
    to_number: int | None
    cause: str
    elsewhere: JsonValue


class PlacedLabel(NamedTuple):
    """Where a label shall be, the least role that may move it, and where the plan saw it."""

    version_id: str
    number: int
    role: str
    was: int | None


async def read_registry(session: AsyncSession, project_id: str) -> RegistryRows:
    """Every artifact of the project, archived ones too. Use a snapshot for one moment of it."""
    rows = RegistryRows()
    rows.artifacts = list(
        await session.scalars(
            select(ArtifactRow)
            .where(ArtifactRow.project_id == project_id)
            .order_by(ArtifactRow.kind, ArtifactRow.name)
        )
    )
    # Sorted here and not by the database, whose order depends on its collation.
    rows.artifacts.sort(key=lambda row: (row.kind, row.name))
    versions = await session.scalars(
        select(VersionRow)
        .where(VersionRow.project_id == project_id)
        .order_by(VersionRow.artifact_id, VersionRow.number)
    )
    for version in versions:
        rows.versions[version.artifact_id].append(version)
    for parent in await session.scalars(
        select(VersionParentRow).where(VersionParentRow.project_id == project_id)
    ):
        rows.parents[parent.version_id].append(parent.parent_id)
    for part in await session.scalars(
        select(VersionPartRow)
        .where(VersionPartRow.project_id == project_id)
        .order_by(VersionPartRow.version_id, VersionPartRow.ordinal)
    ):
        rows.parts[part.version_id].append((part.name, part.part_id))
    for rollout in await session.scalars(
        select(VersionRolloutRow)
        .where(VersionRolloutRow.project_id == project_id)
        .order_by(VersionRolloutRow.version_id, VersionRolloutRow.rollout_id)
    ):
        rows.rollouts[rollout.version_id].append(rollout.rollout_id)
    await _read_labels(session, project_id, rows)
    return rows


async def _read_labels(session: AsyncSession, project_id: str, rows: RegistryRows) -> None:
    for label in await session.scalars(select(LabelRow).where(LabelRow.project_id == project_id)):
        rows.labels[label.artifact_id].append(label)
    for labels in rows.labels.values():
        labels.sort(key=lambda label: label.name)
    for move in await session.scalars(
        select(LabelEventRow)
        .where(LabelEventRow.project_id == project_id)
        .order_by(LabelEventRow.artifact_id, LabelEventRow.created_at, LabelEventRow.id)
    ):
        rows.moves[move.artifact_id].append(move)


async def read_blob(session: AsyncSession, project_id: str, digest: str) -> bytes:
    """The bytes of a content, checked against their name.

    Raises:
        StoreError: If they are missing or are not those that were saved.
    """
    content = await session.scalar(
        select(BlobRow.content).where(BlobRow.project_id == project_id, BlobRow.digest == digest)
    )
    if content is None or content_hash(content) != digest:
        raise StoreError(
            f"the content {digest} is damaged or missing.",
            remedy="Restore the database from a backup.",
        )
    return content


async def read_task_rows(session: AsyncSession, version_id: str) -> list[TaskRow]:
    """The tasks of a task-set version in their order; sealed ones without content."""
    rows = await session.scalars(
        select(TaskRow)
        .where(TaskRow.version_id == version_id)
        .order_by(TaskRow.ordinal, TaskRow.task_id)
    )
    return list(rows)


async def save_task_rows(
    session: AsyncSession, rows: Sequence[Mapping[str, Any]], sealed: Sequence[Mapping[str, Any]]
) -> None:
    """Writes the tasks of a new task-set version, and the sealed contents that came along."""
    if rows:
        await session.execute(insert(cast("Table", TaskRow.__table__)), [dict(one) for one in rows])
    if sealed:
        await session.execute(
            insert(cast("Table", SealedTaskRow.__table__)), [dict(one) for one in sealed]
        )


async def fill_sealed(session: AsyncSession, sealed: Sequence[Mapping[str, Any]]) -> int:
    """Adds sealed contents that an earlier import did not bring; returns how many were missing."""
    added = 0
    for one in sealed:
        statement = upsert(cast("Table", SealedTaskRow.__table__)).values(**one)
        # Nothing is asked back, since this role may not read it; how many rows went in is told.
        done = await session.execute(
            statement.on_conflict_do_nothing(), execution_options={"preserve_rowcount": True}
        )
        added += cast("Any", done).rowcount
    return added


async def place_labels(
    session: AsyncSession,
    ref: ArtifactRef,
    moves: Sequence[ImportedMove],
    now: Mapping[str, PlacedLabel],
    by: Author,
) -> None:
    """Puts labels where they were elsewhere, with the moves that led there.

    Args:
        session: A project transaction; the artifact is locked until it ends.
        ref: The artifact.
        moves: What happened elsewhere, oldest first; only what is new here.
        now: Label → where it shall be, for labels that exist.
        by: Who imports.

    Raises:
        ConflictError: If one of them is not where the plan saw it: a promotion moved it meanwhile.
    """
    artifact = await lock_artifact(session, ref)
    for move in moves:
        row = LabelEventRow(
            project_id=ref.project_id,
            artifact_id=artifact.id,
            label=move.label,
            from_number=move.from_number,
            to_number=move.to_number,
            actor_kind=by.kind,
            actor=by.name,
            cause=move.cause,
            imported=move.elsewhere,
        )
        session.add(row)
        # One by one: their moments and ids keep the order in which they happened.
        await session.flush()
    for name, placed in now.items():
        label = await session.get(LabelRow, (artifact.id, name), populate_existing=True)
        if placed.was != (None if label is None else label.number):
            raise ConflictError(
                f"the label {name!r} of {ref.kind} {ref.name!r} was moved while this import was "
                "planned; nothing was imported.",
                remedy="Import it again.",
            )
        role = placed.role
        if label is None:
            label = LabelRow(artifact_id=artifact.id, name=name, project_id=ref.project_id)
            label.epoch = await _moves_of(session, artifact.id, name)
            session.add(label)
        else:
            label.epoch += 1
            label.moved_at = cast("Any", func.clock_timestamp())
            # Who may move it was settled here; an import may protect it more, never less.
            role = max(role, label.move_role, key=MOVE_ROLES.index)
        label.version_id, label.number = placed.version_id, placed.number
        label.move_role, label.protected = role, role != "operator"
    artifact.revision += 1
    await session.flush()


async def _moves_of(session: AsyncSession, artifact_id: str, label: str) -> int:
    count = await session.scalar(
        select(func.count())
        .select_from(LabelEventRow)
        .where(LabelEventRow.artifact_id == artifact_id, LabelEventRow.label == label)
    )
    return max(int(count or 0), 1)


async def archive_imported(
    session: AsyncSession, versions: Sequence[str], artifacts: Iterable[ArtifactRef]
) -> None:
    """Archives what was archived elsewhere; whatever pins it came in the same state."""
    now = func.clock_timestamp()
    if versions:
        await session.execute(
            update(VersionRow).where(VersionRow.id.in_(versions)).values(deleted_at=now)
        )
    for ref in artifacts:
        await session.execute(update(ArtifactRow).where(*_is(ref)).values(deleted_at=now))


async def set_owner_kind(session: AsyncSession, ref: ArtifactRef, owner: str) -> None:
    """Says whose an imported artifact is: a job's own, where a job made it elsewhere."""
    await session.execute(update(ArtifactRow).where(*_is(ref)).values(owner_kind=owner))


def _is(ref: ArtifactRef) -> tuple[ColumnElement[bool], ...]:
    return (
        ArtifactRow.project_id == ref.project_id,
        ArtifactRow.kind == ref.kind,
        ArtifactRow.name == ref.name,
    )


async def read_secret_names(session: AsyncSession, project_id: str) -> dict[str, str]:
    """Id → name of the project's secrets."""
    rows = await session.execute(
        select(SecretRow.id, SecretRow.name).where(
            SecretRow.project_id == project_id, SecretRow.deleted_at.is_(None)
        )
    )
    return {str(key): str(name) for key, name in rows}


async def list_rollout_ids(
    session: AsyncSession, project_id: str
) -> AsyncIterator[tuple[str, str | None]]:
    """Id and run of every rollout that is not of a sealed test, in the order of ids."""
    rows = await session.execute(
        select(RolloutRow.id, RolloutRow.run_id)
        .where(RolloutRow.project_id == project_id, RolloutRow.sealed_test_id.is_(None))
        .order_by(RolloutRow.id)
    )
    for key, run in rows:
        yield str(key), None if run is None else str(run)
