"""Testing against the store: an embedded server without durability, and fresh databases on it.

Instar's own tests use it through the fixtures in ``tests/conftest.py``; tests of extensions may do
so too. One migrated template is copied for each test, which takes some hundredths of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import sql

from instar.embedded.postgres import PostgresServer
from instar.store.migrate import upgrade
from instar.store.session import Database
from instar.store.urls import app_url
from instar_core.base import new_id

__all__ = [
    "APP_PASSWORD",
    "TEMPLATE",
    "MigratedDatabase",
    "PostgresCluster",
    "counted_statements",
    "create_database",
    "start_cluster",
]

T = TypeVar("T")
APP_PASSWORD = "only-for-tests"
TEMPLATE = "instar_template"
Statement = sql.SQL | sql.Composed | LiteralString


@dataclass(frozen=True)
class PostgresCluster:
    """The session's server: makes databases out of one migrated template."""

    server: PostgresServer

    def owner_url(self, name: str) -> str:
        """The superuser's URL of a database."""
        return self.server.dsn(name)

    def execute(self, statement: Statement, database: str = "postgres") -> None:
        """Runs one statement as the superuser, outside any transaction."""
        with psycopg.connect(self.owner_url(database), autocommit=True) as connection:
            connection.execute(sql.SQL(statement) if isinstance(statement, str) else statement)

    def create(self, *, template: str = "template0") -> str:
        """A new database's name."""
        name = "t_" + new_id().replace("-", "")
        self.execute(
            sql.SQL("create database {} template {} strategy file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return name

    def drop(self, name: str) -> None:
        """Removes a database with whoever is still connected to it."""
        self.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
        )


@dataclass(frozen=True)
class MigratedDatabase:
    """A fresh, migrated database with one project, for one test."""

    name: str
    owner_url: str
    app_url: str
    project_id: str
    cluster: PostgresCluster

    @cached_property
    def db(self) -> Database:
        """A :class:`Database` for one event loop; dropping the database ends its connections."""
        return self.open()

    def open(self) -> Database:
        """A :class:`Database` as the application; close it in the event loop that used it."""
        return Database(self.app_url)

    def run(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """Runs ``await work(db)`` in a fresh event loop; the database is closed at its end."""

        async def _go() -> T:
            db = self.open()
            try:
                return await work(db)
            finally:
                await db.close()

        return asyncio.run(_go())

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of a statement as the superuser, past all walls."""
        with psycopg.connect(self.owner_url, autocommit=True) as connection:
            connection.execute("set search_path = instar, pg_temp")
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


_WITHOUT_DURABILITY = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "autovacuum": "off",
}


def start_cluster(directory: Path, *, durable: bool = False) -> PostgresCluster:
    """Starts a server in an empty, short-named directory and migrates the template.

    Args:
        directory: Where its data and socket go.
        durable: Run it as an installation does, for measurements; else, since nothing in it
            outlives the session, it does without durability.
    """
    options = {} if durable else _WITHOUT_DURABILITY
    server = PostgresServer(directory / "pg", directory / "s", options=options)
    server.start()
    cluster = PostgresCluster(server)
    try:
        cluster.execute(f"create database {TEMPLATE}")
        upgrade(cluster.owner_url(TEMPLATE), app_password=APP_PASSWORD)
    except BaseException:
        server.stop()
        raise
    return cluster


def create_database(cluster: PostgresCluster) -> MigratedDatabase:
    """A fresh, migrated database with one project named ``test``."""
    name = cluster.create(template=TEMPLATE)
    owner = cluster.owner_url(name)
    project_id = new_id()
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(
            "insert into instar.project (id, name) values (%s, 'test')", (project_id,)
        )
    return MigratedDatabase(name, owner, app_url(owner, APP_PASSWORD), project_id, cluster)


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """The statements that this process sends to any database meanwhile."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    seen: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)
