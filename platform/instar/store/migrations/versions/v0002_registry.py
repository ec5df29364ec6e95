"""The registry: overlays, roles of labels, users and sessions, secrets, the sealed audit chain.

Revision ID: 0002
"""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_SQL = Path(__file__).parent / "sql"


def _execute(name: str) -> None:
    """Runs a whole SQL file; without parameters, so that no character in it is special."""
    sql = (_SQL / name).read_text(encoding="utf-8")
    op.get_bind().exec_driver_sql(sql, execution_options={"no_parameters": True})


def upgrade() -> None:
    """Adds tables and columns, then the functions of each area, then moves old rows over."""
    _execute("v0002_tables.sql")
    _execute("v0002_history.sql")
    _execute("v0002_security.sql")
    # A definer function runs with its owner's rights, so each is created by the role that owns it.
    op.execute("grant create on schema instar to instar_definer")
    op.execute("set local role instar_definer")
    _execute("v0002_audit.sql")
    _execute("v0002_access.sql")
    _execute("v0002_transfer.sql")
    _execute("v0002_secrets.sql")
    op.execute("set local role instar_owner")
    op.execute("revoke create on schema instar from instar_definer")
    # Functions with the caller's own rights, and what was stored before.
    _execute("v0002_registry.sql")
    _execute("v0002_data.sql")


def downgrade() -> None:
    """Refuses: what 0002 keeps has no place in 0001; restore a backup instead."""
    raise NotImplementedError("restore a backup that was made before the upgrade")
