"""Prints the SQL of all tables as the code describes them.

For whoever changes ``store/tables_*.py`` before a release: the output belongs into the newest
``v*_tables.sql``; a test fails while code and migration differ. After a release, write a new
migration.
"""

from __future__ import annotations

from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from instar.store.tables import Base

__all__ = ["schema_sql"]


def schema_sql() -> str:
    """``create table`` and ``create index`` statements in order of dependence."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it bare
    statements: list[str] = []
    for table in Base.metadata.sorted_tables:
        statements.append(str(CreateTable(table).compile(dialect=dialect)).strip())
        for index in sorted(table.indexes, key=lambda one: str(one.name)):
            statements.append(str(CreateIndex(index).compile(dialect=dialect)).strip())
    lines = ";\n\n".join(statements).replace("\t", "  ").splitlines()
    return "\n".join(line.rstrip() for line in lines) + ";\n"


if __name__ == "__main__":
    print(schema_sql(), end="")
