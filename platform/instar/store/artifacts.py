"""Artifacts: named, versioned things. A version is a numbered event that points to content.

Numbers are consecutive because each save takes its number under the artifact's row lock. Content is
an immutable blob named by the sha256 of its bytes: saved twice, it is two versions and one blob.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.pages import Page, read_page
from instar.store.tables import (
    ArtifactRow,
    BlobRow,
    LabelRow,
    VersionParentRow,
    VersionPartRow,
    VersionRow,
)
from instar_core.base import JsonValue, canonical_json, content_hash, new_id
from instar_core.errors import ConflictError, NotFoundError, StoreError, UserError

__all__ = [
    "ArtifactRef",
    "Draft",
    "Resolved",
    "create_version",
    "decode_content",
    "describe_artifact",
    "encode_content",
    "list_artifacts",
    "list_versions",
    "put_blobs",
    "read_artifact",
    "read_content",
    "read_parents",
    "read_version",
    "resolve",
]

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
_SEPARATORS = frozenset("@\x00\n\r\t ")


class ArtifactRef(NamedTuple):
    """Which artifact: all three fields, always, so that no query crosses projects or kinds."""

    project_id: str
    kind: str
    name: str


class Resolved(NamedTuple):
    """What a reference means at this moment, and an ETag that changes with anything it tells."""

    artifact: ArtifactRow
    version: VersionRow
    label: str | None
    etag: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A version about to be saved.

    Attributes:
        content: The bytes; see :func:`encode_content`.
        media_type: What the bytes are.
        author: The person or run that made it.
        reason: Why, in words.
        evidence: What speaks for it (ids of rollouts, scores), as JSON.
        parents: Ids of the versions it was made from.
        subject_digest: Digest of what the content describes, where that is not the content itself.
        parts: Names and ids of the versions it pins, in order.
    """

    content: bytes
    media_type: str
    author: Author
    reason: str = ""
    evidence: JsonValue = None
    parents: Sequence[str] = ()
    subject_digest: str = ""
    parts: Sequence[tuple[str, str]] = field(default_factory=tuple)

    @property
    def digest(self) -> str:
        """The sha256 that names the content's blob."""
        return content_hash(self.content)


def encode_content(value: JsonValue) -> tuple[bytes, str]:
    """Bytes and media type of a content: text as UTF-8 just as it is, anything else canonical JSON.

    Raises:
        UserError: If the text cannot be written as UTF-8 (a lone surrogate) or holds NaN.
    """
    try:
        if isinstance(value, str):
            return value.encode("utf-8"), TEXT
        return canonical_json(value), JSON
    except ValueError as error:
        raise UserError(f"this content cannot be stored: {error}.") from error


def decode_content(content: bytes, media_type: str) -> JsonValue:
    """The value that :func:`encode_content` was given."""
    text = content.decode("utf-8")
    value: JsonValue = text if media_type == TEXT else json.loads(text)
    return value


async def put_blobs(session: AsyncSession, project_id: str, contents: Iterable[bytes]) -> None:
    """Stores contents under their digests; those already there are left as they are.

    They are written in the order of their digests, so that two writers never wait for each other in
    a circle.
    """
    by_digest = {content_hash(content): content for content in contents}
    for digest in sorted(by_digest):
        content = by_digest[digest]
        await session.execute(
            insert(BlobRow)
            .values(project_id=project_id, digest=digest, size=len(content), content=content)
            .on_conflict_do_nothing()
        )


