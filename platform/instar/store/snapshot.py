"""Snapshots: one moment of the whole database, past all walls, counted and hashed table by table.

Only a login that row-level security does not stop sees every project. For any other the forced
policies would show an empty database, so such a login is refused before anything is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString, NamedTuple

import psycopg
from psycopg import sql

from instar.store.tables import SCHEMA
from instar.store.urls import APP_ROLE, driver_url, without_password
from instar_core.base import Frozen
from instar_core.errors import PrerequisiteError, StoreError

__all__ = ["DatabaseFacts", "Snapshot", "TableContent", "open_snapshot"]

_OLDEST = 15
# The text of a value must not depend on who asks: these settings decide how it is written.
_SETTINGS: tuple[LiteralString, ...] = (
    "set timezone = 'UTC'",
    "set datestyle = 'ISO, YMD'",
    "set intervalstyle = 'postgres'",
    "set extra_float_digits = 1",
    "set bytea_output = 'hex'",
    # Rows that a policy would hide are an error from here on, never a shorter answer.
    "set row_security = off",
    "set search_path = pg_catalog",
)
_FACTS = """
select current_setting('server_version_num')::integer / 10000, current_user::text,
  (select rolsuper from pg_roles where rolname = current_user),
  (select rolbypassrls from pg_roles where rolname = current_user),
  to_regclass('instar.installation') is not null, current_database()::text
"""
_TABLES = """
select c.relname from pg_class c
where c.relnamespace = %s::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
order by c.relname
"""
_KEY = """
select a.attname, a.attcollation <> 0
from pg_index i
cross join lateral unnest(i.indkey::smallint[]) with ordinality k(attnum, place)
join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = %s::regclass and i.indisprimary
order by k.place
"""


class TableContent(Frozen):
    """What one table holds: its rows, and the sha256 of their text in the order of their key."""

    name: str
    rows: int
    sha256: str


class DatabaseFacts(NamedTuple):
    """What a database is, before anything in it is read.

    Attributes:
        server: Major version of the server.
        login: The role that asks.
        sees_all: Whether row-level security does not stop that role.
        is_super: Whether it may restore objects of other owners.
        has_schema: Whether Instar's schema is there.
        name: The database's name.
    """

    server: int
    login: str
    sees_all: bool
    is_super: bool
    has_schema: bool
    name: str


class Snapshot:
    """One moment of a database; everything read through it belongs to that moment."""

    def __init__(self, connection: psycopg.Connection, facts: DatabaseFacts) -> None:
        self._connection = connection
        self.facts = facts

    def export(self) -> str:
        """The snapshot's name, by which ``pg_dump`` reads the very same moment."""
        return str(self._one("select pg_export_snapshot()"))

    def installation(self) -> str:
        """The id that the first migration gave this installation."""
        return str(self._one("select id from instar.installation"))

    def revision(self) -> str:
        """The schema revision."""
        return str(self._one("select version_num from instar.alembic_version"))

    def moment(self) -> str:
        """The moment itself, by the server's clock (ISO, UTC)."""
        return str(
            self._one(
                """select to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""
            )
        )

    def tables(self) -> list[TableContent]:
        """Every table with its count and hash, by name; partitions count into their parent."""
        names = [str(row[0]) for row in self._connection.execute(_TABLES, [SCHEMA])]
        return [self._read(name) for name in names]

    def secrets(self) -> list[tuple[str, str]]:
        """``project/name`` of every secret, and the id of the key that it is under."""
        if self._one("select to_regclass('instar.secret') is null"):
            return []  # revision 0001 had none
        rows = self._connection.execute(
            "select p.name || '/' || s.name, s.key_id from instar.secret s "
            "join instar.project p on p.id = s.project_id where s.deleted_at is null order by 1"
        )
        return [(str(row[0]), str(row[1])) for row in rows]

    def _read(self, name: str) -> TableContent:
        table = sql.Identifier(SCHEMA, name)
        key = self._connection.execute(_KEY, [table.as_string()]).fetchall()
        order: list[sql.Composable] = [
            sql.SQL("t.{} collate {}").format(sql.Identifier(column), sql.Identifier("C"))
            if collated
            else sql.SQL("t.{}").format(sql.Identifier(column))
            for column, collated in key
        ]
        if not order:
            order = [sql.SQL('t::text collate "C"')]
        statement = sql.SQL("copy (select * from {} t order by {}) to stdout").format(
            table, sql.SQL(", ").join(order)
        )
        digest, count = hashlib.sha256(), 0
        with self._connection.cursor() as cursor, cursor.copy(statement) as rows:
            for piece in rows:
                digest.update(piece)
                # The format ends each row with a line feed and escapes those within.
                count += bytes(piece).count(b"\n")
        return TableContent(name=name, rows=count, sha256=digest.hexdigest())

    def _one(self, statement: LiteralString) -> object:
        row = self._connection.execute(statement).fetchone()
        assert row is not None, "the statement returns one row"
        return row[0]


@contextmanager
def open_snapshot(owner_url: str) -> Iterator[Snapshot]:
    """A read-only snapshot of an Instar database; an upgrade waits until it is closed.

    Args:
        owner_url: A superuser's login, or one with BYPASSRLS that may read every table.

    Raises:
        PrerequisiteError: The login does not see every row, there is no Instar in the database, or
            the server is too old.
        StoreError: The database cannot be reached, or refused a statement.
    """
    where = without_password(driver_url(owner_url))
    plain = driver_url(owner_url).set(drivername="postgresql")
    try:
        with psycopg.connect(
            plain.render_as_string(hide_password=False), connect_timeout=10
        ) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            for setting in _SETTINGS:
                connection.execute(setting)
            connection.execute(
                "select pg_advisory_lock_shared(hashtextextended('instar.migrate', 0))"
            )
            # Settings and lock stay; the next transaction's first statement takes the snapshot,
            # after any upgrade that the lock has waited for.
            connection.commit()
            facts = read_facts(connection)
            _require_whole(facts)
            yield Snapshot(connection, facts)
            connection.rollback()
    except psycopg.Error as error:
        raise StoreError(
            f"reading the database {where} failed: {str(error).strip()}.",
            remedy="See that it runs (`instar status`) and that this login may read every table of "
            f"the schema {SCHEMA!r}, then try again.",
        ) from error


def read_facts(connection: psycopg.Connection) -> DatabaseFacts:
    """What the connected database is."""
    row = connection.execute(_FACTS).fetchone()
    assert row is not None
    server, login, is_super, bypasses, has_schema, name = row
    return DatabaseFacts(
        int(server), str(login), bool(is_super or bypasses), bool(is_super), bool(has_schema), name
    )


def _require_whole(facts: DatabaseFacts) -> None:
    if facts.server < _OLDEST:
        raise PrerequisiteError(
            f"the database server is PostgreSQL {facts.server}; {_OLDEST} or later is needed.",
            remedy="Upgrade the server first.",
        )
    if not facts.has_schema:
        raise PrerequisiteError(
            f"the database {facts.name!r} holds no Instar: it has no table 'instar.installation'.",
            remedy="Name the database that the service uses with DATABASE_URL.",
        )
    if not facts.sees_all:
        login = sql.Identifier(facts.login).as_string()
        raise PrerequisiteError(
            f"the login {facts.login!r} is stopped by row-level security: a backup through it "
            "would be empty. Nothing was written.",
            remedy=f"Run `alter role {login} bypassrls;` as an administrator (never for "
            f"{APP_ROLE}), or name a superuser's login with DATABASE_URL for this command.",
        )
