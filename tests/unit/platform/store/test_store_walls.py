"""The second wall: what the application's login cannot do, whatever the code above it forgets."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

from instar.store.artifacts import ArtifactRef, Draft, create_version, resolve
from instar.store.audit import SYSTEM, AuditEntry, append_audit, first_broken_link
from instar.store.projects import create_project
from instar.store.session import Database
from instar.store.system import ensure_partitions, find_project, list_projects
from instar.store.testing import MigratedDatabase
from instar_core.errors import InstarError, NotFoundError, StoreError

pytestmark = pytest.mark.postgres


def _tables(database: MigratedDatabase) -> list[str]:
    return [
        str(row[0])
        for row in database.query(
            "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid "
            "where c.relnamespace = 'instar'::regnamespace and c.relkind in ('r', 'p') "
            "and a.attname = 'project_id' and not a.attisdropped and not c.relispartition "
            # Nobody's to read, whatever the project: see test_sessions_are_reached_by_functions.
            "and c.relname <> 'session' "
            "order by 1"
        )
    ]


async def _two_projects(db: Database, first: str) -> str:
    """Puts one prompt into each of two projects; returns the second project's id."""
    second = await create_project(db, "other")
    for project in (first, second):
        async with db.transaction(project) as session:
            draft = Draft(project.encode(), "text/plain; charset=utf-8", SYSTEM)
            await create_version(session, ArtifactRef(project, "prompt", "greeting"), draft)
    return second


def test_every_table_and_partition_has_a_forced_policy(database: MigratedDatabase) -> None:
    rows = database.query(
        "select c.relname, c.relrowsecurity, c.relforcerowsecurity, "
        "(select count(*) from pg_policy p where p.polrelid = c.oid) from pg_class c "
        "where c.relnamespace = 'instar'::regnamespace and c.relkind in ('r', 'p')"
    )
    free = {"installation", "alembic_version"}
    walled = {name for name, enabled, forced, count in rows if enabled and forced and count == 1}
    assert {row[0] for row in rows} - walled == free
    assert any(name.startswith("effect_y2") for name in walled)


