"""Roles: who may do what in the database, made before the first migration and checked before each.

``instar_owner`` owns the schema and may do nothing else, ``instar_app`` is what the service logs in
as, ``instar_definer`` owns the few functions that look across projects. Roles belong to the whole
server, so they may exist already, made by an administrator with the SQL that a refusal shows.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import psycopg
from psycopg import sql
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, ProgrammingError

from instar.store.urls import APP_ROLE, DEFINER_ROLE, OWNER_ROLE
from instar_core.errors import PrerequisiteError

__all__ = ["is_missing_login", "prepare_roles", "roles_sql"]

_ATTRIBUTES = {
    OWNER_ROLE: "nologin nosuperuser nobypassrls",
    APP_ROLE: "login nosuperuser nobypassrls nocreatedb nocreaterole",
    DEFINER_ROLE: "nologin nosuperuser bypassrls",
}


class _Login(NamedTuple):
    name: str
    is_super: bool
    may_create: bool


def roles_sql(login: str, database: str) -> str:
    """The SQL that an administrator runs where the given login cannot create roles."""
    user, base = _identifier(login), _identifier(database)
    return "\n".join(
        [
            f"create role {OWNER_ROLE} {_ATTRIBUTES[OWNER_ROLE]};",
            f"create role {APP_ROLE} {_ATTRIBUTES[APP_ROLE]} password 'choose-one';",
            f"create role {DEFINER_ROLE} {_ATTRIBUTES[DEFINER_ROLE]};",
            f"grant {OWNER_ROLE}, {DEFINER_ROLE} to {user};",
            f"grant connect, create on database {base} to {user};",
            f"grant connect on database {base} to {APP_ROLE};",
        ]
    )


def prepare_roles(connection: Connection, app_password: str | None) -> None:
    """Makes the three roles where they are missing, and sets the application's password.

    Args:
        connection: A connection of the owning login, in a transaction.
        app_password: Password for ``instar_app``; ``None`` leaves it as it is.

    Raises:
        PrerequisiteError: If a role is missing or wrong and this login may not put it right; the
            message holds the SQL to run.
    """
    login = _read_login(connection)
    present = _present_roles(connection)
    missing = [name for name in _ATTRIBUTES if name not in present]
    if missing and not login.may_create:
        _refuse(connection, login, f"the role {missing[0]!r} is missing and it may not create it")
    for name in missing:
        _run(connection, f"create role {name} {_ATTRIBUTES[name]}")
        if not login.is_super and name != APP_ROLE:
            _run(connection, f"grant {name} to {_identifier(login.name)}")
    _check_attributes(connection, login)
    if app_password is not None:
        _set_password(connection, app_password)


def _read_login(connection: Connection) -> _Login:
    name, is_super, creates, bypasses, version = connection.execute(
        text(
            "select rolname, rolsuper, rolcreaterole, rolbypassrls, "
            "current_setting('server_version_num')::integer from pg_roles "
            "where rolname = current_user"
        )
    ).one()
    # Only a superuser may create a role that bypasses row-level security; since PostgreSQL 16 also
    # a role that bypasses it itself.
    delegated = creates and bypasses and version >= 160_000
    return _Login(str(name), bool(is_super), bool(is_super or delegated))


def _present_roles(connection: Connection) -> set[str]:
    rows = connection.execute(
        text("select rolname from pg_roles where rolname = any(:names)"),
        {"names": list(_ATTRIBUTES)},
    )
    return {str(row[0]) for row in rows}


def _check_attributes(connection: Connection, login: _Login) -> None:
    """Refuses an application role that sees past the walls, or roles this login cannot take."""
    rows = connection.execute(
        text(
            "select rolname, rolbypassrls, rolsuper, pg_has_role(current_user, oid, 'MEMBER') "
            "from pg_roles where rolname = any(:names)"
        ),
        {"names": list(_ATTRIBUTES)},
    )
    for name, bypasses, is_super, member in rows:
        wanted = name == DEFINER_ROLE
        if bool(bypasses) != wanted or is_super:
            word = "bypassrls" if wanted else "nobypassrls"
            _refuse(connection, login, f"the role {name!r} must be nosuperuser {word}")
        if not member and name != APP_ROLE:
            _refuse(connection, login, f"it is not a member of the role {name!r}")


def _set_password(connection: Connection, password: str) -> None:
    statement = sql.SQL("alter role {} password {}").format(
        sql.Identifier(APP_ROLE), sql.Literal(_verifier(connection, password))
    )
    try:
        with connection.begin_nested():
            _run(connection, statement.as_string())
    except ProgrammingError:
        # Made by an administrator, who chose its password: the login test afterwards decides.
        return


def _verifier(connection: Connection, password: str) -> str:
    """What the server keeps of a password: a refused statement lands in its log, words and all."""
    driver = cast("psycopg.Connection[object]", connection.connection.driver_connection)
    return driver.pgconn.encrypt_password(
        password.encode(), APP_ROLE.encode(), b"scram-sha-256"
    ).decode("ascii")


def _run(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _identifier(name: str) -> str:
    return sql.Identifier(name).as_string()


def _refuse(connection: Connection, login: _Login, why: str) -> None:
    database = str(connection.execute(text("select current_database()")).scalar_one())
    raise PrerequisiteError(
        f"the database login {login.name!r} cannot set Instar up: {why}.",
        remedy="Run this as an administrator, then start again:\n"
        + roles_sql(login.name, database),
    )


def is_missing_login(error: DBAPIError) -> bool:
    """Whether a connection failed because the role or its password is wrong."""
    words = str(error.orig)
    return "password authentication failed" in words or f'role "{APP_ROLE}" does not exist' in words
