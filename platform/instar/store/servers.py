"""Tool servers: registered MCP servers by name, with how they start and their test binding.

``config`` is kept as the runtime wrote it (see its own model); in the place of secret values it
has references (see :mod:`instar.store.secret_refs`).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.tables import McpServerRow
from instar_core.errors import NotFoundError

__all__ = [
    "delete_server",
    "find_server",
    "list_servers",
    "list_stored_servers",
    "put_server",
    "read_server",
]


async def put_server(
    session: AsyncSession, project_id: str, name: str, config: dict[str, Any], by: Author
) -> McpServerRow:
    """Registers a server, or replaces the configuration of the one with that name; audited."""
    row = await session.scalar(
        insert(McpServerRow)
        .values(project_id=project_id, name=name, config=config)
        .on_conflict_do_update(
            index_elements=[McpServerRow.project_id, McpServerRow.name],
            index_where=McpServerRow.deleted_at.is_(None),
            set_={"config": config, "updated_at": func.clock_timestamp()},
        )
        .returning(McpServerRow)
        .execution_options(populate_existing=True)
    )
    assert row is not None, "an upsert returns its row"
    await append_audit(session, project_id, AuditEntry(action="server.put", subject=name), by)
    return row


async def read_server(session: AsyncSession, project_id: str, name: str) -> McpServerRow:
    """The server of that name.

    Raises:
        NotFoundError: If there is none; names those there are.
    """
    found = {row.name: row for row in await list_servers(session, project_id)}
    if name not in found:
        raise NotFoundError(
            f"there is no tool server named {name!r}.",
            remedy=f"Registered: {', '.join(found) or 'none'}.",
        )
    return found[name]


async def find_server(session: AsyncSession, project_id: str, name: str) -> McpServerRow | None:
    """The server of that name, if there is one."""
    return await session.scalar(
        select(McpServerRow).where(
            McpServerRow.project_id == project_id,
            McpServerRow.name == name,
            McpServerRow.deleted_at.is_(None),
        )
    )


async def list_stored_servers(session: AsyncSession, project_id: str) -> list[McpServerRow]:
    """The project's servers and those taken out of use: every registration that is kept."""
    rows = await session.scalars(
        select(McpServerRow).where(McpServerRow.project_id == project_id).order_by(McpServerRow.id)
    )
    return list(rows)


async def list_servers(session: AsyncSession, project_id: str) -> list[McpServerRow]:
    """The project's servers, by name."""
    rows = await session.scalars(
        select(McpServerRow)
        .where(McpServerRow.project_id == project_id, McpServerRow.deleted_at.is_(None))
        .order_by(McpServerRow.name)
    )
    return list(rows)


async def delete_server(session: AsyncSession, project_id: str, name: str, by: Author) -> None:
    """Takes a server out of use; its row stays, for what refers to it.

    Raises:
        NotFoundError: If there is none of that name.
    """
    row = await read_server(session, project_id, name)
    row.deleted_at = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    await session.flush()
    await append_audit(session, project_id, AuditEntry(action="server.delete", subject=name), by)
