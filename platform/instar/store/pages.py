"""Pages: keyset pagination on (created_at, id), newest first, for people who browse."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from instar_core.errors import UserError

__all__ = ["MAX_PAGE", "Page", "read_page"]

T = TypeVar("T")
MAX_PAGE = 200


class Page(NamedTuple, Generic[T]):
    """Some items, and the cursor of the page after them (``None`` at the end)."""

    items: list[T]
    next_cursor: str | None


async def read_page(
    session: AsyncSession, query: Select[T], row: Any, *, limit: int, cursor: str | None
) -> Page[T]:
    """One page of a query over one table.

    Args:
        session: A project transaction.
        query: ``select(Row)`` with its conditions, without order or limit.
        row: The mapped class, with ``created_at`` and ``id``.
        limit: Items per page, 1 to 200.
        cursor: What the page before returned; ``None`` or empty for the first page.

    Raises:
        UserError: If the limit is out of range or the cursor is none of ours.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise UserError(f"limit is {limit}; it must be 1 to {MAX_PAGE}.")
    if cursor:
        query = query.where(tuple_(row.created_at, row.id) < _decode(cursor))
    ordered = query.order_by(row.created_at.desc(), row.id.desc()).limit(limit + 1)
    found = list((await session.scalars(ordered)).all())
    more = len(found) > limit
    items = found[:limit]
    return Page(items, _encode(items[-1]) if more else None)


def _encode(item: Any) -> str:
    raw = f"{item.created_at.isoformat()}|{item.id}"
    return base64.urlsafe_b64encode(raw.encode("ascii")).decode("ascii").rstrip("=")


def _decode(cursor: str) -> tuple[datetime, str]:
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
        moment, _, item = raw.partition("|")
        if len(item) != 36:
            raise ValueError("no id")
        return datetime.fromisoformat(moment), item
    except (ValueError, binascii.Error) as error:
        raise UserError(
            f"the cursor {cursor!r} is not one of ours.",
            remedy="Pass next_cursor of the page before, or none for the first page.",
        ) from error
