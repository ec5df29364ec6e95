"""Artifacts: named, versioned things. A version is a numbered event that points to content.

Saving, resolving, listing and contents have modules of their own; callers find all of it here.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.contents import (
    JSON,
    MAX_DESCRIPTION,
    TEXT,
    check_tags,
    check_words,
    decode_content,
    encode_content,
    lock_stream,
    put_blobs,
    read_content,
)
from instar.store.resolving import Resolved, read_artifact, resolve
from instar.store.saving import ArtifactRef, Draft, JobAccess, create_version, refuse_jobs
from instar.store.search import ArtifactFilter, list_artifacts, list_versions
from instar.store.tables import ArtifactRow, VersionParentRow, VersionRow
from instar_core.base import JsonValue
from instar_core.errors import NotFoundError

__all__ = [
    "JSON",
    "TEXT",
    "ArtifactFilter",
    "ArtifactRef",
    "Draft",
    "Resolved",
    "create_version",
    "decode_content",
    "describe_artifact",
    "encode_content",
    "list_artifacts",
    "list_parents",
    "list_versions",
    "lock_artifact",
    "put_blobs",
    "read_artifact",
    "read_content",
    "read_parents",
    "read_version",
    "resolve",
    "set_job_access",
    "touch_artifact",
]

_INDEX = text("select instar.index_artifact(cast(:artifact as uuid))")


async def read_version(session: AsyncSession, version_id: str) -> VersionRow:
    """The version of that id, deleted ones too.

    Raises:
        NotFoundError: If this project has none.
    """
    row = await session.get(VersionRow, version_id)
    if row is None:
        raise NotFoundError(f"there is no version {version_id!r} in this project.")
    return row


async def read_parents(session: AsyncSession, version_id: str) -> list[str]:
    """Ids of the versions that a version was made from."""
    return (await list_parents(session, [version_id]))[version_id]


async def list_parents(session: AsyncSession, version_ids: Sequence[str]) -> dict[str, list[str]]:
    """Version id → ids of the versions that it was made from, for each id that is asked for."""
    found: dict[str, list[str]] = {version_id: [] for version_id in version_ids}
    rows = await session.execute(
        select(VersionParentRow.version_id, VersionParentRow.parent_id)
        .where(VersionParentRow.version_id.in_(list(version_ids)))
        .order_by(VersionParentRow.parent_id)
    )
    for version_id, parent_id in rows:
        found[version_id].append(parent_id)
    return found


async def describe_artifact(
    session: AsyncSession,
    ref: ArtifactRef,
    by: Author,
    *,
    description: str | None = None,
    tags: Sequence[str] | None = None,
) -> ArtifactRow:
    """Changes description or tags: no new version, an audited edit, another ETag.

    Raises:
        NotFoundError: If there is no such artifact, or it was archived.
        InvalidContent: If description or tags are beyond their limits.
        PermissionDenied: If the actor is a run.
    """
    refuse_jobs(by, "describe an artifact")
    artifact = await lock_artifact(session, ref)
    details: dict[str, JsonValue] = {}
    if description is not None:
        check_words(description, MAX_DESCRIPTION, "the description")
        details["description"] = [artifact.description, description]
        artifact.description = description
    if tags is not None:
        wanted = check_tags(tags)
        details["tags"] = [list(artifact.tags), list(wanted)]
        artifact.tags = wanted
    artifact.revision += 1
    await session.flush()
    await session.execute(_INDEX, {"artifact": artifact.id})
    entry = AuditEntry(
        action="artifact.describe", subject=f"{ref.kind}/{ref.name}", details=details
    )
    await append_audit(session, ref.project_id, entry, by)
    return artifact


async def set_job_access(
    session: AsyncSession, ref: ArtifactRef, access: JobAccess, by: Author
) -> ArtifactRow:
    """Says what jobs may do with a person's artifact: nothing, or lay versions over it; audited.

    Raises:
        NotFoundError: If there is no such artifact, or it was archived.
        PermissionDenied: If the actor is a run.
    """
    refuse_jobs(by, "change what jobs may do")
    artifact = await lock_artifact(session, ref)
    details: dict[str, JsonValue] = {"job_access": [artifact.job_access, access]}
    artifact.job_access = access
    artifact.revision += 1
    await session.flush()
    entry = AuditEntry(action="artifact.access", subject=f"{ref.kind}/{ref.name}", details=details)
    await append_audit(session, ref.project_id, entry, by)
    return artifact


async def lock_artifact(
    session: AsyncSession, ref: ArtifactRef, *, deleted: bool = False, stream: str = "admin"
) -> ArtifactRow:
    """The existing artifact, its row locked until the transaction ends.

    Args:
        session: A project transaction.
        ref: The artifact.
        deleted: Archived ones too.
        stream: The audit stream that the change will be written to: locked first, so that all
            writers lock in the same order.

    Raises:
        NotFoundError: If there is none, or it was archived.
    """
    await lock_stream(session, ref.project_id, stream)
    found = await read_artifact(session, ref, deleted=deleted)
    await session.scalar(
        select(ArtifactRow)
        .where(ArtifactRow.id == found.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    if found.deleted_at is not None and not deleted:
        # It was archived while this transaction waited for the lock.
        return await read_artifact(session, ref)
    return found


async def touch_artifact(session: AsyncSession, artifact_id: str) -> None:
    """Changes the ETag of everything that this artifact resolves to."""
    await session.execute(
        update(ArtifactRow)
        .where(ArtifactRow.id == artifact_id)
        .values(revision=ArtifactRow.revision + 1)
    )
