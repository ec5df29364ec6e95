"""Migrating: brings a database to this version's schema, once, whole, and never by accident.

An upgrade is one transaction under an advisory lock: killed half way it leaves nothing, run again
it continues, run twice at once the second finds nothing to do. The application itself never
migrates; it checks the revision and stays not ready, with the reason, when it is another.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from instar.redaction import redact_text
from instar.store.roles import is_missing_login, prepare_roles
from instar.store.tables import SCHEMA
from instar.store.urls import APP_ROLE, OWNER_ROLE, app_url, driver_url, without_password
from instar_core.errors import InstarError, PrerequisiteError, StoreError

__all__ = [
    "MARKER",
    "UNREACHABLE",
    "Readiness",
    "Upgraded",
    "check",
    "head_revision",
    "known_revisions",
    "main",
    "upgrade",
]

MARKER = "installation.json"
"""File in the data directory that says a database was set up here, and which."""

UNREACHABLE = "the database cannot be reached"
"""How a reason begins where the schema could not even be looked at."""

_COMMAND = "instar db upgrade"
# Every start makes the next months' partitions; a service that runs longer does so by itself.
_MONTHS_AHEAD = 2
_LOCK = "select pg_advisory_xact_lock(hashtextextended('instar.migrate', 0))"


class Upgraded(NamedTuple):
    """What an upgrade did: the revisions before (``None``: empty database) and after."""

    before: str | None
    after: str
    installation: str


class Readiness(NamedTuple):
    """Whether the application may serve from this database, and if not, why."""

    ready: bool
    reason: str = ""


def head_revision() -> str:
    """The newest schema revision that this version of Instar knows."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None, "the package ships at least one revision"
    return head


def upgrade(
    owner_url: str, *, app_password: str | None = None, data_dir: Path | None = None
) -> Upgraded:
    """Brings the database to the newest revision. Transactional, re-runnable, one at a time.

    Args:
        owner_url: A login that owns the database (or a superuser).
        app_password: Password to give ``instar_app``; ``None`` where it has one already.
        data_dir: Where the installation's marker is kept; without it the marker is neither checked
            nor written.

    Raises:
        PrerequisiteError: If the roles cannot be made, the database is empty although the marker
        says
            that data existed, or the database is of a newer Instar.
        StoreError: If the database cannot be reached, or fails meanwhile.
    """
    url = driver_url(owner_url)
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.begin() as connection:
            result = _upgrade(connection, app_password, data_dir)
    except DBAPIError as error:
        raise StoreError(
            f"setting up the database {without_password(url)} failed: {_first_line(error)}.",
            remedy="Nothing was changed. Check that the database runs and accepts this login, and "
            "run the upgrade again.",
        ) from error
    finally:
        engine.dispose()
    if app_password is not None:
        _check_login(owner_url, app_password)
    if data_dir is not None:
        _write_marker(data_dir, result.installation)
    return result


