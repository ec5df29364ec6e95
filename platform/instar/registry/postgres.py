"""The registry in Postgres: the verbs, each in a transaction of its own, as the core's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry import verbs
from instar.registry.components import components as components_of
from instar.registry.contract import project_contract
from instar.store.artifacts import ArtifactFilter, ArtifactRef, Resolved, describe_artifact
from instar.store.audit import Author
from instar.store.catalogue import labels_of_many
from instar.store.labels import LabelMove, list_label_events, list_labels
from instar.store.session import Database
from instar.store.tables import ArtifactRow, LabelRow
from instar.store.versions import numbers_of_parents
from instar_core.base import JsonValue
from instar_core.kinds import TrainableComponent
from instar_core.registry.contract import Contract
from instar_core.registry.places import changed_places
from instar_core.registry.protocol import (
    Actor,
    ArtifactState,
    Change,
    LabelEvent,
    LabelState,
    Listed,
    Name,
    Saved,
    VersionState,
)

__all__ = ["PostgresRegistry"]

ActorKind = Literal["person", "run", "system"]


class PostgresRegistry:
    """One project's registry. Each verb commits before it returns.

    Args:
        db: The database.
        project_id: The project.
        role: The role with which labels are moved.
    """

    def __init__(self, db: Database, project_id: str, *, role: str = "operator") -> None:
        self._db = db
        self._project = project_id
        self._role = role

    async def create(self, ref: Name, content: JsonValue, change: Change) -> Saved:
        """Saves the first version of a new artifact."""
        async with self._db.transaction(self._project) as session:
            saved = await verbs.create(session, self._ref(ref), content, _note(change))
            return await self._saved(session, ref, saved)

    async def read(self, ref: Name, at: str | int = "latest") -> VersionState:
        """What a reference means now."""
        async with self._db.transaction(self._project) as session:
            found, content, parents = await verbs.read(session, self._ref(ref), at)
        return _version_state(found, content, parents)

    async def list(
        self, *, kind: str | None = None, q: str = "", limit: int = 50, after: str | None = None
    ) -> Listed:
        """Artifacts that are not archived, newest first."""
        where = ArtifactFilter(kind=kind, q=q or None)
        async with self._db.transaction(self._project) as session:
            page = await verbs.list_(session, self._project, where, limit=limit, cursor=after)
        return Listed(tuple(_state(row, labels) for row, labels in page.items), page.next_cursor)

    async def update(self, ref: Name, content: JsonValue, change: Change) -> Saved:
        """Saves a content as the next version."""
        async with self._db.transaction(self._project) as session:
            saved = await verbs.update(session, self._ref(ref), content, _note(change))
            return await self._saved(session, ref, saved)

    async def describe(
        self,
        ref: Name,
        change: Change,
        *,
        description: str | None = None,
        tags: tuple[str, ...] | None = None,
    ) -> ArtifactState:
        """Edits description or tags."""
        async with self._db.transaction(self._project) as session:
            row = await describe_artifact(
                session, self._ref(ref), _author(change), description=description, tags=tags
            )
            return _state(row, (await labels_of_many(session, [row.id]))[row.id])

    async def diff(self, ref: Name, old: str | int, new: str | int) -> tuple[str, ...]:
        """The places that differ between two versions."""
        left, right = await self.read(ref, old), await self.read(ref, new)
        return changed_places(left.content, right.content)

    async def label(
        self,
        ref: Name,
        label: str,
        to: int,
        *,
        expected: int | Literal["any"] | None,
        change: Change,
    ) -> LabelState:
        """Points a label at a version by compare-and-swap."""
        move = LabelMove(label, to, expected, change.reason, role=self._role)
        async with self._db.transaction(self._project) as session:
            row = await verbs.move_label(session, self._ref(ref), move, _author(change))
            return _label_state(row)

    async def labels(self, ref: Name) -> dict[str, LabelState]:
        """The labels of an artifact, by name."""
        async with self._db.transaction(self._project) as session:
            rows = await list_labels(session, self._ref(ref))
            return {row.name: _label_state(row) for row in rows}

    async def history(self, ref: Name, label: str) -> tuple[LabelEvent, ...]:
        """The moves of a label, oldest first."""
        async with self._db.transaction(self._project) as session:
            rows = await list_label_events(session, self._ref(ref), label)
            return tuple(
                LabelEvent(
                    label=row.label,
                    before=row.from_number,
                    after=row.to_number,
                    by=Actor(kind=cast("ActorKind", row.actor_kind), name=row.actor),
                    cause=row.cause,
                )
                for row in rows
            )

    async def roll_back(self, ref: Name, label: str, change: Change) -> LabelState:
        """Moves a label to the version that it named before its last move."""
        async with self._db.transaction(self._project) as session:
            row = await verbs.roll_back(
                session,
                self._ref(ref),
                label,
                _author(change),
                role=self._role,
                cause=change.reason,
            )
            return _label_state(row)

    async def archive(self, ref: Name, number: int | Literal["all"], change: Change) -> None:
        """Hides one version, or the artifact with all its versions."""
        async with self._db.transaction(self._project) as session:
            await verbs.archive(session, self._ref(ref), number, _author(change))

    async def restore(self, ref: Name, number: int | Literal["all"], change: Change) -> None:
        """Brings back what was archived."""
        async with self._db.transaction(self._project) as session:
            await verbs.restore(session, self._ref(ref), number, _author(change))

    async def copy(self, ref: Name, to: str, change: Change, *, at: str | int = "latest") -> Saved:
        """Saves a version's content as the first version of a new artifact."""
        async with self._db.transaction(self._project) as session:
            saved = await verbs.copy(session, self._ref(ref), to, _note(change), at=at)
            return await self._saved(session, Name(ref.kind, to), saved)

    async def contract(self, *, kind: str | None = None, budget_tokens: int = 2_000) -> Contract:
        """The one text that lists what there is."""
        async with self._db.transaction(self._project) as session:
            return await project_contract(session, self._project, kind, budget_tokens=budget_tokens)

    async def components(
        self, ref: Name, at: str | int = "latest"
    ) -> tuple[TrainableComponent, ...]:
        """The parts of a version that may be trained."""
        async with self._db.transaction(self._project) as session:
            return await components_of(session, self._ref(ref), at)

    def _ref(self, ref: Name) -> ArtifactRef:
        return ArtifactRef(self._project, ref.kind, ref.name)

    async def _saved(self, session: AsyncSession, ref: Name, saved: verbs.Saved) -> Saved:
        found = await verbs.resolve_known(session, self._ref(ref), saved.version.number)
        parents = await numbers_of_parents(session, saved.version)
        return Saved(_version_state(found, saved.content, parents), saved.notices)


