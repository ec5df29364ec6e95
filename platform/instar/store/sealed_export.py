"""Sealed contents, read out by who owns the database: for an export on the server's own machine.

The application's role cannot read them, and nothing here changes that: these functions work only in
a session of a login that is a member of ``instar_owner`` and ``instar_definer``.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.tables import ArtifactRow, SealedTaskRow, TaskRow, VersionRow
from instar.store.urls import DEFINER_ROLE, OWNER_ROLE
from instar_core.base import JsonValue

__all__ = ["SealedContent", "read_sealed_contents"]


class SealedContent(NamedTuple):
    """One sealed task of a task-set version."""

    name: str
    number: int
    task_id: str
    content: JsonValue


async def read_sealed_contents(
    session: AsyncSession, project_id: str, by: Author
) -> list[SealedContent]:
    """The contents of all sealed tasks of a project, in the order of their sets; audited.

    Args:
        session: A transaction of the project as the owner's login.
        project_id: The project.
        by: Who takes them out.

    Raises:
        StoreError: If this login may not, or the audit event cannot be written.
    """
    # The function that appends belongs to this role; the application's grant is not needed for it.
    await session.execute(text(f"set local role {DEFINER_ROLE}"))
    entry = AuditEntry(action="project.export", subject="sealed tasks", details={"sealed": True})
    await append_audit(session, project_id, entry, by)
    # The owner of the tables is stopped by the forced policies outside this one project.
    await session.execute(text(f"set local role {OWNER_ROLE}"))
    rows = await session.execute(
        select(ArtifactRow.name, VersionRow.number, TaskRow.task_id, SealedTaskRow.content)
        .join(VersionRow, VersionRow.id == SealedTaskRow.version_id)
        .join(ArtifactRow, ArtifactRow.id == VersionRow.artifact_id)
        .join(
            TaskRow,
            (TaskRow.version_id == SealedTaskRow.version_id)
            & (TaskRow.task_id == SealedTaskRow.task_id),
        )
        .where(SealedTaskRow.project_id == project_id)
        .order_by(ArtifactRow.name, VersionRow.number, TaskRow.ordinal, TaskRow.task_id)
    )
    return [SealedContent(str(row[0]), int(row[1]), str(row[2]), row[3]) for row in rows]
