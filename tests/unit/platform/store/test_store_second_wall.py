"""The second wall, table by table and function by function: the API's own filter is left out."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import text

import instar.store
from instar.store.artifacts import ArtifactRef
from instar.store.audit import SYSTEM
from instar.store.passwords import hash_password
from instar.store.projects import NewKey, create_api_key, create_project, hash_key
from instar.store.session import Database
from instar.store.sessions import find_session, list_user_projects, open_session, switch_session
from instar.store.testing import MigratedDatabase
from instar.store.users import NewUser, add_user, find_login, list_users
from instar_core.base import new_id
from instar_core.errors import InstarError, NotFoundError, PermissionDenied, StoreError

pytestmark = pytest.mark.postgres
# What looks across projects, or past the application's own rights. A new one is added here by who
# has asked: what does it tell that its caller may not know?
DEFINERS = {
    *("find_project", "list_projects", "find_api_key", "has_credential"),
    *("claim_job", "claim_next_job", "list_due_jobs", "reap_jobs", "pull_outbox"),
    *("read_sealed_tasks", "count_sealed_missing", "copy_tasks", "ensure_partitions"),
    *("try_login", "clear_login", "find_login", "find_user", "find_subject", "create_user"),
    *("link_subject", "list_user_projects", "open_session", "find_session", "switch_session"),
    *("end_session", "end_user_sessions", "set_password", "keeps_admin", "disable_user"),
    *("begin_sign_in", "take_sign_in"),
    *("append_audit", "lock_audit_head"),
}


def tables(database: MigratedDatabase) -> list[str]:
    """Every table with rows of projects."""
    rows = database.query(
        "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid "
        "where c.relnamespace = 'instar'::regnamespace and c.relkind in ('r', 'p') "
        "and a.attname = 'project_id' and not a.attisdropped and not c.relispartition order by 1"
    )
    return [str(row[0]) for row in rows]


def fill(database: MigratedDatabase, project: str) -> dict[str, tuple[str, list[Any]]]:
    """Puts one row of a project into every table; the statement that did, by table."""
    made: dict[str, tuple[str, list[Any]]] = {}
    with psycopg.connect(database.owner_url, autocommit=True) as connection:
        # Rows need not refer to anything: what is tested is whether they can be seen.
        connection.execute("set session_replication_role = replica")
        for table in tables(database):
            columns = {**_needed(database, table), "project_id": project}
            words = sql.SQL("insert into instar.{} ({}) values ({})").format(
                sql.Identifier(table),
                sql.SQL(", ").join(sql.Identifier(name) for name in columns),
                sql.SQL(", ").join(sql.Placeholder() for _ in columns),
            )
            connection.execute(words, list(columns.values()))
            made[table] = (words.as_string(connection), list(columns.values()))
    return made


def _needed(database: MigratedDatabase, table: str) -> dict[str, Any]:
    """Values for the columns that have no default."""
    columns = database.query(
        "select column_name, data_type from information_schema.columns "
        "where table_schema = 'instar' and table_name = %s and is_nullable = 'NO' "
        "and column_default is null",
        table,
    )
    checks = database.query(
        "select pg_get_constraintdef(oid) from pg_constraint "
        "where conrelid = ('instar.' || quote_ident(%s))::regclass and contype = 'c'",
        table,
    )
    values: dict[str, Any] = {}
    for name, kind in columns:
        plain: dict[str, Any] = {
            "uuid": new_id(),
            "json": "{}",
            "jsonb": "{}",
            "bytea": b"x",
            "timestamp with time zone": "2026-01-01T00:00:00Z",
        }
        value = plain.get(kind, "x" if kind in ("text", "character varying") else 1)
        for (check,) in checks:
            allowed = re.search(rf"\b{name}\b.*?'([^']*)'", check)
            if value == "x" and allowed is not None:
                value = allowed.group(1)
        values[name] = value
    return values


def test_a33_no_table_shows_takes_or_loses_a_row_of_another_project(
    database: MigratedDatabase,
) -> None:
    other = database.run(lambda db: create_project(db, "other"))
    rows = fill(database, other)
    assert len(rows) >= 38
    with psycopg.connect(database.app_url, autocommit=True) as connection:

        def ask(statement: str, *values: Any) -> int:
            """Rows of a statement; -1 where the application may not send it."""
            try:
                return connection.execute(statement.encode(), values).rowcount
            except psycopg.errors.InsufficientPrivilege:
                return -1

        use = "select set_config('app.project', %s, false)"
        for table, (insert, values) in rows.items():
            connection.execute(use, (database.project_id,))
            for statement in (
                f'select 1 from instar."{table}"',
                f"select 1 from instar.\"{table}\" where project_id = '{other}'",
                f'update instar."{table}" set project_id = project_id',
                f"delete from instar.\"{table}\" where project_id = '{other}'",
            ):
                seen = ask(statement)
                mine = f"project_id = '{database.project_id}'"
                own = database.query(f'select count(*) from "{table}" where {mine}')[0][0]
                assert seen <= own, (table, statement)
            assert ask(insert, *values) == -1, table
            # The row is there: its own project sees it, where anybody may.
            connection.execute(use, (other,))
            assert ask(f'select 1 from instar."{table}"') != 0, table
    left = {table: database.query(f'select count(*) from "{table}"')[0][0] for table in rows}
    assert all(left.values()), left


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function of the store that reads with a session."""
    for module in pkgutil.iter_modules(instar.store.__path__):
        if module.name.startswith(("migrat", "testing")):
            continue
        loaded = importlib.import_module(f"instar.store.{module.name}")
        for name in getattr(loaded, "__all__", ()):
            found = getattr(loaded, name)
            if not inspect.iscoroutinefunction(found) or found.__module__ != loaded.__name__:
                continue
            if name.startswith(("list_", "read_", "find_", "search_", "page_", "resolve", "count")):
                yield f"{module.name}.{name}", found


