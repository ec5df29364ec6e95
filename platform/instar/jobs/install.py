"""The set-up step of every start: schema, project, key for the command line, old leases.

Run as ``python -m instar.jobs.install`` by the supervisor, once the database answers and before
anything uses it. It may run again after a crash at any point.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psycopg
from psycopg import sql

from instar.audit.keys import ensure_signing_key
from instar.embedded.files import private_write
from instar.embedded.layout import Layout
from instar.embedded.postgres import PostgresServer
from instar.jobs.install_secrets import install_secrets
from instar.jobs.leases import free_leases
from instar.jobs.reconciler import Reconciler
from instar.jobs.runner import database_url
from instar.redaction import redact_text
from instar.settings import Settings, load_settings, prepare_process
from instar.store import projects
from instar.store.audit import Author
from instar.store.migrate import upgrade
from instar.store.session import Database
from instar_core.errors import InstarError, PermissionDenied, StoreError

__all__ = ["install", "main"]

_DATABASE = "instar"
_KEY_NAME = "command line of this machine"
_AUTHOR = Author(kind="system", name="instar up")


async def install(settings: Settings) -> str:
    """Brings database, project and key up to this version.

    Args:
        settings: Settings of this process; without ``database_url`` the embedded server's.

    Returns:
        The schema revision that the database has now.

    Raises:
        PrerequisiteError: The database is of a newer version, empty although data existed, or its
            login may not set it up.
        StoreError: The database cannot be reached.
    """
    layout = Layout(settings.data_dir.expanduser().absolute())
    owner_url = settings.database_url or _embedded_database(layout)
    done = await asyncio.to_thread(
        upgrade,
        owner_url,
        app_password=os.environ.get("INSTAR_APP_PASSWORD"),
        data_dir=layout.data_dir,
    )
    db = Database(database_url(settings), pool_size=1)
    try:
        project_id = await projects.ensure_project(db, settings.project)
        await _ensure_key(db, project_id, layout.api_key)
        if settings.worker.name:
            await free_leases(db, settings.worker.name)
        await asyncio.to_thread(ensure_signing_key, settings)
        await install_secrets(db, settings, _AUTHOR)
        # Before anything accepts work: what former workers left is queued, dead or cancelled.
        await Reconciler(db).reap()
    finally:
        await db.close()
    kind = "external" if settings.database_url else "embedded"
    marker = layout.read_marker()
    layout.write_marker(marker.model_copy(update={"database": kind, "schema_revision": done.after}))
    return done.after


def _embedded_database(layout: Layout) -> str:
    """The superuser's address of the service's database, made when it is missing."""
    server = PostgresServer(layout.postgres)
    try:
        with psycopg.connect(server.dsn(), autocommit=True, connect_timeout=10) as connection:
            found = connection.execute(
                "select 1 from pg_database where datname = %s", [_DATABASE]
            ).fetchone()
            if found is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(_DATABASE)))
    except psycopg.Error as error:
        raise StoreError(
            f"the embedded database cannot be reached: {error}.",
            remedy=f"See {layout.logs / 'postgres.log'}.",
        ) from error
    return server.dsn(_DATABASE)


async def _ensure_key(db: Database, project_id: str, path: Path) -> None:
    """Makes sure that the key file of this machine holds a key that opens the project."""
    known = _read_key(path)
    if known:
        try:
            owner = await projects.resolve_api_key(db, known)
            if owner.project_id == project_id:
                return
        except PermissionDenied:
            print(f"the key in {path} is not valid any more; a new one is made", file=sys.stderr)
    async with db.transaction(project_id) as session:
        # A crash after an earlier commit left a key that nobody holds.
        for row in await projects.list_api_keys(session, project_id):
            if row.name == _KEY_NAME and row.revoked_at is None:
                await projects.revoke_api_key(session, project_id, row.id, _AUTHOR)
        new = projects.NewKey(name=_KEY_NAME, role="admin", instance=True)
        created = await projects.create_api_key(session, project_id, new, _AUTHOR)
    private_write(path, created.key + "\n")


def _read_key(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def main() -> int:
    """Runs the step; 1 with the cause and the remedy when it cannot be done."""
    prepare_process()
    try:
        revision = asyncio.run(install(load_settings()))
    except InstarError as error:
        print(redact_text(f"error: {error}"), file=sys.stderr)
        return 1
    print(f"schema revision {revision}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
