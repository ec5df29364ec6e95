"""The Lab's conformance suite on Postgres: the journal, the budgets and the sealed book
together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from instar.evolution.book import BookConfig, PostgresBook
from instar.evolution.journal import JournalConfig, PostgresJournal
from instar.store.agents import save_agent
from instar.store.audit import SYSTEM
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar_core.base import new_id
from instar_core.candidates import Candidate
from instar_core.evolution import Event, SealedOutcome
from instar_core.lab import Journal, JournalState, SealedBook, SealedTicket
from instar_core.tasks import Task
from instar_core.usage import Amount, Remaining
from instar_evolvers.lab.conformance import ACCEPTANCE, CHECKS, check_kills
from instar_evolvers.lab.rehearsal import Keep, Keeping, rehearsal_candidate

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

_SLOW = {"kills": 9}
"""Strides: a kill at every write costs a database some minutes."""


class TakingJournal(PostgresJournal):
    """A journal whose process claims the job when it opens, as a worker does."""

    def __init__(
        self, db: Database, config: JournalConfig, take_over: Callable[[], JournalConfig]
    ) -> None:
        super().__init__(db, config)
        self._take_over = take_over

    async def open(self) -> JournalState:
        """Claims, then opens."""
        # In a thread: what the dead process still commits must be able to end meanwhile.
        super().__init__(self._db, await asyncio.to_thread(self._take_over))
        return await super().open()


class LateBook:
    """A book that learns its token when it is used: it is made before the run is claimed."""

    def __init__(self, db: Database, config: Callable[[], BookConfig]) -> None:
        self._db = db
        self._config = config

    async def open_test(self, candidate: Candidate, incumbent: Candidate) -> SealedTicket:
        """See :class:`instar_core.lab.SealedBook`."""
        return await PostgresBook(self._db, self._config()).open_test(candidate, incumbent)

    async def close(
        self, ticket: SealedTicket, outcome: SealedOutcome, candidate: Candidate
    ) -> None:
        """See :class:`instar_core.lab.SealedBook`."""
        await PostgresBook(self._db, self._config()).close(ticket, outcome, candidate)


class PostgresKeeping:
    """One run of one agent in a database; each process that takes it over has the next token."""

    def __init__(self, database: Any, db: Database, agent: str, task_set_version_id: str) -> None:
        self.run_id, self.job_id = new_id(), new_id()
        self._database = database
        self._db = db
        self._agent = agent
        self._task_set = task_set_version_id
        self._token = 0
        self.journals: list[PostgresJournal] = []

    async def begin(self, version_id: str, limit: Remaining) -> None:
        """Inserts the run, its job and its budget."""
        project = self._database.project_id
        self._database.query(
            "insert into job (id, project_id, kind, state) values (%s, %s, 'evolution', 'running')",
            self.job_id,
            project,
        )
        self._database.query(
            "insert into evolution_run (id, project_id, agent, state, evolver,"
            " incumbent_version_id, incumbent_digest, job_id)"
            " values (%s, %s, %s, 'running', 'rehearsal', %s, 'd', %s)",
            self.run_id,
            project,
            self._agent,
            version_id,
            self.job_id,
        )
        self._database.query(
            "insert into budget (id, project_id, kind, subject, limit_rollouts, limit_tokens,"
            " limit_cost_usd, limit_wall_s) values (%s, %s, 'run', %s, %s, %s, %s, %s)",
            new_id(),
            project,
            self.run_id,
            limit.rollouts,
            limit.tokens,
            limit.cost_usd,
            limit.wall_s,
        )

    async def journal(self) -> Journal:
        """A journal for a process that takes the run over when it opens."""
        journal = TakingJournal(self._db, self._config(), self.take_over)
        self.journals.append(journal)
        return journal

    def take_over(self) -> JournalConfig:
        """Gives the lease to the next process."""
        self._token += 1
        self._database.query(
            "update job set fencing_token = %s where id = %s", self._token, self.job_id
        )
        return self._config()

    def _config(self) -> JournalConfig:
        return JournalConfig(
            project_id=self._database.project_id,
            run_id=self.run_id,
            job_id=self.job_id,
            token=self._token,
            budgets={"run": self.run_id},
        )

    async def book(self) -> SealedBook:
        """A book under the token that is the newest when it is used."""
        return LateBook(
            self._db,
            lambda: BookConfig(
                project_id=self._database.project_id,
                run_id=self.run_id,
                job_id=self.job_id,
                token=self._token,
                agent=self._agent,
                task_set="rehearsal",
                task_set_version_id=self._task_set,
                acceptance=ACCEPTANCE,
                seed=3,
            ),
        )

    async def spent(self) -> Amount:
        """What the run's budget booked; its reservations must all be settled."""
        row = self._database.query(
            "select spent_rollouts, spent_tokens, spent_cost_usd, spent_wall_s from budget"
            " where subject = %s",
            self.run_id,
        )[0]
        return Amount(rollouts=row[0], tokens=row[1], cost_usd=float(row[2]), wall_s=row[3])

    async def effects(self) -> int:
        """Finished effects."""
        return int(
            self._database.query(
                "select count(*) from effect where run_id = %s and status = 'finished'",
                self.run_id,
            )[0][0]
        )

    async def events(self) -> list[Event]:
        """The Lab's events, in order."""
        rows = self._database.query(
            "select kind, message, data from run_event where run_id = %s"
            " and source_seq is not null order by seq",
            self.run_id,
        )
        return [Event(kind=row[0], message=row[1], data=row[2]) for row in rows]


def _keep(database: Any) -> Keep:
    @asynccontextmanager
    async def keep(limit: Remaining, sealed: Sequence[Task]) -> AsyncIterator[Keeping]:
        # The same names each time: a test's draws follow from project, agent and history.
        database.query("truncate project cascade")
        database.query("insert into project (id, name) values (%s, 'test')", database.project_id)
        db = database.open()
        try:
            async with db.transaction(database.project_id) as session:
                version = await save_agent(
                    session, database.project_id, "agent", rehearsal_candidate(), author=SYSTEM
                )
                tasks = await create_task_set(
                    session, database.project_id, "tasks", sealed, author=SYSTEM
                )
            kept = PostgresKeeping(database, db, "agent", tasks.id)
            await kept.begin(version.id, limit)
            yield kept
            for journal in kept.journals:
                await journal.close()  # a killed process leaves a commit under way
        finally:
            await db.close()

    return keep


@pytest.mark.parametrize("name", list(CHECKS))
def test_postgres_conforms(name: str, database: Any) -> None:
    keep = _keep(database)
    if name in _SLOW:
        asyncio.run(check_kills(keep, _SLOW[name]))
    else:
        asyncio.run(CHECKS[name](keep))
