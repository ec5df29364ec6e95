"""Kinds of jobs for the tests: each does one thing that a night can do, and leaves a trace of it.

Imported by the worker's process (``--include probe_jobs``) and by the tests in their own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from instar.evolution.context import JobContext
from instar.jobs.kinds import register_kind
from instar.store.jobs import check_fence
from instar_core.errors import LeaseLost, ModelError, RunCancelled

FOLDER = "INSTAR_PROBE_FOLDER"


def _note(words: str) -> None:
    """Appends one line to the trace, in one write."""
    with (Path(os.environ[FOLDER]) / "trace").open("a", encoding="utf-8") as trace:
        trace.write(words + "\n")


def _exists(name: str) -> bool:
    return (Path(os.environ[FOLDER]) / name).exists()


async def count(context: JobContext) -> None:
    """Says that it ran."""
    _note(f"count {context.fencing_token} {os.getpid()}")


async def wait(context: JobContext) -> None:
    """Writes under its fence again and again until it is released or told to stop."""
    _note(f"begin {context.fencing_token} {os.getpid()}")
    while not _exists("release"):
        if context.cancelled():
            raise RunCancelled("told to stop")
        try:
            async with context.db.transaction(context.project_id) as session:
                await check_fence(session, context.job_id, context.fencing_token)
        except LeaseLost:
            _note(f"lost {context.fencing_token}")
            raise
        await asyncio.sleep(0.02)
    _note(f"end {context.fencing_token}")


async def stubborn(context: JobContext) -> None:
    """Never looks whether it should stop."""
    _note(f"begin {context.fencing_token} {os.getpid()}")
    await asyncio.Event().wait()


async def wrong(context: JobContext) -> None:
    """Fails by a mistake of its own."""
    raise ZeroDivisionError("the mean of nothing")


async def away(context: JobContext) -> None:
    """Fails by something outside."""
    raise ModelError("the provider is away.")


async def offline(context: JobContext) -> None:
    """Works without the database until it is released."""
    _note(f"begin {context.fencing_token} {os.getpid()}")
    while not _exists("release"):  # noqa: ASYNC110 - a file, not an event
        await asyncio.sleep(0.02)


async def poison(context: JobContext) -> None:
    """Kills the process that runs it."""
    _note(f"poison {context.fencing_token}")
    os.kill(os.getpid(), signal.SIGKILL)


async def stolen(context: JobContext) -> None:
    """Waits until its lease is somebody else's, then fails for another reason."""
    while not context.lease_lost():  # noqa: ASYNC110 - a flag, not an event
        await asyncio.sleep(0.02)
    raise ZeroDivisionError("too late to matter")


for _kind in (count, wait, stubborn, wrong, away, offline, poison, stolen):
    register_kind(f"probe.{_kind.__name__}", f"probe_jobs:{_kind.__name__}")
