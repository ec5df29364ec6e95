"""Tables, the base: one declarative base in the schema ``instar`` and the column shapes all share.

Text that a model or a tool wrote is kept in ``json`` columns, not ``jsonb`` or ``text``: ``json``
keeps key order and the escape of a NUL character exactly as written, so what is read back is what
was sent.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Float,
    ForeignKey,
    LargeBinary,
    MetaData,
    Numeric,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, mapped_column

from instar_core.base import new_id

__all__ = [
    "SCHEMA",
    "Base",
    "Big",
    "Bytes",
    "Cost",
    "CreatedAt",
    "Exact",
    "Id",
    "Key",
    "Maybe",
    "Moment",
    "OwnId",
    "ProjectId",
    "Query",
    "Seconds",
    "Words",
]

SCHEMA = "instar"

_NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Every table of Instar, in the schema ``instar``."""

    metadata = MetaData(schema=SCHEMA, naming_convention=_NAMING)


_UUID = Uuid(as_uuid=False)
_NOW = text("clock_timestamp()")

Id = Annotated[str, mapped_column(_UUID)]
"""A UUIDv7 as text."""
OwnId = Annotated[str, mapped_column(_UUID, primary_key=True, default=new_id)]
"""The row's own UUIDv7, made by the application."""
Key = Annotated[str, mapped_column(_UUID, primary_key=True)]
"""An id that is part of the primary key."""
ProjectId = Annotated[str, mapped_column(_UUID, ForeignKey(f"{SCHEMA}.project.id"))]
"""The project a row belongs to; the row-level policy compares it with ``app.project``."""
Maybe = Annotated[str | None, mapped_column(_UUID)]
"""An optional id."""
Words = Annotated[str, mapped_column(Text, server_default=text("''"), default="")]
"""Text, empty by default."""
Exact = Annotated[Any, mapped_column(JSON(none_as_null=True), nullable=True)]
"""JSON kept as written (order, escapes); ``None`` is SQL NULL."""
Query = Annotated[
    dict[str, Any], mapped_column(JSONB, server_default=text("'{}'::jsonb"), default=dict)
]
"""JSON that the database may search."""
Moment = Annotated[datetime | None, mapped_column(DateTime(timezone=True))]
"""An optional point in time, with time zone."""
CreatedAt = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=_NOW)]
"""When the row was written, by the database's clock."""
Cost = Annotated[
    float, mapped_column(Numeric(20, 10, asdecimal=False), server_default=text("0"), default=0.0)
]
"""US dollars: exact decimal arithmetic in the database, a float in Python."""
Seconds = Annotated[float, mapped_column(Float(53), server_default=text("0"), default=0.0)]
"""Seconds of wall time."""
Big = Annotated[int, mapped_column(BigInteger, server_default=text("0"), default=0)]
"""A 64-bit count, 0 by default."""
Bytes = Annotated[bytes, mapped_column(LargeBinary)]
"""Raw bytes."""
