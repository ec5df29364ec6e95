"""Place: the installation's database, reached while the service runs and while it does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from instar.embedded.detach import read_running
from instar.embedded.layout import Layout
from instar.embedded.postgres import PostgresServer
from instar.settings import Settings
from instar_core.errors import PrerequisiteError

__all__ = ["DATABASE", "layout_of", "owner_database"]

DATABASE = "instar"


def layout_of(settings: Settings) -> Layout:
    """The data directory of these settings."""
    return Layout(settings.data_dir.expanduser().absolute())


@contextmanager
def owner_database(settings: Settings) -> Iterator[str]:
    """The owner's address of the database; an embedded server that is down runs meanwhile.

    Raises:
        PrerequisiteError: There is no installation, or its database is elsewhere.
    """
    layout = layout_of(settings)
    layout.refuse_unfinished()
    if layout.marker.exists():
        kept = layout.read_marker().database
        if kept == "external" and not settings.database_url:
            raise PrerequisiteError(
                f"the installation in {str(layout.data_dir)!r} keeps its data in a database of "
                "its own, and DATABASE_URL is not set.",
                remedy="Set DATABASE_URL as for `instar up`.",
            )
    if settings.database_url:
        yield settings.database_url
        return
    if not (layout.postgres / "cluster").exists():
        raise PrerequisiteError(
            f"there is no installation in {str(layout.data_dir)!r}.",
            remedy="Name its directory with INSTAR_DATA_DIR, or set DATABASE_URL.",
        )
    server = PostgresServer(layout.postgres, log_path=layout.logs / "postgres.log")
    if read_running(settings) is not None:
        yield server.dsn(DATABASE)
        return
    server.start()
    try:
        yield server.dsn(DATABASE)
    finally:
        server.stop()
