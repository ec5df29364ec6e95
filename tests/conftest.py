"""Fixtures that many tests share: one embedded PostgreSQL, a fresh database per test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from instar.store.testing import MigratedDatabase, PostgresCluster, create_database, start_cluster


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """One server for the session, with one migrated template."""
    directory = Path(tempfile.mkdtemp(prefix="instar-t"))
    if os.geteuid() == 0:
        directory.chmod(0o711)
    try:
        cluster = start_cluster(directory)
        yield cluster
        cluster.server.stop()
    finally:
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
    fresh = create_database(postgres_cluster)
    yield fresh
    postgres_cluster.drop(fresh.name)
