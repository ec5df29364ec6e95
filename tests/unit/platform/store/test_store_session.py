"""Sessions and projects: trouble with the database is a StoreError with a remedy, never silence."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import Author
from instar.store.projects import (
    NewKey,
    create_api_key,
    create_project,
    ensure_project,
    list_api_keys,
    read_project,
    resolve_api_key,
    revoke_api_key,
    update_project_settings,
)
from instar.store.servers import delete_server, list_servers, put_server, read_server
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import new_id
from instar_core.errors import (
    ConflictError,
    NotFoundError,
    PermissionDenied,
    PrerequisiteError,
    StoreError,
    UserError,
)

pytestmark = pytest.mark.postgres

ANNA = Author("person", "anna")


def _kick_everybody(database: MigratedDatabase) -> None:
    database.query(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid()"
    )


def test_a_connection_lost_in_a_transaction_is_a_store_error(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        with pytest.raises(StoreError, match="is away.*Nothing that was committed is lost") as told:
            async with db.transaction(database.project_id) as session:
                await session.execute(text("select 1"))
                await asyncio.to_thread(_kick_everybody, database)
                await session.execute(text("select 1"))
        assert "only-for-tests" not in str(told.value)
        # The next transaction gets a fresh connection.
        async with db.transaction(database.project_id) as session:
            assert await session.scalar(text("select 1")) == 1

    database.run(work)


def test_a_connection_lost_before_the_commit_is_a_store_error(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        with pytest.raises(StoreError, match="is away"):
            async with db.transaction(project) as session:
                await session.execute(text("update project set name = 'lost'"))
                await asyncio.to_thread(_kick_everybody, database)

    database.run(work)
    assert database.query("select name from project") == [("test",)]


def test_idle_connections_that_died_are_replaced_unnoticed(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        async with db.system() as session:
            await session.execute(text("select 1"))
        await asyncio.to_thread(_kick_everybody, database)
        async with db.system() as session:
            assert await session.scalar(text("select 1")) == 1

    database.run(work)


def test_a_database_that_does_not_exist_is_a_store_error(database: MigratedDatabase) -> None:
    async def work(_: Database) -> None:
        db = Database(database.app_url.replace(database.name, "nowhere"))
        try:
            async with db.system() as session:
                await session.execute(text("select 1"))
        finally:
            await db.close()

    with pytest.raises(StoreError, match="is away: .*nowhere"):
        database.run(work)


def test_a_server_that_is_not_there_is_a_store_error() -> None:
    async def work() -> None:
        db = Database("postgresql://instar_app:pw@127.0.0.1:9/instar")
        async with db.transaction(new_id()) as session:
            await session.execute(text("select 1"))

    with pytest.raises(StoreError, match="is away.*instar status"):
        asyncio.run(work())


@pytest.mark.parametrize("url", ["nonsense", "mysql://a/b", ""])
def test_urls_that_are_no_postgresql_are_refused(url: str) -> None:
    with pytest.raises(PrerequisiteError, match="postgresql://user:password@host"):
        Database(url)


def test_an_error_of_the_caller_passes_unchanged_and_rolls_back(
    database: MigratedDatabase,
) -> None:
    async def work(db: Database) -> None:
        with pytest.raises(KeyError):
            async with db.transaction(database.project_id) as session:
                await session.execute(text("update project set name = 'lost'"))
                raise KeyError("mine")

    database.run(work)
    assert database.query("select name from project") == [("test",)]


def test_a_transaction_that_was_in_anothers_way_runs_once_more(database: MigratedDatabase) -> None:
    project = database.project_id

    database.query(
        "do $$ begin execute format('alter database %I set default_transaction_isolation = "
        "''repeatable read''', current_database()); end $$"
    )

    async def work(db: Database) -> int:
        tries = 0

        async def change(session: AsyncSession) -> int:
            nonlocal tries
            tries += 1
            await session.execute(text("select name from project"))
            if tries == 1:
                await asyncio.to_thread(database.query, "update project set name = 'theirs'")
            await session.execute(text("update project set name = name || '+mine'"))
            return tries

        return await db.run(project, change)

    assert database.run(work) == 2
    assert database.query("select name from project") == [("theirs+mine",)]


def test_a_cancelled_statement_gives_its_connection_back(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(_: Database) -> None:
        db = Database(database.app_url, pool_size=1)
        running = asyncio.Event()

        async def long() -> None:
            async with db.transaction(project) as session:
                await session.execute(text("update project set name = 'lost'"))
                running.set()
                await session.execute(text("select pg_sleep(300)"))

        try:
            for _round in range(2):
                running.clear()
                task = asyncio.create_task(long())
                await running.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            async with db.transaction(project) as session:
                assert await session.scalar(text("select name from project")) == "test"
        finally:
            await db.close()

    database.run(work)


def test_uniqueness_is_a_conflict(database: MigratedDatabase) -> None:
    with pytest.raises(ConflictError, match="name 'test' is taken"):
        database.run(lambda db: create_project(db, "test"))


@pytest.mark.parametrize("name", ["", "Has Capitals", "-x", "a/b", "x" * 64])
def test_project_names_are_checked(database: MigratedDatabase, name: str) -> None:
    with pytest.raises(UserError, match="cannot be a project's name"):
        database.run(lambda db: create_project(db, name))


def test_ensuring_a_project_makes_it_once(database: MigratedDatabase) -> None:
    async def work(db: Database) -> set[str]:
        return set(await asyncio.gather(*(ensure_project(db, "default") for _ in range(6))))

    made = database.run(work)
    assert len(made) == 1
    assert database.run(lambda db: ensure_project(db, "default")) in made
    assert database.run(lambda db: ensure_project(db, "test")) == database.project_id


def test_project_settings_are_merged_and_audited(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        first: dict[str, object] = {"promotion": "auto", "x": 1}
        for changes in (first, {"promotion": "person"}):
            async with db.transaction(project) as session:
                await update_project_settings(session, project, dict(changes), ANNA)
        async with db.transaction(project) as session:
            row = await read_project(session, project)
            assert row.settings == {"promotion": "person", "x": 1}

    database.run(work)
    assert database.query("select count(*) from audit_event") == [(2,)]


def test_a_key_is_shown_once_and_only_its_hash_is_kept(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> str:
        async with db.transaction(project) as session:
            made = await create_api_key(session, project, NewKey("laptop", "admin"), ANNA)
        owner = await resolve_api_key(db, made.key)
        assert owner[:3] == (project, made.id, "admin")
        for wrong in ("", "instar_", made.key + "x", made.key[:-1], "\u00e9"):
            with pytest.raises(PermissionDenied, match="API key is not valid"):
                await resolve_api_key(db, wrong)
        async with db.transaction(project) as session:
            listed = await list_api_keys(session, project)
            assert [(row.name, made.key.startswith(row.prefix)) for row in listed] == [
                ("laptop", True)
            ]
        async with db.transaction(project) as session:
            await revoke_api_key(session, project, made.id, ANNA)
            with pytest.raises(NotFoundError):
                await revoke_api_key(session, project, new_id(), ANNA)
        with pytest.raises(PermissionDenied):
            await resolve_api_key(db, made.key)
        return made.key

    secret = database.run(work).removeprefix("instar_")
    dump = database.query("select cast(k as text) from api_key k")[0][0]
    audit = str(database.query("select cast(a as text) from audit_event a"))
    assert secret not in dump and secret not in audit


def test_expired_keys_open_nothing(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        past = datetime.now(UTC) - timedelta(seconds=1)
        async with db.transaction(project) as session:
            made = await create_api_key(session, project, NewKey("old", expires_at=past), ANNA)
            with pytest.raises(UserError, match="the role is 'root'"):
                await create_api_key(session, project, NewKey("x", "root"), ANNA)  # type: ignore[arg-type]
            naive = NewKey("x", expires_at=datetime(2030, 1, 1))
            with pytest.raises(UserError, match="has no time zone"):
                await create_api_key(session, project, naive, ANNA)
        with pytest.raises(PermissionDenied):
            await resolve_api_key(db, made.key)

    database.run(work)


def test_tool_servers_are_put_read_and_taken_away(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            await put_server(session, project, "desk", {"command": ["python"]}, ANNA)
            row = await put_server(session, project, "desk", {"command": ["python3"]}, ANNA)
            assert row.config == {"command": ["python3"]}
        async with db.transaction(project) as session:
            assert [row.name for row in await list_servers(session, project)] == ["desk"]
            with pytest.raises(NotFoundError, match="'crm'.*Registered: desk"):
                await read_server(session, project, "crm")
            await delete_server(session, project, "desk", ANNA)
        async with db.transaction(project) as session:
            with pytest.raises(NotFoundError, match="Registered: none"):
                await read_server(session, project, "desk")
            await put_server(session, project, "desk", {"command": ["again"]}, ANNA)

    database.run(work)
    assert database.query("select count(*) from mcp_server") == [(2,)]
