"""Fixtures of the upgrade's tests: a database as the first release left it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from instar.backup.programs import find_program, pipe_to
from instar.store.testing import APP_PASSWORD, MigratedDatabase, PostgresCluster
from instar.store.urls import app_url

DATA = Path(__file__).parents[2] / "data" / "released_0001"


@dataclass(frozen=True)
class Released:
    """A database of the first release, and what that release said of it."""

    database: MigratedDatabase
    told: dict[str, Any]


def load_released(cluster: PostgresCluster) -> MigratedDatabase:
    """Restores the dump of revision 0001 into a database of its own."""
    name = cluster.create()
    owner = cluster.owner_url(name)
    arguments = ["--single-transaction", "--exit-on-error"]
    with pipe_to(find_program("pg_restore", 18), owner, arguments) as dump:
        dump.write((DATA / "0001.dump").read_bytes())
    told = json.loads((DATA / "0001.json").read_text(encoding="utf-8"))
    return MigratedDatabase(name, owner, app_url(owner, APP_PASSWORD), told["project"], cluster)


@pytest.fixture
def released(postgres_cluster: PostgresCluster) -> Iterator[Released]:
    """A fresh copy of it."""
    database = load_released(postgres_cluster)
    yield Released(database, json.loads((DATA / "0001.json").read_text(encoding="utf-8")))
    postgres_cluster.drop(database.name)
