"""The driver: executes one evolution run under a lease, from wherever its record stands to an end.

Baseline, search, sealed test, promotion: plain sequential code over the durable Lab, run again from
the top after every interruption. A run ends in exactly one of the terminal states, with the reason
in words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.backends import check_backend, check_proposer, open_backend
from instar.evolution.context import JobContext
from instar.evolution.ending import end_run
from instar.evolution.facts import Ending, RunFacts, read_facts
from instar.evolution.journal import JournalConfig, PostgresJournal
from instar.evolution.pinning import evolver_digest
from instar.evolution.retry import StorePatience, with_patience
from instar.evolution.search import Search, SearchParts
from instar.store import effects
from instar.store.evolution import read_evolution_run, update_run
from instar_core.errors import (
    BudgetExhausted,
    InfrastructureError,
    InstarError,
    LeaseLost,
    PrerequisiteError,
    RunCancelled,
)
from instar_core.evolution import Event
from instar_core.lab import Evolver
from instar_evolvers.registry import open_evolver

__all__ = ["execute", "open_planned_evolver"]

T = TypeVar("T")
_NO_FIELD = object()


def open_planned_evolver(facts: RunFacts) -> Evolver:
    """The run's evolver; a search that the quote cut short is told so, and plans with it."""
    name, config = facts.spec.evolver, facts.spec.evolver_config
    evolver = open_evolver(name, config)
    given = facts.quote.assumptions.get("search_rollouts")
    wanted: Any = getattr(getattr(evolver, "config", None), "search_rollouts", _NO_FIELD)
    if not isinstance(given, int) or wanted is _NO_FIELD:
        return evolver
    if wanted is not None and wanted <= given:
        return evolver
    return open_evolver(name, {**config, "search_rollouts": given})


class _Leaving(InstarError):
    """The worker was told to stop; whether a person cancelled the run is still to be read."""


async def execute(context: JobContext) -> None:
    """Runs an evolution run to its end, or from where it stopped.

    Returns when the run is over, or waits for other code. What it has recorded is kept in any case.

    Args:
        context: The lease and what belongs to it.

    Raises:
        LeaseLost: Another worker holds the run; nothing more was written.
        InfrastructureError: Something outside is away, or this worker shuts down; the run can be
            taken up again.
        Exception: A fault of the program; the run is marked as failed.
    """
    patience = StorePatience()
    facts = await with_patience(
        lambda: read_facts(context), patience, "Reading the run to be executed"
    )
    if facts is not None:
        await _Attempt(context, facts, patience).run()


class _Attempt:
    """One attempt at a run, under one token."""

    def __init__(self, context: JobContext, facts: RunFacts, patience: StorePatience) -> None:
        self._context = context
        self._facts = facts
        self._patience = patience
        self._journal = PostgresJournal(
            context.db,
            JournalConfig(
                project_id=context.project_id,
                run_id=context.run_id,
                job_id=context.job_id,
                token=context.fencing_token,
                budgets=facts.budgets,
                patience=patience,
            ),
        )

    async def run(self) -> None:
        """See :func:`execute`."""
        facts = self._facts
        evolver = open_planned_evolver(facts)
        digest = evolver_digest(evolver)
        if facts.evolver_digest not in ("", digest):
            await self._wait_for_code()
            return
        await self._fenced(lambda session: self._take_up(session, digest))
        search: Search | None = None
        try:
            await self._check_backend()
            check_proposer(evolver, facts.backend, self._context.settings)
            async with open_backend(
                facts.backend, self._context.db, self._context.settings, journalled=True
            ) as backend:
                parts = SearchParts(
                    self._context, facts, evolver, backend, self._journal, self._should_stop
                )
                search = Search(parts)
                ending = await search.run()
        except (LeaseLost, InfrastructureError):
            raise
        except (RunCancelled, _Leaving) as error:
            await self._leave(search, error)
        except BudgetExhausted as error:
            await self._end(search, Ending("budget_exhausted", str(error)))
        except InstarError as error:
            await self._end(search, Ending("failed", str(error)))
        except Exception as error:
            await self._end(search, Ending("failed", f"{type(error).__name__}: {error}"))
            raise
        else:
            await self._end(search, ending)

    async def _check_backend(self) -> None:
        """Checks again what the quote checked: the world may have changed since.

        Raises:
            InfrastructureError: If a model cannot be asked now; it may well come back.
        """
        facts, context = self._facts, self._context
        try:
            await check_backend(
                facts.backend, context.db, context.settings, facts.splits.validation
            )
        except PrerequisiteError as error:
            raise InfrastructureError(error.message, remedy=error.remedy) from error

    def _should_stop(self) -> bool:
        if self._context.lease_lost():
            raise LeaseLost(f"The lease of run {self._context.run_id} is lost.")
        if self._context.cancelled():
            # A cancelled run closes its sealed test, a worker that leaves must not; which of the
            # two it is stands in the database.
            raise _Leaving("The worker was told to stop.")
        return False

    async def _leave(self, search: Search | None, error: InstarError) -> None:
        """Ends a run that a person cancelled; gives one back whose worker only shuts down."""
        asked = isinstance(error, RunCancelled)
        if not asked:
            asked = await with_patience(self._cancel_asked, self._patience, "Reading the run")
        if not asked:
            raise InfrastructureError(
                "The worker shuts down.", remedy="The run goes on with the next worker."
            )
        await self._end(search, Ending("cancelled", "A person cancelled the run."))

    async def _cancel_asked(self) -> bool:
        context = self._context
        async with context.db.transaction(context.project_id) as session:
            lock = await effects.lock_run(
                session, context.run_id, context.job_id, context.fencing_token
            )
            return lock.cancel_requested

    async def _end(self, search: Search | None, ending: Ending) -> None:
        """Closes everything that is open and writes the end."""
        if not self._journal.opened:
            await self._journal.open()
        if search is not None:
            await search.close()
        recorder = None if search is None else search.recorder
        await end_run(self._context, self._facts, self._journal, ending, recorder)

    async def _take_up(self, session: AsyncSession, digest: str) -> None:
        row = await read_evolution_run(session, self._context.run_id)
        values: dict[str, object] = {
            "state": "running",
            "reason": "",
            "evolver_digest": digest,
            "attempts": row.attempts + 1,
        }
        if row.started_at is None:
            values["started_at"] = datetime.now(UTC)
        await update_run(session, row.id, **values)

    async def _wait_for_code(self) -> None:
        """Lets the run wait: its evolver's code is not what it began with."""
        reason = (
            f"The run began with other code of the evolver {self._facts.spec.evolver!r} "
            f"({self._facts.evolver_digest[:12]}); this worker cannot go on without changing what "
            "was recorded. Resume it with a worker of that version, or restart it."
        )

        async def wait(session: AsyncSession) -> None:
            # Without its job the run waits for a person; a new job is added when it is resumed.
            await update_run(
                session, self._context.run_id, state="interrupted", reason=reason, job_id=None
            )

        await self._journal.open()
        await self._journal.tell(Event(kind="waiting", message=reason))
        await self._fenced(wait)

    async def _fenced(self, work: Callable[[AsyncSession], Awaitable[T]]) -> T:
        """One transaction under the run's lock and token; ``work`` may be repeated."""
        context = self._context

        async def attempt() -> T:
            async with context.db.transaction(context.project_id) as session:
                await effects.lock_run(
                    session, context.run_id, context.job_id, context.fencing_token
                )
                return await work(session)

        return await with_patience(attempt, self._patience, "Writing the run's state")
