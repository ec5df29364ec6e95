"""Recovery: making a database ready for a dump, and settling what must not outlive a restore."""

from __future__ import annotations

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.job_ends import expire_leases
from instar.store.roles import prepare_roles
from instar.store.session import Database
from instar.store.system import list_projects
from instar.store.tables import SCHEMA
from instar.store.urls import driver_url, without_password
from instar_core.errors import PrerequisiteError, StoreError

__all__ = ["prepare_target", "record_everywhere", "settle"]


def prepare_target(owner_url: str, app_password: str | None, unfinished: str | None) -> int:
    """Makes an empty database ready for a dump: the roles exist, and nothing else does.

    Args:
        owner_url: A superuser's login; others may not give objects to their owners.
        app_password: Password for the application's role; ``None`` leaves it as it is.
        unfinished: The installation that a restore which did not end was bringing here; what it
            left is removed.

    Returns:
        The server's major version.

    Raises:
        PrerequisiteError: The database holds an installation, or the login may not restore.
        StoreError: The database cannot be reached.
    """
    url = driver_url(owner_url)
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.begin() as connection:
            major = _require_superuser(connection)
            _require_empty(connection, unfinished)
            prepare_roles(connection, app_password)
            return major
    except DBAPIError as error:
        raise StoreError(
            f"the database {without_password(url)} cannot be prepared: {error.orig}.",
            remedy="See that it runs and accepts this login, and try again.",
        ) from error
    finally:
        engine.dispose()


def _require_superuser(connection: Connection) -> int:
    login, is_super, major = connection.execute(
        text(
            "select current_user::text, rolsuper, "
            "current_setting('server_version_num')::integer / 10000 "
            "from pg_roles where rolname = current_user"
        )
    ).one()
    if not is_super:
        raise PrerequisiteError(
            f"the login {login!r} may not restore: only a superuser gives tables and functions "
            "back to the roles that own them.",
            remedy="Name a superuser's login with DATABASE_URL for this command; the service "
            "itself goes on with its own.",
        )
    return int(major)


def _require_empty(connection: Connection, unfinished: str | None) -> None:
    there = connection.scalar(
        text("select to_regnamespace(:schema) is not null"), {"schema": SCHEMA}
    )
    if not there:
        return
    known = connection.scalar(text("select to_regclass('instar.installation') is not null"))
    installation = (
        connection.scalar(text("select id::text from instar.installation")) if known else ""
    )
    if unfinished is not None and installation == unfinished:
        connection.exec_driver_sql(f"drop schema {SCHEMA} cascade")
        return
    raise PrerequisiteError(
        f"the database is not empty: it has a schema {SCHEMA!r}"
        + (f" of installation {installation}." if installation else ".")
        + " Nothing was changed.",
        remedy="Name an empty database with DATABASE_URL.",
    )


async def settle(owner_url: str) -> None:
    """Ends what was alive at the moment of the backup: leases and console sessions.

    Args:
        owner_url: A superuser's login.
    """
    db = Database(owner_url, pool_size=1)
    try:
        async with db.system() as session:
            await session.execute(
                text(
                    "update instar.session set revoked_at = clock_timestamp() "
                    "where revoked_at is null"
                )
            )
            await session.execute(text("delete from instar.sign_in"))
            projects = await list_projects(session)
        for project_id in projects:
            async with db.transaction(project_id) as session:
                await expire_leases(session, "")
    finally:
        await db.close()


async def record_everywhere(owner_url: str, entry: AuditEntry, by: Author) -> None:
    """Appends one event to the chain of every project.

    Args:
        owner_url: The owner's login.
        entry: What happened to the whole installation.
        by: Who did it.

    Raises:
        StoreError: A chain cannot be written; the caller must not go on.
    """
    db = Database(owner_url, pool_size=1)
    try:
        async with db.system() as session:
            projects = await list_projects(session)
        for project_id in projects:
            async with db.transaction(project_id) as session:
                await append_audit(session, project_id, entry, by)
    finally:
        await db.close()
