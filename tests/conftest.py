"""Fixtures that many tests share: one embedded PostgreSQL, a fresh database per test."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from instar.embedded.postgres import PostgresServer
from instar.store.migrate import upgrade
from instar.store.session import Database
from instar.store.urls import app_url
from instar_core.base import new_id

Statement = sql.SQL | sql.Composed | LiteralString
_APP_PASSWORD = "only-for-tests"
_TEMPLATE = "instar_template"


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

    def run(self, work: Any) -> Any:
        """Runs ``await work(db)`` in a fresh event loop; the database is closed at its end."""

        async def _go() -> Any:
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


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """One server for the session, without durability (nothing in it outlives the session)."""
    directory = Path(tempfile.mkdtemp(prefix="instar-t"))
    if os.geteuid() == 0:
        directory.chmod(0o711)
    options = {
        "fsync": "off",
        "full_page_writes": "off",
        "synchronous_commit": "off",
        "shared_buffers": "64MB",
        "max_connections": "200",
        "autovacuum": "off",
    }
    server = PostgresServer(directory / "pg", directory / "s", options=options)
    try:
        server.start()
        cluster = PostgresCluster(server)
        cluster.execute(f"create database {_TEMPLATE}")
        upgrade(cluster.owner_url(_TEMPLATE), app_password=_APP_PASSWORD)
        yield cluster
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def empty_database(postgres_cluster: PostgresCluster) -> Iterator[str]:
    """The owner's URL of a database without any schema."""
    name = postgres_cluster.create()
    yield postgres_cluster.owner_url(name)
    postgres_cluster.drop(name)


@pytest.fixture
def database(postgres_cluster: PostgresCluster) -> Iterator[MigratedDatabase]:
    """A fresh, migrated database with a project named ``test``."""
    name = postgres_cluster.create(template=_TEMPLATE)
    owner = postgres_cluster.owner_url(name)
    project_id = new_id()
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(
            "insert into instar.project (id, name) values (%s, 'test')", (project_id,)
        )
    yield MigratedDatabase(name, owner, app_url(owner, _APP_PASSWORD), project_id, postgres_cluster)
    postgres_cluster.drop(name)