async def create_version(
    session: AsyncSession, ref: ArtifactRef, draft: Draft, *, reuse: bool = False
) -> VersionRow:
    """Saves a version; the artifact is made with its first one.

    Args:
        session: A project transaction. Parallel saves of one artifact queue on its row.
        ref: The artifact.
        draft: What to save.
        reuse: Return the newest version of the same content, if there is one, instead of saving it
            again.

    Returns:
        The version, with the next consecutive number (or the one found).

    Raises:
        ConflictError: If the artifact was deleted.
        UserError: If its name cannot be one.
    """
    artifact = await _lock_artifact(session, ref)
    if reuse:
        found = await session.scalar(
            select(VersionRow)
            .where(
                VersionRow.artifact_id == artifact.id,
                VersionRow.blob_digest == draft.digest,
                VersionRow.media_type == draft.media_type,
                VersionRow.deleted_at.is_(None),
            )
            .order_by(VersionRow.number.desc())
            .limit(1)
        )
        if found is not None:
            return found
    await put_blobs(session, ref.project_id, [draft.content])
    artifact.last_version += 1
    row = VersionRow(
        id=new_id(),
        project_id=ref.project_id,
        artifact_id=artifact.id,
        number=artifact.last_version,
        blob_digest=draft.digest,
        media_type=draft.media_type,
        subject_digest=draft.subject_digest,
        author_kind=draft.author.kind,
        author=draft.author.name,
        reason=draft.reason,
        evidence=draft.evidence,
    )
    session.add(row)
    await session.flush()
    for parent in dict.fromkeys(draft.parents):
        session.add(
            VersionParentRow(version_id=row.id, parent_id=parent, project_id=ref.project_id)
        )
    for ordinal, (name, part) in enumerate(draft.parts):
        session.add(
            VersionPartRow(
                version_id=row.id,
                name=name,
                ordinal=ordinal,
                part_id=part,
                project_id=ref.project_id,
            )
        )
    await session.flush()
    return row


async def read_artifact(
    session: AsyncSession, ref: ArtifactRef, *, deleted: bool = False
) -> ArtifactRow:
    """The artifact.

    Raises:
        NotFoundError: If the project has none of that kind and name, or it was deleted (unless
            ``deleted``).
    """
    row = await session.scalar(
        select(ArtifactRow).where(
            ArtifactRow.project_id == ref.project_id,
            ArtifactRow.kind == ref.kind,
            ArtifactRow.name == ref.name,
        )
    )
    if row is None or (row.deleted_at is not None and not deleted):
        gone = "" if row is None else " any more: it was deleted"
        raise NotFoundError(f"there is no {ref.kind} named {ref.name!r}{gone}.")
    return row


async def resolve(session: AsyncSession, ref: ArtifactRef, at: str | int = "latest") -> Resolved:
    """What a reference means now. Read from the database each time: labels are never cached.

    Args:
        session: A project transaction.
        ref: The artifact.
        at: A version number (an int, or digits), a label, or ``latest`` for the highest number.

    Raises:
        NotFoundError: If there is no such artifact, version or label, or it was deleted; names the
            labels there are.
    """
    artifact = await read_artifact(session, ref)
    label: LabelRow | None = None
    query = select(VersionRow).where(
        VersionRow.artifact_id == artifact.id, VersionRow.deleted_at.is_(None)
    )
    if isinstance(at, int) or at.isdecimal():
        # A number that no column could hold is no version either.
        query = query.where(VersionRow.number == min(int(at), 2**31 - 1))
    elif at in ("", "latest"):
        query = query.order_by(VersionRow.number.desc()).limit(1)
    else:
        label = await session.get(LabelRow, (artifact.id, at), populate_existing=True)
        if label is None:
            raise await _no_such_label(session, ref, artifact, at)
        query = query.where(VersionRow.id == label.version_id)
    version = await session.scalar(query)
    if version is None:
        raise NotFoundError(
            f"there is no version {at} of {ref.kind} {ref.name!r}; the newest was "
            f"{artifact.last_version}."
        )
    seen: list[JsonValue] = [artifact.id, artifact.revision, version.id]
    seen.append(None if label is None else [label.name, label.epoch])
    return Resolved(
        artifact, version, None if label is None else label.name, content_hash(seen)[:32]
    )


async def read_version(session: AsyncSession, version_id: str) -> VersionRow:
    """The version of that id, deleted ones too.

    Raises:
        NotFoundError: If this project has none.
    """
    row = await session.get(VersionRow, version_id)
    if row is None:
        raise NotFoundError(f"there is no version {version_id!r} in this project.")
    return row


async def read_content(session: AsyncSession, version: VersionRow) -> JsonValue:
    """The content of a version, checked against its digest.

    Raises:
        StoreError: If the stored bytes are not those that were saved.
    """
    content = await session.scalar(
        select(BlobRow.content).where(
            BlobRow.project_id == version.project_id, BlobRow.digest == version.blob_digest
        )
    )
    if content is None or content_hash(content) != version.blob_digest:
        raise StoreError(
            f"the content {version.blob_digest} of version {version.id} is damaged or missing.",
            remedy="Restore the database from a backup.",
        )
    return decode_content(content, version.media_type)


