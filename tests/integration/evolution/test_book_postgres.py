"""The sealed book on Postgres: indices, use counts, resumed tests, worn pools, one open test."""

from __future__ import annotations

from typing import Any

import pytest

from instar.evolution.book import BookConfig, PostgresBook
from instar.evolution.journal import PostgresJournal
from instar.store.agents import save_agent
from instar.store.audit import SYSTEM
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar_core.base import JsonValue
from instar_core.candidates import Candidate
from instar_core.errors import ConflictError, LeaseLost, UserError
from instar_core.evolution import AcceptanceConfig, SealedOutcome
from instar_core.lab import EffectStart, SealedTicket
from instar_evolvers.lab.rehearsal import rehearsal_candidate, rehearsal_tasks

pytestmark = pytest.mark.postgres

_RULES = AcceptanceConfig(max_pairs=6, min_pairs=4, max_uses_of_group=2)
_START = rehearsal_candidate()


def _child(text: str) -> Candidate:
    return _START.with_component("text", text)


async def _book(db: Database, run: Any, task_set: str, token: int = 1) -> PostgresBook:
    return PostgresBook(
        db,
        BookConfig(
            project_id=run.project_id,
            run_id=run.run_id,
            job_id=run.job_id,
            token=token,
            agent="desk",
            task_set="rehearsal",
            task_set_version_id=task_set,
            acceptance=_RULES,
            seed=3,
        ),
    )


async def _tasks(db: Database, run: Any, count: int = 9) -> str:
    async with db.transaction(run.project_id) as session:
        await save_agent(session, run.project_id, "desk", _START, author=SYSTEM)
        tasks = rehearsal_tasks("sealed", count)
        return (
            await create_task_set(session, run.project_id, "rehearsal", tasks, author=SYSTEM)
        ).id


def _end(verdict: Any, used: int, pairs: int = 0) -> SealedOutcome:
    listed: list[JsonValue] = [[1.0, 0.0, "s"] for _ in range(pairs)]
    state: JsonValue = {"pairs": listed}
    return SealedOutcome(verdict=verdict, groups_used=used, pairs=pairs, state=state)


def _keys(ticket: SealedTicket) -> list[str]:
    return [group[0].group for group in ticket.groups]


def test_an_index_counts_once_a_pair_ran(held_run: Any) -> None:
    async def work(db: Database) -> None:
        book = await _book(db, held_run, await _tasks(db, held_run))
        first = await book.open_test(_child("a"), _START)
        await book.withdraw("The run was cancelled.")
        second = await book.open_test(_child("b"), _START)
        assert first.index_in_epoch == second.index_in_epoch == 1
        assert first.alpha_t == second.alpha_t and first.test_id != second.test_id
        await book.close(second, _end("accepted", 5), _child("b"))
        await book.close(second, _end("no_improvement", 6), _child("b"))
        third = await book.open_test(_child("c"), _START)
        assert third.index_in_epoch == 2
        # R grew by the acceptance: the level of the second test doubles.
        assert third.alpha_t == pytest.approx(2 * 0.05 * (0.5 / 50 + 0.5 / 6))

    held_run.database.run(work)
    assert held_run.database.query("select tests, accepted from sealed_epoch") == [(1, 1)]
    assert held_run.database.query("select sum(uses) from sealed_use") == [(5,)]


def test_an_undecided_test_goes_on_in_another_run(held_run: Any, make_held_run: Any) -> None:
    other = make_held_run(held_run.database, held_run.version_id)

    async def work(db: Database) -> None:
        tasks = await _tasks(db, held_run)
        book = await _book(db, held_run, tasks)
        first = await book.open_test(_child("a"), _START)
        with pytest.raises(ConflictError, match="is open in the run"):
            await (await _book(db, other, tasks)).open_test(_child("a"), _START)
        await book.close(first, _end("undecided", 2, pairs=2), _child("a"))
        resumed = await (await _book(db, other, tasks)).open_test(_child("a"), _START)
        assert resumed.test_id == first.test_id and resumed.alpha_t == first.alpha_t
        assert _keys(resumed) == _keys(first)[2:]
        assert resumed.state == {"pairs": [[1.0, 0.0, "s"]] * 2}
        again = await (await _book(db, other, tasks)).open_test(_child("a"), _START)
        assert again == resumed
        await (await _book(db, other, tasks)).close(resumed, _end("accepted", 4), _child("a"))

    held_run.database.run(work)
    assert held_run.database.query("select tests, accepted from sealed_epoch") == [(1, 1)]
    assert held_run.database.query("select sum(uses) from sealed_use") == [(6,)]