def test_a33_no_store_function_reads_another_project_whatever_it_is_asked(
    database: MigratedDatabase,
) -> None:
    other = database.run(lambda db: create_project(db, "other"))
    fill(database, other)
    places = {
        "run_id": "select id from evolution_run",
        "version_id": "select id from version",
        "user_id": "select user_id from role_binding",
        "key_id": "select id from api_key",
        "set_version_id": "select version_id from task",
        "rollout_id": "select id from rollout",
    }
    ids = {name: str(database.query(query)[0][0]) for name, query in places.items()}
    known: dict[str, Any] = {
        "project_id": other,
        "project": other,
        "ref": ArtifactRef(other, "x", "x"),
        **dict.fromkeys(("name", "kind", "agent", "label", "stream", "key"), "x"),
        **ids,
    }
    nobody = {
        name: new_id() if isinstance(value, str) and value != "x" else value
        for name, value in known.items()
    }
    nobody["ref"] = ArtifactRef(nobody["project_id"], "x", "x")
    called: list[str] = []

    async def work(db: Database) -> None:
        for name, function in functions():
            parameters = list(inspect.signature(function).parameters.values())
            needed = [one.name for one in parameters if one.default is inspect.Parameter.empty]
            if needed[:1] != ["session"] or not set(needed[1:]) <= set(known) or len(needed) < 2:
                continue
            if not {"project_id", "ref", *ids} & set(needed):
                continue
            called.append(name)
            told = [
                await _answer(db, database.project_id, function, needed, one)
                for one in (known, nobody)
            ]
            assert told[0] == told[1], name

    database.run(work)
    assert len(called) >= 15, called


async def _answer(
    db: Database, project: str, function: Any, needed: list[str], asked: dict[str, Any]
) -> str:
    """What a function answers in a project, without the ids that were asked for and moments."""
    try:
        async with db.transaction(project) as session:
            found = await function(session, **{name: asked[name] for name in needed[1:]})
    except NotFoundError as error:
        found = error
    answer = repr(found)
    for value in asked.values():
        if len(str(value)) == 36:
            answer = answer.replace(str(value), "…")
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z?", "…", answer)


def test_the_functions_that_look_across_projects_are_these(database: MigratedDatabase) -> None:
    rows = database.query(
        "select proname from pg_proc where pronamespace = 'instar'::regnamespace and prosecdef "
        "and has_function_privilege('instar_app', oid, 'execute')"
    )
    extra = {str(row[0]) for row in rows} - DEFINERS
    # Those of secrets and of the audit trail are tested where they live.
    assert {name for name in extra if not re.search("secret|audit|checkpoint", name)} == set()
    public = database.query(
        "select p.proname from pg_proc p, aclexplode(p.proacl) a "
        "where p.pronamespace = 'instar'::regnamespace and a.grantee = 0"
    )
    assert public == []
    unset = database.query(
        "select proname from pg_proc where pronamespace = 'instar'::regnamespace "
        "and prosecdef and proacl is null"
    )
    assert unset == []


