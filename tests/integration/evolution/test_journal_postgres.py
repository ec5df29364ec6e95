"""The Postgres journal: atomic starts, exact budgets, fencing, crashes, and writes never
repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from instar.evolution.journal import PostgresJournal
from instar.store.session import Database
from instar_core.errors import BudgetExhausted, LabMisuse, LeaseLost, RunCancelled, StoreError
from instar_core.evolution import Event
from instar_core.lab import EffectRecord, EffectStart
from instar_core.usage import Amount, Usage

pytestmark = pytest.mark.postgres


def _start(
    key: str, *, kind: Any = "model_call", rollouts: int = 0, tokens: int = 0
) -> EffectStart:
    return EffectStart(
        key=key,
        kind=kind,
        content="c" * 64,
        reserve=Amount(rollouts=rollouts, tokens=tokens),
        request={"text": "nul \x00 and ümlaut"},
    )


def _record(key: str, result: Any = "r", *, tokens: int = 0, kind: Any = "model_call") -> Any:
    return EffectRecord(
        key=key, kind=kind, content="c" * 64, result=result, usage=Usage(output_tokens=tokens)
    )


def test_what_is_finished_comes_back_exactly(held_run: Any) -> None:
    result = {
        "text": "nul \x00 lone \ud83d ü 😀",
        "float": 1e22,
        "small": 1e-7,
        "z": 1,
        "a": [None],
    }

    async def work(db: Database) -> None:
        journal = PostgresJournal(db, held_run.journal_config())
        assert (await journal.open()).finished == {}
        await journal.begin(_start("r#0", tokens=10))
        await journal.finish(_record("r#0", result, tokens=4))
        state = await PostgresJournal(db, held_run.journal_config()).open()
        assert state.finished["r#0"].result == result
        found: Any = state.finished["r#0"].result
        assert isinstance(found["float"], float)
        assert list(found) == list(result)
        assert state.finished["r#0"].usage.output_tokens == 4
        assert state.in_flight_lost == ()

    held_run.database.run(work)


def test_s97_fifty_at_once_never_overrun_nested_budgets(held_run: Any) -> None:
    held_run.budget("project", held_run.project_id, tokens=1_000_000)
    held_run.budget("agent", "desk", rollouts=17)
    held_run.budget("run", held_run.run_id, rollouts=40, tokens=500)

    async def work(db: Database) -> None:
        journal = PostgresJournal(db, held_run.journal_config())
        await journal.open()
        outcomes = await asyncio.gather(
            *(journal.begin(_start(f"r#{i}", rollouts=1, tokens=20)) for i in range(50)),
            return_exceptions=True,
        )
        refused = [error for error in outcomes if error is not None]
        assert len(refused) == 33
        assert all(isinstance(error, BudgetExhausted) for error in refused)
        assert "agent" in str(refused[0]) and "rollouts" in str(refused[0])
        assert journal.remaining().rollouts == 0
        assert journal.groups[0] < 10

    held_run.database.run(work)
    assert held_run.spent("agent")[:2] == (17, 0)
    assert held_run.spent("project")[2:] == (340, 0)


def test_s97_two_runs_share_their_agents_budget_exactly(held_run: Any, make_held_run: Any) -> None:
    other = make_held_run(held_run.database, held_run.version_id)
    held_run.budget("agent", "desk", rollouts=25)

    async def work(db: Database) -> None:
        journals = [PostgresJournal(db, r.journal_config()) for r in (held_run, other)]
        for journal in journals:
            await journal.open()
        outcomes = await asyncio.gather(
            *(j.begin(_start(f"r#{i}", rollouts=1)) for i in range(25) for j in journals),
            return_exceptions=True,
        )
        assert sum(isinstance(o, BudgetExhausted) for o in outcomes) == 25

    held_run.database.run(work)
    assert held_run.spent("agent")[:2] == (25, 0)


def test_settling_books_what_was_used_and_releases_the_rest(held_run: Any) -> None:
    held_run.budget("run", held_run.run_id, tokens=100)

    async def work(db: Database) -> None:
        journal = PostgresJournal(db, held_run.journal_config())
        await journal.open()
        await journal.begin(_start("a#0", tokens=60))
        with pytest.raises(BudgetExhausted):
            await journal.begin(_start("b#0", tokens=60))
        await journal.finish(_record("a#0", tokens=30))
        await journal.begin(_start("b#0", tokens=60))
        await journal.abandon("b#0", spent=None)
        await journal.begin(_start("b#0", tokens=60))
        await journal.abandon("b#0", spent=Usage(output_tokens=5))
        assert journal.remaining().tokens == 65
        assert journal.overshoot() == {}

    held_run.database.run(work)
    assert held_run.spent("run")[2:] == (0, 35)


def test_a_crash_books_calls_in_flight_as_spent_and_containers_not(held_run: Any) -> None:
    held_run.budget("run", held_run.run_id, rollouts=10, tokens=100)

    async def before(db: Database) -> None:
        journal = PostgresJournal(db, held_run.journal_config())
        await journal.open()
        await journal.begin(_start("e#0", kind="rollout", rollouts=1))
        await journal.begin(_start("e#0/0/0", tokens=10))
        await journal.finish(_record("e#0/0/0", tokens=7))
        await journal.begin(_start("e#0/0/1", tokens=10))
        await journal.begin(_start("e#1", kind="rollout", rollouts=1))

    held_run.database.run(before)
    successor = held_run.take_over()

    async def after(db: Database) -> None:
        journal = PostgresJournal(db, successor.journal_config())
        state = await journal.open()
        assert state.in_flight_lost == ("e#0/0/1", "e#1")
        assert set(state.finished) == {"e#0/0/0"}
        assert set(state.unfinished) == {"e#0", "e#0/0/1", "e#1"}
        assert successor.spent("run") == (1, 1, 0, 17)  # the open rollout keeps its own
        await journal.begin(_start("e#0", kind="rollout", rollouts=1))
        await journal.begin(_start("e#0/0/1", tokens=10))
        again = await PostgresJournal(db, successor.journal_config()).open()
        assert again.in_flight_lost == ("e#0/0/1",)

    held_run.database.run(after)


def test_an_old_token_writes_nothing(held_run: Any) -> None:
    async def work(db: Database) -> None:
        old = PostgresJournal(db, held_run.journal_config())
        await old.open()
        await old.begin(_start("a#0"))
        held_run.take_over()
        with pytest.raises(LeaseLost):
            await old.finish(_record("a#0"))
        with pytest.raises(LeaseLost):
            await old.event(0, Event(kind="k", message="m"))
        with pytest.raises(LeaseLost):
            await PostgresJournal(db, held_run.journal_config()).open()

    held_run.database.run(work)
    assert held_run.database.query("select status from effect") == [("started",)]


def test_events_are_numbered_without_gaps_and_written_once(held_run: Any) -> None:
    async def work(db: Database) -> None:
        for _ in range(2):
            journal = PostgresJournal(db, held_run.journal_config())
            await journal.open()
            await asyncio.gather(
                *(journal.event(i, Event(kind="k", message=f"m{i}")) for i in range(5)),
                journal.tell(Event(kind="started", message="taken up")),
            )
        assert (await PostgresJournal(db, held_run.journal_config()).open()).events == 5

    held_run.database.run(work)
    rows = held_run.database.query("select seq, source_seq from run_event order by seq")
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [row[1] for row in rows] == [0, 1, 2, 3, 4, None, None]


def test_a_cancelled_run_starts_nothing_and_still_records_results(held_run: Any) -> None:
    async def work(db: Database) -> None:
        journal = PostgresJournal(db, held_run.journal_config())
        await journal.open()
        await journal.begin(_start("a#0"))
        held_run.database.query("update evolution_run set cancel_requested = true")
        with pytest.raises(RunCancelled):
            await journal.begin(_start("b#0"))
        await journal.finish(_record("a#0"))

    held_run.database.run(work)
    assert held_run.database.query("select key, status from effect") == [("a#0", "finished")]


def test_an_effect_cannot_start_or_end_twice(held_run: Any) -> None:
    async def work(db: Database) -> None:
        journal = PostgresJournal(db, held_run.journal_config())
        await journal.open()
        await journal.begin(_start("a#0"))
        with pytest.raises(LabMisuse, match="started already"):
            await journal.begin(_start("a#0"))
        await journal.finish(_record("a#0"))
        with pytest.raises(LabMisuse, match="finished already"):
            await journal.begin(_start("a#0"))
        with pytest.raises(LabMisuse, match="only a started effect can end"):
            await journal.finish(_record("a#0"))

    held_run.database.run(work)


def test_a_commit_whose_answer_was_lost_is_not_repeated(
    held_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_run.budget("run", held_run.run_id, rollouts=10, tokens=100)

    async def work(db: Database) -> None:
        journal = PostgresJournal(db, held_run.journal_config())
        await journal.open()
        transaction = db.transaction
        broken: list[str] = []

        class Breaking:
            """Commits, then reports a broken connection, once."""

            def __init__(self, project_id: str) -> None:
                self._inner = transaction(project_id)

            async def __aenter__(self) -> Any:
                return await self._inner.__aenter__()

            async def __aexit__(self, *error: Any) -> bool | None:
                held = await self._inner.__aexit__(*error)
                if not broken:
                    broken.append("once")
                    raise StoreError("the connection broke during the commit.")
                return held

        monkeypatch.setattr(db, "transaction", Breaking)
        outcomes = await asyncio.gather(
            journal.begin(_start("a#0", rollouts=1, tokens=10)),
            journal.begin(_start("b#0", rollouts=1, tokens=95)),
            journal.event(0, Event(kind="k", message="m")),
            return_exceptions=True,
        )
        assert broken == ["once"]
        assert outcomes[0] is None and outcomes[2] is None
        assert isinstance(outcomes[1], BudgetExhausted)
        await journal.finish(_record("a#0", tokens=3))

    held_run.database.run(work)
    assert held_run.spent("run") == (0, 1, 0, 3)
    assert held_run.database.query("select seq from run_event") == [(1,)]
    assert held_run.database.query("select key, attempt from effect") == [("a#0", 1)]


def test_wall_time_is_refused_before_it_is_overrun(held_run: Any) -> None:
    held_run.budget("run", held_run.run_id, wall_s=100.0)

    async def work(db: Database) -> None:
        journal = PostgresJournal(db, held_run.journal_config())
        await journal.open()
        slow = EffectStart(key="a#0", kind="tool_call", content="c", reserve=Amount(wall_s=60.0))
        also = EffectStart(key="b#0", kind="tool_call", content="c", reserve=Amount(wall_s=60.0))
        long = EffectStart(key="c#0", kind="tool_call", content="c", reserve=Amount(wall_s=101.0))
        await journal.begin(slow)
        await journal.begin(also)
        with pytest.raises(BudgetExhausted, match="wall time"):
            await journal.begin(long)

    held_run.database.run(work)


def test_a_database_that_stays_away_is_named(held_run: Any) -> None:
    held_run.database.query("alter role instar_app nologin")
    try:
        from instar.evolution.retry import StorePatience

        config = held_run.journal_config(patience=StorePatience(total_s=0.2, first_s=0.05))

        async def work(db: Database) -> None:
            with pytest.raises(StoreError, match="did not answer for 0 s"):
                await PostgresJournal(db, config).open()

        held_run.database.run(work)
    finally:
        held_run.database.query("alter role instar_app login")
