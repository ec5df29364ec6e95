"""The first schema: tables with partitions, row-level policies, grants and the definer functions.

Revision ID: 0001
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent / "sql"


def _execute(name: str) -> None:
    """Runs a whole SQL file; without parameters, so that no character in it is special."""
    sql = (_SQL / name).read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(sql, execution_options={"no_parameters": True})


def upgrade() -> None:
    """Builds everything; the caller has taken the role ``instar_owner``."""
    _execute("v0001_tables.sql")
    _execute("v0001_security.sql")
    # A definer function runs with its owner's rights, so each is created by the role that owns it.
    op.execute("set local role instar_definer")
    _execute("v0001_functions.sql")
    op.execute("set local role instar_owner")
    op.execute("revoke create on schema instar from instar_definer")


def downgrade() -> None:
    """Refuses: going back to nothing would throw data away; restore a backup instead."""
    raise NotImplementedError("there is nothing before the first revision; restore a backup")