def test_people_are_seen_where_they_work_and_their_sessions_nowhere_else(
    database: MigratedDatabase,
) -> None:
    async def work(db: Database) -> None:
        other = await create_project(db, "other")
        hashed = await hash_password("plum kettle orbit 7")
        people = {}
        for project, email in ((database.project_id, "a@x.org"), (other, "b@x.org")):
            async with db.transaction(project) as session:
                new = NewUser(email, password_hash=hashed)
                people[email] = await add_user(session, project, new, "admin", SYSTEM)
        async with db.transaction(database.project_id) as session:
            assert [one.email for one in await list_users(session, other)] == []
            rows = await session.execute(text('select email from "user"'))
            assert [row[0] for row in rows] == ["a@x.org"]
            found = await list_users(session, database.project_id)
            assert [one.email for one in found] == ["a@x.org"]
        # A session is opened only where its person has a role, and leads only there.
        bea = people["b@x.org"].id
        with pytest.raises(PermissionDenied):
            async with db.transaction(database.project_id) as session:
                await open_session(session, database.project_id, bea, 60.0, "test")
        async with db.transaction(other) as session:
            opened = await open_session(session, other, bea, 60.0, "test")
        async with db.system() as session:
            assert not await switch_session(session, opened.secret, database.project_id)
            held = await find_session(session, opened.secret, 60.0)
            assert held is not None and (held.project_id, held.role) == (other, "admin")
            assert [one.id for one in await list_user_projects(session, bea)] == [other]
            assert await find_session(session, hash_key(opened.secret), 60.0) is None
            assert await find_login(session, "c@x.org") is None

    database.run(work)


def test_a33_nobody_is_shut_out_or_given_a_password_from_another_project(
    database: MigratedDatabase,
) -> None:
    async def work(db: Database) -> None:
        other = await create_project(db, "other")
        async with db.transaction(other) as session:
            new = NewUser("b@x.org", password_hash="before")
            bea = (await add_user(session, other, new, "viewer", SYSTEM)).id
        values = {"user": bea}
        for statement, refused in (
            ("select instar.set_password(cast(:user as uuid), 'after')", False),
            ("select instar.disable_user(cast(:user as uuid))", "unknown"),
        ):
            async with db.transaction(database.project_id) as session:
                assert await session.scalar(text(statement), values) == refused
            async with db.system() as session:
                assert await find_login(session, "b@x.org") == (bea, "before")
        async with db.transaction(other) as session:
            set_it = text("select instar.set_password(cast(:user as uuid), 'after')")
            assert await session.scalar(set_it, values) is True
            disable = text("select instar.disable_user(cast(:user as uuid))")
            assert await session.scalar(disable, values) == "done"

    database.run(work)


@pytest.mark.parametrize(
    "statement",
    [
        'select password_hash from instar."user"',
        'select * from instar."user"',
        "select * from instar.session",
        "select * from instar.sign_in",
        "select * from instar.login_failure",
        'update instar."user" set instance = true',
        "insert into instar.session (id, hash, user_id) values (gen_random_uuid(), '', null)",
        "select instar.admin_left(gen_random_uuid(), gen_random_uuid())",
    ],
)
def test_s101b_no_statement_reads_a_password_or_a_session(
    database: MigratedDatabase, statement: str
) -> None:
    async def work(db: Database) -> None:
        async with db.transaction(database.project_id) as session:
            await session.execute(text(statement))

    with pytest.raises(StoreError, match="permission denied"):
        database.run(work)


def test_an_archived_projects_keys_and_people_are_let_in_no_more(
    database: MigratedDatabase,
) -> None:
    async def work(db: Database) -> str:
        async with db.transaction(database.project_id) as session:
            made = await create_api_key(session, database.project_id, NewKey("k"), SYSTEM)
        return made.key

    from instar.store.projects import resolve_api_key

    key = database.run(work)
    database.query("update project set deleted_at = now()")
    with pytest.raises(InstarError, match="not valid"):
        database.run(lambda db: resolve_api_key(db, key))
