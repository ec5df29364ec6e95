"""Fixtures that many tests share: one embedded PostgreSQL, a fresh database per test.

What they need is imported inside them, so that tests without a database stay light.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from instar.store.testing import MigratedDatabase, PostgresCluster


@pytest.fixture(autouse=True)
def _secrets_of_one_test() -> Iterator[None]:
    """What a test makes known as secret masks no other test's texts."""
    before = sys.modules.get("instar.redaction.mask")
    known = before._known.copy() if before is not None else {}
    yield
    after = sys.modules.get("instar.redaction.mask")
    if after is not None:
        after._known.put_back(known)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """One server for the session, with one migrated template."""
    from instar.store.testing import start_cluster

    directory = Path(tempfile.mkdtemp(prefix="instar-t"))
    if os.geteuid() == 0:
        directory.chmod(0o711)
    try:
        cluster = start_cluster(directory)
        yield cluster
        # Nothing of it is kept, so it need not write anything down before it ends.
        cluster.server.stop(timeout_s=0.0)
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
    from instar.store.testing import create_database

    fresh = create_database(postgres_cluster)
    yield fresh
    postgres_cluster.drop(fresh.name)