def test_what_was_missing_makes_the_next_test_a_new_one(held_run: Any) -> None:
    async def work(db: Database) -> None:
        book = await _book(db, held_run, await _tasks(db, held_run))
        first = await book.open_test(_child("a"), _START)
        missing = _end("undecided", 3, pairs=3).model_copy(update={"reason": "missing"})
        await book.close(first, missing, _child("a"))
        second = await book.open_test(_child("a"), _START)
        assert second.test_id != first.test_id and second.index_in_epoch == 2
        assert second.state is None

    held_run.database.run(work)


def test_a_withdrawn_test_counts_every_pair_that_began(held_run: Any) -> None:
    async def work(db: Database) -> None:
        book = await _book(db, held_run, await _tasks(db, held_run))
        ticket = await book.open_test(_child("a"), _START)
        journal = PostgresJournal(db, held_run.journal_config())
        await journal.open()
        # Four pairs in flight, one arm each, and one pair that was run again.
        for name in (
            "p0.0.candidate.0",
            "p0.1.candidate.0",
            "p1.0.incumbent.0",
            "p3.0.candidate.0",
        ):
            request: JsonValue = {"sealed_test": ticket.test_id}
            await journal.begin(
                EffectStart(key=f"evolve#1/{name}", kind="rollout", content=name, request=request)
            )
        await book.withdraw("The run was cancelled.")

    held_run.database.run(work)
    assert held_run.database.query("select sum(uses) from sealed_use") == [(4,)]
    assert held_run.database.query("select tests, accepted from sealed_epoch") == [(1, 0)]


def test_a_worn_pool_blocks_with_words(held_run: Any) -> None:
    async def work(db: Database) -> None:
        book = await _book(db, held_run, await _tasks(db, held_run))
        for index in range(2):
            ticket = await book.open_test(_child(str(index)), _START)
            await book.close(ticket, _end("no_improvement", 6), _child(str(index)))
        ticket = await book.open_test(_child("last"), _START)
        await book.close(ticket, _end("no_improvement", 6), _child("last"))
        with pytest.raises(UserError, match="worn"):
            await book.open_test(_child("one more"), _START)

    held_run.database.run(work)
    assert held_run.database.query("select max(uses) from sealed_use") == [(2,)]


def test_an_old_token_opens_and_closes_nothing(held_run: Any) -> None:
    async def work(db: Database) -> None:
        tasks = await _tasks(db, held_run)
        old = await _book(db, held_run, tasks)
        ticket = await old.open_test(_child("a"), _START)
        held_run.take_over()
        with pytest.raises(LeaseLost):
            await old.close(ticket, _end("accepted", 6), _child("a"))
        with pytest.raises(LeaseLost):
            await old.open_test(_child("b"), _START)

    held_run.database.run(work)
    assert held_run.database.query("select state from sealed_test") == [("open",)]


def test_the_test_of_a_run_that_ended_is_closed_for_it(held_run: Any, make_held_run: Any) -> None:
    other = make_held_run(held_run.database, held_run.version_id)

    async def work(db: Database) -> None:
        tasks = await _tasks(db, held_run)
        await (await _book(db, held_run, tasks)).open_test(_child("a"), _START)
        held_run.database.query(
            "update evolution_run set state = 'failed' where id = %s", held_run.run_id
        )
        ticket = await (await _book(db, other, tasks)).open_test(_child("b"), _START)
        assert ticket.index_in_epoch == 1

    held_run.database.run(work)
    verdicts = held_run.database.query("select verdict from sealed_test order by opened_at")
    assert verdicts == [("undecided",), (None,)]