async def read_parents(session: AsyncSession, version_id: str) -> list[str]:
    """Ids of the versions that a version was made from."""
    rows = await session.scalars(
        select(VersionParentRow.parent_id)
        .where(VersionParentRow.version_id == version_id)
        .order_by(VersionParentRow.parent_id)
    )
    return list(rows)


async def list_artifacts(
    session: AsyncSession,
    project_id: str,
    kind: str | None = None,
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[ArtifactRow]:
    """The project's artifacts (of one kind), newest first, without deleted ones."""
    query = select(ArtifactRow).where(
        ArtifactRow.project_id == project_id, ArtifactRow.deleted_at.is_(None)
    )
    if kind is not None:
        query = query.where(ArtifactRow.kind == kind)
    return await read_page(session, query, ArtifactRow, limit=limit, cursor=cursor)


async def list_versions(
    session: AsyncSession, ref: ArtifactRef, *, limit: int = 50, before: int | None = None
) -> list[VersionRow]:
    """Versions of an artifact, highest number first, from below ``before`` on."""
    artifact = await read_artifact(session, ref)
    query = select(VersionRow).where(
        VersionRow.artifact_id == artifact.id, VersionRow.deleted_at.is_(None)
    )
    if before is not None:
        query = query.where(VersionRow.number < before)
    rows = await session.scalars(query.order_by(VersionRow.number.desc()).limit(limit))
    return list(rows)


async def describe_artifact(
    session: AsyncSession,
    ref: ArtifactRef,
    by: Author,
    *,
    description: str | None = None,
    tags: Sequence[str] | None = None,
) -> ArtifactRow:
    """Changes description or tags: no new version, an audited edit, another ETag."""
    await read_artifact(session, ref)
    artifact = await _lock_artifact(session, ref)
    details: dict[str, JsonValue] = {}
    if description is not None:
        details["description"] = [artifact.description, description]
        artifact.description = description
    if tags is not None:
        details["tags"] = [list(artifact.tags), list(tags)]
        artifact.tags = list(tags)
    artifact.revision += 1
    await session.flush()
    entry = AuditEntry(
        action="artifact.describe", subject=f"{ref.kind}/{ref.name}", details=details
    )
    await append_audit(session, ref.project_id, entry, by)
    return artifact


async def lock_artifact(session: AsyncSession, ref: ArtifactRef) -> ArtifactRow:
    """The existing artifact, its row locked until the transaction ends.

    Raises:
        NotFoundError: If there is none, or it was deleted.
    """
    await read_artifact(session, ref)
    return await _lock_artifact(session, ref)


async def touch_artifact(session: AsyncSession, artifact_id: str) -> None:
    """Changes the ETag of everything that this artifact resolves to."""
    await session.execute(
        update(ArtifactRow)
        .where(ArtifactRow.id == artifact_id)
        .values(revision=ArtifactRow.revision + 1)
    )


async def _lock_artifact(session: AsyncSession, ref: ArtifactRef) -> ArtifactRow:
    if not ref.name or len(ref.name) > 255 or _SEPARATORS & set(ref.name):
        raise UserError(
            f"{ref.name!r} cannot be the name of a {ref.kind}.",
            remedy="Use 1 to 255 characters without spaces, line breaks and '@'.",
        )
    await session.execute(
        insert(ArtifactRow)
        .values(id=new_id(), project_id=ref.project_id, kind=ref.kind, name=ref.name)
        .on_conflict_do_nothing()
    )
    row = await session.scalar(
        select(ArtifactRow)
        .where(
            ArtifactRow.project_id == ref.project_id,
            ArtifactRow.kind == ref.kind,
            ArtifactRow.name == ref.name,
        )
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    if row is None:
        raise StoreError(
            f"the {ref.kind} {ref.name!r} cannot be written in project {ref.project_id}.",
            remedy="Open the transaction for the project that is written to.",
        )
    if row.deleted_at is not None:
        raise ConflictError(
            f"the {ref.kind} {ref.name!r} was deleted.", remedy="Restore it, or use another name."
        )
    return row


async def _no_such_label(
    session: AsyncSession, ref: ArtifactRef, artifact: ArtifactRow, label: str
) -> NotFoundError:
    names = await session.scalars(
        select(LabelRow.name).where(LabelRow.artifact_id == artifact.id).order_by(LabelRow.name)
    )
    there = ", ".join(names) or "none"
    return NotFoundError(
        f"{ref.kind} {ref.name!r} has no label {label!r}.",
        remedy=f"Its labels: {there}; version numbers and 'latest' work too.",
    )
