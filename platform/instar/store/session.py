"""Sessions: the only way to the database, one transaction of one project at a time.

The project is set for the transaction alone (``set_config(…, true)``); without it the row-level
policies show no rows. A session of :meth:`Database.system` sees no project's rows at all; it calls
the definer functions in :mod:`instar.store.system`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import psycopg
from sqlalchemy import event, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.ext.asyncio import async_sessionmaker as session_maker

from instar.store.contents import MAX_CONTENT_BYTES
from instar.store.tables import SCHEMA
from instar.store.urls import driver_url, without_password
from instar_core.errors import ConflictError, InvalidContent, StoreError

__all__ = ["Database", "as_store_error", "is_retryable"]

T = TypeVar("T")

_REMEDY = (
    "Nothing that was committed is lost. See that PostgreSQL runs (`instar status`), then repeat; "
    "a night goes on by itself once the database is back."
)
# A statement whose client is gone (killed, or it gave up while the statement was being sent) would
# go on holding its locks; the server looks every two seconds, where its platform can.
_SETTINGS = f"""
set search_path = {SCHEMA}, pg_temp;
set lock_timeout = '30s';
set idle_in_transaction_session_timeout = '10min';
do $$ begin
  perform set_config('client_connection_check_interval', '2s', false);
exception when invalid_parameter_value then null;
end $$
"""
# Serialization failure and deadlock: PostgreSQL asks for the same transaction once more.
# A lock that was not to be had in time is worth another try as well.
_RETRYABLE = frozenset({"40001", "40P01", "55P03"})
_READ_ONLY = frozenset({"25006"})
_FULL = frozenset({"53100", "53200"})


class Database:
    """The application's door to PostgreSQL. One per process and event loop; close it at the end.

    Args:
        app_url: URL of the role ``instar_app``.
        pool_size: Connections kept; as many again may be opened for a burst.
        max_content_bytes: Limit of one artifact content.
    """

    def __init__(
        self,
        app_url: str,
        *,
        pool_size: int = 5,
        max_content_bytes: int = MAX_CONTENT_BYTES,
    ) -> None:
        self.url = app_url
        url = driver_url(app_url)
        self._where = without_password(url)
        self._engine: AsyncEngine = create_async_engine(
            url,
            pool_size=pool_size,
            max_overflow=pool_size,
            pool_pre_ping=True,
            pool_timeout=30,
            # Errors name the statement, never what was in it.
            hide_parameters=True,
            connect_args={"connect_timeout": 10, "application_name": "instar"},
        )
        event.listen(self._engine.sync_engine, "connect", _prepare_connection)
        # What store functions must know of the installation travels with the session.
        info = {"max_content_bytes": max_content_bytes}
        self._sessions = session_maker(self._engine, expire_on_commit=False, info=info)

    @asynccontextmanager
    async def transaction(self, project_id: str) -> AsyncIterator[AsyncSession]:
        """One transaction in which only one project's rows exist; commits unless the block raises.

        Args:
            project_id: The project; its rows alone can be read and written.

        Raises:
            StoreError: If the database is away, read-only or full. Whether a commit that broke off
                took place is unknown; writers use keys so that repeating is safe.
            ConflictError: If a uniqueness or reference rule of the database was broken.
            InvalidContent: If a value cannot be stored as it is (NUL, numbers out of range).
        """
        async with self._guarded() as session:
            await session.execute(
                text("select set_config('app.project', :project, true)"), {"project": project_id}
            )
            yield session

    @asynccontextmanager
    async def snapshot(self, project_id: str) -> AsyncIterator[AsyncSession]:
        """A transaction of one project in which every statement sees the same moment.

        Raises:
            StoreError: As :meth:`transaction`; also when a row that is written has changed since.
        """
        async with self._guarded() as session:
            await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            await session.execute(
                text("select set_config('app.project', :project, true)"), {"project": project_id}
            )
            yield session

    @asynccontextmanager
    async def system(self) -> AsyncIterator[AsyncSession]:
        """One transaction of no project: no project's rows are visible, definer functions work."""
        async with self._guarded() as session:
            yield session

    async def run(self, project_id: str, work: Callable[[AsyncSession], Awaitable[T]]) -> T:
        """Runs ``work`` in a transaction, once more if PostgreSQL asks for that (deadlock etc.).

        Args:
            project_id: The project of the transaction.
            work: Reads and writes through the session it gets; has no other effect, since it may
            run
                twice.

        Raises:
            StoreError: As :meth:`transaction`; also when the second try met the same trouble.
        """
        try:
            async with self.transaction(project_id) as session:
                return await work(session)
        except StoreError as error:
            if not is_retryable(error):
                raise
        async with self.transaction(project_id) as session:
            return await work(session)

    async def close(self) -> None:
        """Closes every connection."""
        await self._engine.dispose()

    @asynccontextmanager
    async def _guarded(self) -> AsyncIterator[AsyncSession]:
        try:
            async with self._sessions.begin() as session:
                yield session
        except IntegrityError as error:
            raise ConflictError(
                f"the database refused the change: {_words(error)}.",
                remedy="Read the present state and try again.",
            ) from error
        except DataError as error:
            # No state of the database: the same value is refused for ever, so waiting is no use.
            raise InvalidContent(
                f"a value cannot be stored as it is: {_words(error)}.",
                remedy="Correct it: no NUL characters, and numbers within 64 bits.",
            ) from error
        except DBAPIError as error:
            raise as_store_error(error, self._where) from error
        except (psycopg.Error, OSError) as error:
            raise StoreError(
                f"the database {self._where} cannot be reached: {error}.", remedy=_REMEDY
            ) from error


def as_store_error(error: DBAPIError, where: str = "") -> StoreError:
    """The store error that says what a driver error means, with the remedy."""
    state = getattr(error.orig, "sqlstate", None)
    if state in _FULL:
        return StoreError(
            f"the database {where} has no space left: {_words(error)}.",
            remedy="Free disk space, then repeat; nothing that was committed is lost.",
        )
    if state in _READ_ONLY:
        return StoreError(
            f"the database {where} is read-only: {_words(error)}.",
            remedy="Point DATABASE_URL at the primary server.",
        )
    if state in _RETRYABLE:
        return StoreError(
            f"another transaction was in the way: {_words(error)}.", remedy="Repeat the request."
        )
    if error.connection_invalidated or state is None or state[:2] in ("08", "57"):
        return StoreError(f"the database {where} is away: {_words(error)}.", remedy=_REMEDY)
    return StoreError(
        f"the database {where} refused a statement: {_words(error)}.",
        remedy="Run `python -m instar.store.migrate check`; if the schema is current, report this.",
    )


def is_retryable(error: StoreError) -> bool:
    """Whether PostgreSQL itself asked for the transaction to be tried again."""
    cause = error.__cause__
    return isinstance(cause, DBAPIError) and getattr(cause.orig, "sqlstate", None) in _RETRYABLE


def _words(error: DBAPIError) -> str:
    return (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0].rstrip(".")


def _prepare_connection(connection: object, _record: object) -> None:
    """Settings of each new connection: names without the schema, and an end to every wait.

    The ORM always names the schema; hand-written SQL need not.
    """
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute(_SETTINGS)
    cursor.close()
    connection.commit()  # type: ignore[attr-defined]
