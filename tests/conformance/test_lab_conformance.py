"""The Lab's conformance suite on the books in memory: holding objects, and through JSON text."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from instar_core.evolution import Event
from instar_core.lab import Journal, SealedBook
from instar_core.tasks import Task
from instar_core.usage import Amount, Remaining
from instar_evolvers.lab import Budget, MemoryBook, MemoryJournal, Tape
from instar_evolvers.lab.conformance import (
    ACCEPTANCE,
    CHECKS,
    check_kills,
    rehearsal_hash,
    run_once,
)
from instar_evolvers.lab.rehearsal import Keep, Keeping, rehearsal_tasks


class MemoryKeeping:
    """A tape, a budget and a book that outlive the journals on them."""

    def __init__(self, limit: Remaining, sealed: Sequence[Task], *, text: bool) -> None:
        self._tape = Tape()
        self._budget = Budget(limit)
        self._book = MemoryBook(sealed, ACCEPTANCE, seed=3)
        self._text = text

    async def journal(self) -> Journal:
        """A journal that takes the tape over when it opens."""
        return MemoryJournal(tape=self._tape, budget=self._budget, json_round_trip=self._text)

    async def book(self) -> SealedBook:
        """The one book."""
        return self._book

    async def spent(self) -> Amount:
        """What the budget booked."""
        assert self._budget.overrun == 0
        return self._budget.spent

    async def effects(self) -> int:
        """Finished effects."""
        return len(self._tape.finished)

    async def events(self) -> list[Event]:
        """The tape's events."""
        return list(self._tape.events)


def memory_keep(*, text: bool) -> Keep:
    """A factory of places in memory."""

    @asynccontextmanager
    async def keep(limit: Remaining, sealed: Sequence[Task]) -> AsyncIterator[Keeping]:
        yield MemoryKeeping(limit, sealed, text=text)

    return keep


@pytest.mark.parametrize("text", [False, True], ids=["objects", "json"])
@pytest.mark.parametrize("name", list(CHECKS))
def test_memory_conforms(name: str, text: bool) -> None:
    keep = memory_keep(text=text)
    if name == "kills":
        asyncio.run(check_kills(keep, 7 if text else 5))
    else:
        asyncio.run(CHECKS[name](keep))


@pytest.mark.slow
def test_memory_survives_a_kill_at_every_write() -> None:
    asyncio.run(check_kills(memory_keep(text=False)))


def print_rehearsal_hash() -> None:
    """Runs the rehearsal once and prints what it came to (used by a process of its own)."""

    async def run() -> str:
        async with memory_keep(text=True)(Remaining(), rehearsal_tasks("sealed", 16)) as kept:
            return rehearsal_hash((await run_once(kept, weather=11)).trail)

    print(asyncio.run(run()))


def test_outcome_does_not_depend_on_the_hash_seed() -> None:
    code = f"import runpy; runpy.run_path({os.path.abspath(__file__)!r})['print_rehearsal_hash']()"
    printed = set()
    for seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        printed.add(done.stdout.strip())
    assert len(printed) == 1 and len(printed.pop()) == 64
