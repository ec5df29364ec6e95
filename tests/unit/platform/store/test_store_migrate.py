"""Migrating: whole or not at all, once, never over data that a marker remembers."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from instar.embedded.postgres import PostgresServer
from instar.store.migrate import MARKER, Upgraded, check, head_revision, main, upgrade
from instar.store.tables import SCHEMA, Base
from instar.store.testing import MigratedDatabase, PostgresCluster
from instar.store.urls import app_url, driver_url
from instar_core.errors import PrerequisiteError, StoreError

pytestmark = pytest.mark.postgres


def _execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_upgrade_runs_again_and_changes_nothing(empty_database: str, tmp_path: Path) -> None:
    first = upgrade(empty_database, app_password="only-for-tests", data_dir=tmp_path)
    again = upgrade(empty_database, app_password="only-for-tests", data_dir=tmp_path)
    assert first.before is None and first.after == head_revision()
    assert again == Upgraded(head_revision(), head_revision(), first.installation)
    assert json.loads((tmp_path / MARKER).read_text()) == {"installation": first.installation}
    assert check(app_url(empty_database, "only-for-tests")).ready


def test_s117_concurrent_upgrades_happen_once(empty_database: str) -> None:
    done: list[Upgraded] = []

    def work() -> None:
        done.append(upgrade(empty_database))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(item.before or "" for item in done) == ["", head_revision(), head_revision()]
    assert len({item.installation for item in done}) == 1


def test_s117_an_upgrade_that_fails_half_way_leaves_nothing(empty_database: str) -> None:
    # A type of the same name makes a late table of the migration fail.
    _execute(
        empty_database,
        "create schema instar authorization instar_owner",
        "create type instar.promotion as (a int)",
    )
    with pytest.raises(StoreError, match="already exists"):
        upgrade(empty_database)
    with psycopg.connect(empty_database) as connection:
        found = connection.execute(
            "select count(*) from pg_class where relnamespace = 'instar'::regnamespace "
            "and relkind in ('r', 'p')"
        ).fetchone()
    assert found == (0,)
    assert "is empty" in check(empty_database).reason
    _execute(empty_database, "drop type instar.promotion")
    assert upgrade(empty_database).before is None


def test_s116_another_revision_is_not_ready_with_the_reason(database: MigratedDatabase) -> None:
    assert check(database.app_url) == (True, "")
    database.query("update alembic_version set version_num = '9999'")
    readiness = check(database.app_url)
    assert not readiness.ready
    assert "'9999'" in readiness.reason and "newer version wrote it" in readiness.reason


def test_a_newer_database_is_refused_and_left_alone(
    database: MigratedDatabase, tmp_path: Path
) -> None:
    database.query("update alembic_version set version_num = '9999'")
    with pytest.raises(PrerequisiteError, match="'9999'.*Install that version"):
        upgrade(database.owner_url, data_dir=tmp_path)
    assert not (tmp_path / MARKER).exists()
    assert database.query("select version_num from alembic_version") == [("9999",)]


def test_s115_an_empty_database_is_refused_where_data_existed(
    empty_database: str, database: MigratedDatabase, tmp_path: Path
) -> None:
    installation = upgrade(database.owner_url, data_dir=tmp_path).installation
    with pytest.raises(PrerequisiteError, match=f"is empty, but .*{installation}"):
        upgrade(empty_database, data_dir=tmp_path)
    assert "is empty" in check(empty_database).reason
    (tmp_path / MARKER).unlink()
    assert upgrade(empty_database, data_dir=tmp_path).before is None


def test_s115_a_database_of_another_installation_is_refused(
    empty_database: str, database: MigratedDatabase, tmp_path: Path
) -> None:
    mine = upgrade(empty_database, data_dir=tmp_path).installation
    database.query("update installation set id = gen_random_uuid()")
    with pytest.raises(PrerequisiteError, match=f"belongs to installation .* to {mine}"):
        upgrade(database.owner_url, data_dir=tmp_path)


def test_a_broken_marker_says_so(empty_database: str, tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text("{")
    with pytest.raises(PrerequisiteError, match="cannot be read"):
        upgrade(empty_database, data_dir=tmp_path)


def test_a_login_that_owns_nothing_is_refused_with_the_sql_to_run(
    postgres_cluster: PostgresCluster,
) -> None:
    name = postgres_cluster.create()
    login = f"plain_{name}"
    _execute(postgres_cluster.owner_url(name), f"create role {login} login password 'p'")
    owner = postgres_cluster.server.dsn(name, user=login, password="p")
    try:
        with pytest.raises(PrerequisiteError) as refused:
            upgrade(owner)
        remedy = refused.value.remedy
        assert "is not a member of the role 'instar_owner'" in refused.value.message
        assert f'grant instar_owner, instar_definer to "{login}";' in remedy
        grants = [line for line in remedy.splitlines() if line.startswith("grant")]
        for line in grants:
            _execute(postgres_cluster.owner_url(name), line)
        # With the administrator's grants the same login succeeds, though it is no superuser.
        assert upgrade(owner).before is None
        assert check(app_url(owner, "only-for-tests")).ready
    finally:
        postgres_cluster.drop(name)


def test_a_wrong_application_password_is_told_before_the_service_starts(
    postgres_cluster: PostgresCluster,
) -> None:
    name = postgres_cluster.create()
    login = f"plain_{name}"
    _execute(
        postgres_cluster.owner_url(name),
        f"create role {login} login password 'p'",
        f"grant instar_owner, instar_definer to {login}",
        f"grant create, connect on database {name} to {login}",
        f"grant connect on database {name} to instar_app",
    )
    try:
        with pytest.raises(PrerequisiteError, match="does not accept the password"):
            upgrade(
                postgres_cluster.server.dsn(name, user=login, password="p"), app_password="wrong"
            )
    finally:
        postgres_cluster.drop(name)


def test_on_a_server_without_the_roles_a_delegated_login_makes_them(tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(prefix="instar-t"))
    directory.chmod(0o711)
    server = PostgresServer(directory / "pg", directory / "s", options={"fsync": "off"})
    try:
        server.start()
        for name, rights in (("small", ""), ("able", "createrole bypassrls")):
            _execute(server.dsn(), f"create role {name} login {rights} password 'p'")
            _execute(server.dsn(), f"create database {name} owner {name}")
        with pytest.raises(PrerequisiteError, match="'instar_owner' is missing.*may not create it"):
            upgrade(server.dsn("small", user="small", password="p"), app_password="a")
        owner = server.dsn("able", user="able", password="p")
        assert upgrade(owner, app_password="a", data_dir=tmp_path).before is None
        assert upgrade(owner, app_password="b", data_dir=tmp_path).before == head_revision()
        assert check(app_url(owner, "b")).ready
        assert not check(app_url(owner, "a")).ready
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def test_the_tables_in_code_are_the_tables_of_the_migrations(database: MigratedDatabase) -> None:
    engine = create_engine(driver_url(database.owner_url))

    def included(_: object, name: str | None, kind: str, __: bool, ___: object) -> bool:
        return not (kind == "table" and "_y2" in (name or "") or (name or "").endswith("_default"))

    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_object": included,
                "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
                "version_table_schema": SCHEMA,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        differences = compare_metadata(context, Base.metadata)
    engine.dispose()
    assert differences == []


def test_the_command_line(
    empty_database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("INSTAR_DATABASE_URL", raising=False)
    assert main(["upgrade"]) == 2
    monkeypatch.setenv("DATABASE_URL", empty_database)
    assert main(["check"]) == 1
    assert main(["upgrade"]) == 0
    assert main(["check"]) == 0
    printed = capsys.readouterr().out
    assert "not ready: the database is empty" in printed and "(was empty)" in printed
    monkeypatch.setenv("DATABASE_URL", "mysql://somewhere/db")
    assert main(["upgrade"]) == 1
    assert "names 'mysql'" in capsys.readouterr().err


def test_a_database_that_is_away_is_a_store_error_without_the_password() -> None:
    url = "postgresql://who:very-secret@127.0.0.1:9/nothing"
    with pytest.raises(StoreError, match="Nothing was changed") as raised:
        upgrade(url)
    assert "very-secret" not in str(raised.value)
    assert "cannot be reached" in check(url).reason
