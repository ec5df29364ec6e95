"""Reading: what there is of any kind, what a reference means, and what changed between two.

Kinds differ in where their parts are kept: agents and task sets have stores of their own, and their
contents are put together here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry.diffs import Diff, diff_contents
from instar.registry.kinds import list_kinds, open_kind
from instar.registry.kinds.agent import agent_content
from instar.store.agents import AGENT, load_candidate_version
from instar.store.artifacts import (
    ArtifactFilter,
    ArtifactRef,
    Resolved,
    list_artifacts,
    list_versions,
    read_content,
    resolve,
)
from instar.store.catalogue import labels_of_many
from instar.store.labels import list_label_events, list_labels
from instar.store.tables import ArtifactRow, LabelEventRow, LabelRow, VersionRow
from instar.store.task_sets import TASK_SET, read_bindings, read_open
from instar.store.versions import numbers_of_parents
from instar_core.base import JsonValue, content_hash
from instar_core.errors import NotFoundError
from instar_core.kinds import Kind, did_you_mean

__all__ = [
    "Listing",
    "Read",
    "artifact_etag",
    "diff",
    "find_label",
    "known_kind",
    "label_events_of",
    "labels_of_artifact",
    "list_",
    "list_versions_of",
    "naming_kinds",
    "read",
    "read_shown",
    "resolve_known",
]


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


@contextmanager
def naming_kinds(kind: str) -> Iterator[None]:
    """Where nothing is found and not even the kind exists, says so and names the nearest kinds."""
    try:
        yield
    except NotFoundError:
        open_kind(kind)
        raise


async def resolve_known(
    session: AsyncSession, ref: ArtifactRef, at: str | int = "latest"
) -> Resolved:
    """What a reference means now; where its kind does not even exist, the nearest kinds are named.

    Raises:
        NotFoundError: If there is no such kind, artifact, version or label.
    """
    with naming_kinds(ref.kind):
        return await resolve(session, ref, at)


async def read(session: AsyncSession, ref: ArtifactRef, at: str | int = "latest") -> Read:
    """What a version number, a label or ``latest`` means now, with what a reader may see of it.

    Raises:
        NotFoundError: If there is no such kind, artifact, version or label; names the nearest.
    """
    found = await resolve_known(session, ref, at)
    content = await read_shown(session, ref, found.version)
    return Read(found, content, await numbers_of_parents(session, found.version))


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


async def list_versions_of(
    session: AsyncSession, ref: ArtifactRef, *, limit: int = 50, before: int | None = None
) -> list[VersionRow]:
    """Versions of an artifact, highest number first, from below ``before`` on.

    Raises:
        NotFoundError: If there is no such kind or artifact; names the nearest.
    """
    with naming_kinds(ref.kind):
        return await list_versions(session, ref, limit=limit, before=before)


async def diff(session: AsyncSession, ref: ArtifactRef, old: str | int, new: str | int) -> Diff:
    """What changed between two versions, in the form of the kind; nothing sealed is compared.

    Raises:
        NotFoundError: If there is no such artifact or version; names the nearest.
    """
    kind = known_kind(ref.kind)
    left = await resolve_known(session, ref, old)
    right = await resolve_known(session, ref, new)
    return diff_contents(
        await _compared(session, ref, left.version),
        await _compared(session, ref, right.version),
        None if kind is None else kind.form,
    )


async def labels_of_artifact(session: AsyncSession, ref: ArtifactRef) -> list[LabelRow]:
    """The labels of an artifact, by name.

    Raises:
        NotFoundError: If there is no such kind or artifact; names the nearest.
    """
    with naming_kinds(ref.kind):
        return await list_labels(session, ref)


async def label_events_of(
    session: AsyncSession, ref: ArtifactRef, label: str
) -> list[LabelEventRow]:
    """The moves of a label, oldest first; also of one that was removed.

    Raises:
        NotFoundError: If there is no such kind or artifact, or it never had such a label.
    """
    with naming_kinds(ref.kind):
        events = await list_label_events(session, ref, label)
    if not events:
        await find_label(session, ref, label)
    return events


async def find_label(session: AsyncSession, ref: ArtifactRef, label: str) -> LabelRow:
    """A label by name.

    Raises:
        NotFoundError: If there is no such kind, artifact or label; names the nearest.
    """
    rows = {row.name: row for row in await labels_of_artifact(session, ref)}
    if label not in rows:
        meant = did_you_mean(label, rows) if rows else ""
        guess = f" {meant}" if meant.startswith("Did") else ""
        raise NotFoundError(
            f"There is no label {label[:80]!r} on {ref.kind} {ref.name!r}.",
            remedy=f"Its labels: {', '.join(rows) or 'none'}.{guess}",
        )
    return rows[label]


def artifact_etag(artifact: ArtifactRow, labels: Sequence[LabelRow]) -> str:
    """An ETag that changes with anything that is shown of an artifact."""
    seen: list[JsonValue] = [artifact.id, artifact.revision, artifact.last_version]
    seen.extend([label.name, label.epoch] for label in labels)
    return content_hash(seen)[:32]


async def _compared(session: AsyncSession, ref: ArtifactRef, version: VersionRow) -> JsonValue:
    """What is compared of a version: agents by what they run, component by component."""
    if ref.kind != AGENT:
        return await read_shown(session, ref, version)
    candidate = await load_candidate_version(session, version.id)
    dumped: JsonValue = candidate.model_dump(mode="json", include={"components", "harness"})
    return dumped
