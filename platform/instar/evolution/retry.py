"""Retrying the store: a database that is away for some seconds does not end a run.

Only what is safe to repeat goes through here: reads, and writes that first look whether an earlier
try of theirs committed although its connection broke.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from instar_core.errors import StoreError

__all__ = ["StorePatience", "is_store_trouble", "with_patience"]

T = TypeVar("T")


class StorePatience:
    """How long to wait for a database that is away.

    Args:
        total_s: Seconds after which the trouble is raised.
        first_s: First pause between two tries; each further pause is twice as long.
        most_s: Longest pause.
    """

    def __init__(self, *, total_s: float = 90.0, first_s: float = 0.1, most_s: float = 2.0) -> None:
        self.total_s = total_s
        self.first_s = first_s
        self.most_s = most_s


_PASSING = ("08", "25", "40", "53", "57")
"""Classes of PostgreSQL's states that pass: connection, read-only, conflict, resources,
shutdown."""


def is_store_trouble(error: BaseException) -> bool:
    """Whether an error means that the database is away, restarting or out of resources.

    A statement that it refuses for what it says (a missing table, a bad value) stays refused, and
    is not waited for.
    """
    if isinstance(error, StoreError):
        cause = error.__cause__
        return cause is None or not isinstance(cause, DBAPIError) or is_store_trouble(cause)
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None)
        return error.connection_invalidated or state is None or str(state)[:2] in _PASSING
    return isinstance(error, ConnectionError)


async def with_patience(
    attempt: Callable[[], Awaitable[T]], patience: StorePatience, what: str
) -> T:
    """The result of ``attempt``, repeated with growing pauses while the database is away.

    Raises:
        StoreError: If the database stayed away for the whole patience.
    """
    deadline = time.monotonic() + patience.total_s
    pause = patience.first_s
    while True:
        try:
            return await attempt()
        except Exception as error:
            if not is_store_trouble(error):
                raise
            if time.monotonic() + pause > deadline:
                raise StoreError(
                    f"{what}: the database did not answer for {patience.total_s:.0f} s ({error}).",
                    remedy="Nothing recorded is lost: the run goes on once the database is back.",
                ) from error
        await asyncio.sleep(pause)
        pause = min(patience.most_s, pause * 2)
