"""The Alembic environment: runs on the connection that ``instar.store.migrate`` hands over.

That connection is already in a transaction that holds the advisory lock, so that every revision of
one upgrade commits together or not at all.
"""

from __future__ import annotations

from alembic import context

from instar.store.tables import SCHEMA, Base
from instar_core.errors import StoreError


def _run() -> None:
    connection = context.config.attributes.get("connection")
    if connection is None:
        raise StoreError(
            "the migrations were started without a connection.",
            remedy="Run `python -m instar.store.migrate upgrade` instead of alembic itself.",
        )
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table_schema=SCHEMA,
        include_schemas=True,
    )
    with context.begin_transaction():
        context.run_migrations()


_run()