def check(url: str) -> Readiness:
    """Whether the schema is exactly this version's; the application serves nothing otherwise.

    Args:
        url: The application's URL (any login that may read ``alembic_version``).
    """
    target = driver_url(url)
    engine = create_engine(target, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            current = _current(connection)
    except DBAPIError as error:
        return Readiness(False, f"{UNREACHABLE}: {_first_line(error)}")
    finally:
        engine.dispose()
    head = head_revision()
    if current == head:
        return Readiness(True)
    if current is None:
        return Readiness(False, f"the database is empty; run `{_COMMAND}`")
    if current not in known_revisions():
        return Readiness(False, _newer(current))
    return Readiness(
        False,
        f"the database has schema revision {current!r}, this version needs {head!r}; run "
        f"`{_COMMAND}`",
    )


def _upgrade(connection: Connection, app_password: str | None, data_dir: Path | None) -> Upgraded:
    connection.execute(text(_LOCK))
    before = _current(connection)
    if before is not None and before not in known_revisions():
        raise PrerequisiteError(
            f"{_newer(before)}.", remedy="Install that version of Instar; nothing was changed."
        )
    marker = _read_marker(data_dir)
    if before is None and marker is not None:
        raise PrerequisiteError(
            f"the database is empty, but {data_dir}/{MARKER} says that installation {marker} kept "
            "its data in one.",
            remedy="Point DATABASE_URL (or the data directory) at the database that was used "
            f"before, or delete {MARKER} to begin anew.",
        )
    prepare_roles(connection, app_password)
    database = connection.dialect.identifier_preparer.quote(
        str(connection.execute(text("select current_database()")).scalar_one())
    )
    connection.exec_driver_sql(f"create schema if not exists {SCHEMA} authorization {OWNER_ROLE}")
    connection.exec_driver_sql(f"grant connect on database {database} to {APP_ROLE}")
    connection.exec_driver_sql(f"set local role {OWNER_ROLE}")
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.exec_driver_sql(f"set local role {OWNER_ROLE}")
    connection.execute(
        text(f"select {SCHEMA}.create_partitions(:months, clock_timestamp())"),
        {"months": _MONTHS_AHEAD},
    )
    installation = str(
        connection.execute(text(f"select id from {SCHEMA}.installation")).scalar_one()
    )
    if marker is not None and marker != installation:
        raise PrerequisiteError(
            f"the database belongs to installation {installation}, the data directory {data_dir} "
            f"to {marker}.",
            remedy="Use the database and the data directory that belong together.",
        )
    return Upgraded(before, head_revision(), installation)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    return config


def known_revisions() -> set[str]:
    """Every schema revision that this version can upgrade from."""
    script = ScriptDirectory.from_config(_config())
    return {revision.revision for revision in script.walk_revisions()}


def _current(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
    return context.get_current_revision()


def _newer(revision: str) -> str:
    return (
        f"the database has schema revision {revision!r}, which this version of Instar does not "
        "know: a newer version wrote it"
    )


def _check_login(owner_url: str, app_password: str) -> None:
    url = driver_url(app_url(owner_url, app_password))
    engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            connection.execute(text("select 1"))
    except OperationalError as error:
        if not is_missing_login(error):
            raise StoreError(f"the database went away: {_first_line(error)}.") from error
        raise PrerequisiteError(
            f"the role {APP_ROLE!r} does not accept the password that Instar was given.",
            remedy=f"Run `alter role {APP_ROLE} password '…'` with the password configured here.",
        ) from error
    finally:
        engine.dispose()


def _read_marker(data_dir: Path | None) -> str | None:
    if data_dir is None or not (data_dir / MARKER).exists():
        return None
    try:
        return str(json.loads((data_dir / MARKER).read_text(encoding="utf-8"))["installation"])
    except (ValueError, KeyError, TypeError) as error:
        raise PrerequisiteError(
            f"{data_dir / MARKER} cannot be read: {error}.",
            remedy="Restore the file from a backup, or delete it to begin with an empty database.",
        ) from error


def _write_marker(data_dir: Path, installation: str) -> None:
    """Writes the marker whole or not at all (a rename), and only when it changes."""
    if _read_marker(data_dir) == installation:
        return
    data_dir.mkdir(parents=True, exist_ok=True)
    temporary = data_dir / f".{MARKER}.{os.getpid()}"
    temporary.touch(mode=0o600)
    temporary.write_text(json.dumps({"installation": installation}) + "\n", encoding="utf-8")
    temporary.replace(data_dir / MARKER)


def _first_line(error: DBAPIError) -> str:
    return (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0].rstrip(".")


def main(arguments: list[str] | None = None) -> int:
    """Command line: ``upgrade`` or ``check``; DATABASE_URL, INSTAR_APP_PASSWORD, INSTAR_DATA_DIR.

    Returns:
        The exit code: 0 when the schema is (now) this version's.
    """
    words = sys.argv[1:] if arguments is None else arguments
    url = os.environ.get("INSTAR_DATABASE_URL") or os.environ.get("DATABASE_URL")
    if words not in (["upgrade"], ["check"]) or not url:
        print("usage: DATABASE_URL=postgresql://… python -m instar.store.migrate upgrade|check")
        return 2
    if words == ["check"]:
        readiness = check(url)
        print("ready" if readiness.ready else f"not ready: {readiness.reason}")
        return 0 if readiness.ready else 1
    marker_dir = os.environ.get("INSTAR_DATA_DIR")
    try:
        done = upgrade(
            url,
            app_password=os.environ.get("INSTAR_APP_PASSWORD"),
            data_dir=Path(marker_dir) if marker_dir else None,
        )
    except InstarError as error:
        print(redact_text(f"error: {error}"), file=sys.stderr)
        return 1
    print(f"schema revision {done.after} (was {done.before or 'empty'})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