def _author(change: Change) -> Author:
    return Author(change.by.kind, change.by.name)


def _note(change: Change) -> verbs.Note:
    return verbs.Note(
        _author(change),
        change.reason,
        change.evidence,
        change.parents,
        change.rollouts,
        change.description or None,
        change.allow_similar,
    )


def _version_state(found: Resolved, content: JsonValue, parents: Sequence[int]) -> VersionState:
    version = found.version
    return VersionState(
        kind=found.artifact.kind,
        name=found.artifact.name,
        number=version.number,
        digest=version.blob_digest,
        by=Actor(kind=cast("ActorKind", version.author_kind), name=version.author),
        reason=version.reason,
        evidence=version.evidence,
        parents=tuple(parents),
        label=found.label,
        etag=found.etag,
        content=content,
    )


def _state(row: ArtifactRow, labels: Sequence[LabelRow]) -> ArtifactState:
    return ArtifactState(
        kind=row.kind,
        name=row.name,
        description=row.description,
        tags=tuple(row.tags),
        last_version=row.last_version,
        labels={label.name: label.number for label in labels},
        etag=verbs.artifact_etag(row, labels),
    )


def _label_state(row: LabelRow) -> LabelState:
    return LabelState(
        label=row.name, number=row.number, protected=row.protected, etag=str(row.epoch)
    )
