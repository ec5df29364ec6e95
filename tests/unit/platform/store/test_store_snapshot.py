"""Snapshots: a hash says what rows hold, and nothing of how they are stored or who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from instar.store.snapshot import TableContent, open_snapshot
from instar_core.errors import PrerequisiteError, StoreError

if TYPE_CHECKING:
    from instar.store.testing import MigratedDatabase

pytestmark = pytest.mark.postgres


def _tables(database: MigratedDatabase) -> dict[str, TableContent]:
    with open_snapshot(database.owner_url) as snapshot:
        return {table.name: table for table in snapshot.tables()}


def _projects(database: MigratedDatabase, *names: str) -> None:
    for name in names:
        database.query("insert into project (id, name) values (gen_random_uuid(), %s)", name)


def test_every_table_is_counted_with_its_partitions(database: MigratedDatabase) -> None:
    _projects(database, "a", "b\nwith a line", "c\\n")
    found = _tables(database)
    assert found["project"].rows == 4
    assert {"effect", "audit_event", "alembic_version"} <= set(found)
    assert not any("_y20" in name or name.endswith("_default") for name in found)


def test_the_hash_does_not_depend_on_storage_or_settings(database: MigratedDatabase) -> None:
    _projects(database, "b", "Z", "a", "ä")
    before = _tables(database)
    # Rewritten rows lie elsewhere; another zone and format would be another text.
    database.query("update project set name = name")
    database.query("vacuum full project")
    for setting in (
        "timezone to 'Asia/Tokyo'",
        "datestyle to 'German'",
        "bytea_output to 'escape'",
    ):
        with psycopg.connect(database.owner_url, autocommit=True) as connection:
            connection.execute(f'alter database "{database.name}" set {setting}'.encode())
    assert _tables(database) == before


def test_any_changed_value_changes_the_hash_of_its_table_alone(database: MigratedDatabase) -> None:
    _projects(database, "a")
    before = _tables(database)
    database.query("update project set name = 'A' where name = 'a'")
    after = _tables(database)
    assert {name for name in before if before[name] != after[name]} == {"project"}
    assert before["project"].rows == after["project"].rows


def test_a_snapshot_holds_while_others_write(database: MigratedDatabase) -> None:
    with open_snapshot(database.owner_url) as snapshot:
        before = snapshot.tables()
        _projects(database, "later")
        assert snapshot.tables() == before
        assert snapshot.secrets() == []
    assert _tables(database)["project"].rows == 2


def test_a_login_behind_the_policies_and_a_foreign_database_are_refused(
    database: MigratedDatabase, empty_database: str
) -> None:
    with (
        pytest.raises(PrerequisiteError, match="row-level security"),
        open_snapshot(database.app_url),
    ):
        raise AssertionError("nothing is read")
    with pytest.raises(PrerequisiteError, match="holds no Instar"), open_snapshot(empty_database):
        raise AssertionError("nothing is read")
    away = database.owner_url.replace(database.name, "nowhere")
    with pytest.raises(StoreError, match="nowhere") as caught, open_snapshot(away):
        raise AssertionError("nothing is read")
    assert database.cluster.server.password not in str(caught.value)
