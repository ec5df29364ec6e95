"""Staging: the directory and database in which a restore works before they count as anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import psycopg

from instar.backup.manifest import Manifest
from instar.backup.place import DATABASE
from instar.embedded.files import private_write, sync_filesystem
from instar.embedded.layout import Layout, Marker, Secrets
from instar.embedded.pg_stale import clear_stale_server
from instar.embedded.postgres import PostgresServer
from instar.settings import Settings
from instar.store.recovery import prepare_target
from instar_core.errors import PrerequisiteError, StoreError

__all__ = ["Staging", "require_empty"]

_KEPT = frozenset({"models", "logs", "supervisor.lock", "restoring.json"})
"""What a restore leaves alone: weights, logs, the lock that it holds, and its own note."""


def require_empty(layout: Layout) -> None:
    """Refuses a directory that holds anything but an unfinished restore.

    Raises:
        PrerequisiteError: It holds something; names it.
    """
    # A restore that did not end has no marker yet: where there is one, the note is no licence.
    unfinished = layout.restoring.exists() and not layout.marker.exists()
    if not layout.data_dir.exists() or unfinished:
        return
    held = sorted(item.name for item in layout.data_dir.iterdir() if item.name not in _KEPT)
    if held:
        what = "an installation" if "instar.json" in held else "other files"
        raise PrerequisiteError(
            f"{str(layout.data_dir)!r} is not empty: it holds {what} ({held[0]!r}). Nothing was "
            "changed.",
            remedy="Restore into a new directory: INSTAR_DATA_DIR=… instar restore FILE.",
        )


class Staging:
    """A data directory that is being filled. ``begin`` first, ``finish`` last; the lock is held.

    Args:
        settings: Settings of this process; with ``database_url`` the database is elsewhere.
        layout: The directory.
    """

    def __init__(self, settings: Settings, layout: Layout) -> None:
        self._settings = settings
        self._layout = layout
        self._server: PostgresServer | None = None
        self.secrets = Secrets()
        self.url = ""

    @property
    def app_password(self) -> str | None:
        """The password to give the application's role; ``None`` where it has its own login."""
        if self._settings.database_url and self._settings.app_database_url:
            return None
        return self.secrets.app_password

    def begin(self, manifest: Manifest) -> None:
        """Says that a restore is under way, clears what an earlier one left, opens the database.

        Raises:
            PrerequisiteError: The directory cannot be written, or the database is not empty.
            StoreError: The database cannot be reached.
        """
        layout = self._layout
        before = self._unfinished()
        note = {"backup": manifest.id, "installation": manifest.installation}
        private_write(layout.restoring, json.dumps(note) + "\n")
        self._clear()
        private_write(layout.secrets, self.secrets.model_dump_json(indent=1) + "\n")
        if self._settings.database_url:
            self.url = self._settings.database_url
        else:
            self._server = PostgresServer(layout.postgres, log_path=layout.logs / "postgres.log")
            self._server.start()
            _create_database(self._server.dsn())
            self.url = self._server.dsn(DATABASE)
        server = prepare_target(self.url, self.app_password, before)
        if server < manifest.server:
            raise PrerequisiteError(
                f"the backup comes from PostgreSQL {manifest.server}, and this server is {server}.",
                remedy=f"Restore into PostgreSQL {manifest.server} or later.",
            )

    def finish(self, revision: str, installed_at: Marker | None) -> None:
        """Turns the directory into an installation, by one rename, when all of it is on disk."""
        layout = self._layout
        self.close()
        kind = "external" if self._settings.database_url else "embedded"
        base = installed_at or Marker()
        marker = Marker(installed_at=base.installed_at, database=kind, schema_revision=revision)
        private_write(layout.restoring, marker.model_dump_json(indent=1) + "\n")
        sync_filesystem(layout.data_dir)
        layout.restoring.rename(layout.marker)
        sync_filesystem(layout.data_dir)

    def close(self) -> None:
        """Stops the server that ``begin`` started."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _unfinished(self) -> str | None:
        """The installation that an earlier, unfinished restore was bringing here."""
        try:
            note = json.loads(self._layout.restoring.read_text(encoding="utf-8"))
            return str(note["installation"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _clear(self) -> None:
        cluster = self._layout.postgres / "cluster"
        if cluster.exists():
            clear_stale_server(cluster, self._layout.socket_dir)
        for item in self._layout.data_dir.iterdir():
            if item.name in _KEPT:
                continue
            _remove(item)


def _remove(item: Path) -> None:
    if item.is_dir() and not item.is_symlink():
        shutil.rmtree(item)
    else:
        item.unlink()


def _create_database(url: str) -> None:
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as connection:
            connection.execute(f"create database {DATABASE}")
    except psycopg.Error as error:
        raise StoreError(f"the new database server cannot be used: {error}.") from error
