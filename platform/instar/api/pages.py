"""Pages: keyset pagination for browsing, ``?limit=&after=`` → ``{"data": […], "next": "…"}``."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

__all__ = ["After", "Limit", "Page"]

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=200, description="entries per page, at most")]
After = Annotated[
    str | None,
    Query(description="the ``next`` of the page before; none for the first page", max_length=200),
]


class Page(BaseModel, Generic[T]):
    """One page of a list, newest first unless said otherwise."""

    data: list[T]
    next: str | None = Field(
        default=None, description="give it as ``after`` for the next page; null on the last one"
    )
