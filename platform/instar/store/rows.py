"""Rows: one row of a project by its id, or the error that says what is missing."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.tables_base import Base
from instar_core.errors import NotFoundError

__all__ = ["read_row"]

Row = TypeVar("Row", bound=Base)
_ID_LENGTH = 36


async def read_row(
    session: AsyncSession, kind: type[Row], row_id: str, called: str, *, lock: bool = False
) -> Row:
    """The row, as it is in the database now.

    Args:
        session: A project transaction.
        kind: The mapped class.
        row_id: Its id; what cannot be an id is not asked for.
        called: What such a row is called in the message.
        lock: Hold it until the transaction ends.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    row = None
    if len(row_id) == _ID_LENGTH:
        row = await session.get(kind, row_id, populate_existing=True, with_for_update=lock)
    if row is None:
        raise NotFoundError(f"there is no {called} {row_id!r} in this project.")
    return row