def test_dropping_the_filter_reads_nothing_across_projects(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        second = await _two_projects(db, database.project_id)
        for mine, other in ((database.project_id, second), (second, database.project_id)):
            async with db.transaction(mine) as session:
                names = await session.execute(text("select project_id from artifact"))
                assert {str(row[0]) for row in names} == {mine}
                blobs = await session.execute(
                    text("select convert_from(content, 'utf8') from blob")
                )
                assert [row[0] for row in blobs] == [mine]
                stolen = await session.execute(
                    text("update artifact set description = 'x' where project_id = :other"),
                    {"other": other},
                )
                assert stolen.rowcount == 0  # type: ignore[attr-defined]

    database.run(work)


def test_unset_and_emptied_projects_read_nothing(database: MigratedDatabase) -> None:
    tables = _tables(database)
    assert len(tables) > 30

    async def work(db: Database) -> None:
        await _two_projects(db, database.project_id)
        async with db.system() as session:
            for table in tables:
                if table != "sealed_task":
                    found = await session.scalar(text(f"select count(*) from instar.{table}"))
                    assert found == 0, table
            assert await session.scalar(text("select count(*) from project")) == 0
            # The pool gave a connection on which a project had been set: it holds an empty string.
            assert await session.scalar(text("select current_setting('app.project', true)")) in (
                "",
                None,
            )

    database.run(work)


def test_a_pooled_connection_forgets_its_project(database: MigratedDatabase) -> None:
    async def work(_: Database) -> None:
        db = Database(database.app_url, pool_size=1)
        try:
            await _two_projects(db, database.project_id)
            async with db.transaction(database.project_id) as session:
                before = await session.scalar(text("select pg_backend_pid()"))
                assert await session.scalar(text("select count(*) from artifact")) == 1
            async with db.system() as session:
                assert await session.scalar(text("select pg_backend_pid()")) == before
                assert await session.scalar(text("select count(*) from artifact")) == 0
        finally:
            await db.close()

    database.run(work)


def test_writing_into_another_project_is_refused(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        second = await create_project(db, "other")
        with pytest.raises(StoreError, match="row-level security"):
            async with db.transaction(database.project_id) as session:
                draft = Draft(b"x", "text/plain; charset=utf-8", SYSTEM)
                await create_version(session, ArtifactRef(second, "prompt", "greeting"), draft)

    database.run(work)


def test_s4_same_name_in_two_projects_is_two_things(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        second = await _two_projects(db, database.project_id)
        digests = set()
        for project in (database.project_id, second):
            async with db.transaction(project) as session:
                found = await resolve(session, ArtifactRef(project, "prompt", "greeting"))
                digests.add(found.version.blob_digest)
                assert found.version.project_id == project
        assert len(digests) == 2
        async with db.transaction(second) as session:
            with pytest.raises(NotFoundError, match="no prompt named 'greeting'"):
                await resolve(session, ArtifactRef(database.project_id, "prompt", "greeting"))

    database.run(work)


@pytest.mark.parametrize(
    "statement",
    [
        "create table instar.mine (id int)",
        "create table public.mine (id int)",
        "alter table instar.artifact disable row level security",
        "drop table instar.artifact",
        "alter table instar.audit_event no force row level security",
        "truncate instar.run_event",
        "update instar.audit_event set actor = 'nobody'",
        "delete from instar.audit_event",
        "insert into instar.audit_event (id) values (gen_random_uuid())",
        "update instar.audit_head set seq = 0",
        "delete from instar.audit_head",
        "update instar.audit_checkpoint set hash = ''",
        "delete from instar.audit_checkpoint",
        "insert into instar.audit_checkpoint (seq) values (1)",
        "update instar.audit_sealed set seq = 0",
        "update instar.label_event set actor = 'nobody'",
        "delete from instar.version",
        "update instar.version set number = 9",
        "update instar.blob set content = ''",
        "update instar.message set content = '1'",
        "update instar.task set split = 'train'",
        "select * from instar.sealed_task",
        "select * from instar.effect_default",
        "select instar.create_partitions(1, now())",
        "set role instar_owner",
        "set role instar_definer",
        "create role mallory superuser",
        "copy (select 1) to program 'true'",
    ],
)
def test_the_application_role_may_not(database: MigratedDatabase, statement: str) -> None:
    with psycopg.connect(database.app_url, autocommit=True) as connection:
        connection.execute("select set_config('app.project', %s, false)", (database.project_id,))
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedObject)):
            connection.execute(statement.encode())


def test_the_application_may_insert_into_every_table_of_a_project(
    database: MigratedDatabase,
) -> None:
    may_not = database.query(
        "select c.relname from pg_class c where c.relnamespace = 'instar'::regnamespace "
        "and c.relkind in ('r', 'p') and not c.relispartition and not ("
        "has_table_privilege('instar_app', c.oid, 'insert') and (c.relname = 'sealed_task' "
        "or has_table_privilege('instar_app', c.oid, 'select'))) order by 1"
    )
    through_functions = {
        *("audit_event", "audit_head", "audit_sealed", "audit_checkpoint"),
        *("login_failure", "session", "sign_in", "user"),
    }
    assert {row[0] for row in may_not} == {"alembic_version", "installation"} | through_functions


def test_the_roles_are_what_the_design_says(database: MigratedDatabase) -> None:
    rows = database.query(
        "select rolname, rolcanlogin, rolbypassrls, rolsuper, rolcreaterole, rolcreatedb "
        "from pg_roles where rolname like 'instar%' order by 1"
    )
    assert rows == [
        ("instar_app", True, False, False, False, False),
        ("instar_definer", False, True, False, False, False),
        ("instar_owner", False, False, False, False, False),
    ]
    owned = database.query(
        "select count(*) from pg_class c where pg_get_userbyid(c.relowner) <> 'instar_owner' "
        "and c.relnamespace = 'instar'::regnamespace"
    )
    assert owned == [(0,)]
    wrong = database.query(
        "select proname from pg_proc where pronamespace = 'instar'::regnamespace and prosecdef "
        "and (pg_get_userbyid(proowner) not in ('instar_definer', 'instar_owner') "
        "or not coalesce(array_to_string(proconfig, ',') like '%search_path%', false))"
    )
    assert wrong == []
    # After the migration the definer role cannot make anything either.
    assert database.query("select has_schema_privilege('instar_definer', 'instar', 'create')") == [
        (False,)
    ]


def test_the_audit_chain_holds_and_shows_where_it_was_broken(database: MigratedDatabase) -> None:
    project = database.project_id

    async def fill(db: Database) -> None:
        for step in range(4):
            async with db.transaction(project) as session:
                entry = AuditEntry(action="test", subject=str(step), details={"b": step, "a": None})
                await append_audit(session, project, entry, SYSTEM)

    async def broken(db: Database) -> int | None:
        async with db.transaction(project) as session:
            return await first_broken_link(session, project)

    database.run(fill)
    assert database.run(broken) is None
    database.query("update audit_event set subject = '9' where seq = 3")
    assert database.run(broken) == 3


def test_parallel_audit_writers_make_one_chain(database: MigratedDatabase) -> None:
    import asyncio

    project = database.project_id

    async def work(db: Database) -> int | None:
        async def write(step: int) -> None:
            async with db.transaction(project) as session:
                entry = AuditEntry(action="test", subject=str(step))
                await append_audit(session, project, entry, SYSTEM)

        await asyncio.gather(*(write(step) for step in range(12)))
        async with db.transaction(project) as session:
            return await first_broken_link(session, project)

    assert database.run(work) is None
    assert database.query("select max(seq), count(*) from audit_event") == [(12, 12)]


def test_system_sessions_find_projects_by_name_alone(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        second = await create_project(db, "other")
        async with db.system() as session:
            assert await find_project(session, "test") == database.project_id
            assert await find_project(session, "none") is None
            assert set(await list_projects(session)) == {database.project_id, second}

    database.run(work)


def test_partitions_are_made_ahead_and_default_catches_the_rest(
    database: MigratedDatabase,
) -> None:
    # An id far in the past is in no month's partition.
    old = "01000000-0000-7000-8000-000000000001"

    async def work(db: Database) -> int:
        async with db.transaction(database.project_id) as session:
            await session.execute(
                text(
                    "insert into run_event (run_id, seq, project_id, kind) "
                    "values (cast(:run as uuid), 1, cast(:project as uuid), 'x')"
                ),
                {"run": old, "project": database.project_id},
            )
        async with db.system() as session:
            made = await ensure_partitions(session, months_ahead=8)
        async with db.system() as session:
            assert await ensure_partitions(session, months_ahead=8) == 0
        return made

    parents = database.query("select count(*) from pg_partitioned_table")[0][0]
    made: Any = database.run(work)
    assert made > 0 and made % parents == 0
    assert database.query("select count(*) from run_event_default") == [(1,)]
    current = "select to_char(now() at time zone 'utc', '\"_y\"YYYY\"m\"MM')"
    part = database.query(current)[0][0]
    names = database.query("select relname from pg_class where relname = 'effect' || %s", part)
    assert names == [(f"effect{part}",)]


def test_a_month_whose_rows_are_in_default_is_left_there(database: MigratedDatabase) -> None:
    far = database.query("select instar.uuid_floor(now() + interval '7 months')")[0][0]
    database.query(
        "insert into run_event (run_id, seq, project_id, kind) values (%s, 1, %s, 'x')",
        far,
        database.project_id,
    )

    async def work(db: Database) -> int:
        async with db.system() as session:
            return await ensure_partitions(session, months_ahead=8)

    before = database.query(
        "select count(*) from pg_class where relname like 'run_event_y%%' and relkind = 'r'"
    )
    assert database.run(work) > 0
    after = database.query(
        "select count(*) from pg_class where relname like 'run_event_y%%' and relkind = 'r'"
    )
    other = database.query(
        "select count(*) from pg_class where relname like 'effect_y%%' and relkind = 'r'"
    )
    assert other[0][0] - after[0][0] == 1
    assert after[0][0] > before[0][0]
    assert database.query("select count(*) from run_event_default") == [(1,)]


def test_insufficient_rights_become_a_store_error(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        async with db.transaction(database.project_id) as session:
            await session.execute(text("select content from sealed_task"))

    with pytest.raises(InstarError, match="permission denied for table sealed_task"):
        database.run(work)
    # The login that could not read it is no owner of anything.
    with psycopg.connect(database.app_url) as connection:
        query = sql.SQL("select count(*) from pg_class where relowner = current_user::regrole")
        assert connection.execute(query).fetchone() == (0,)
