"""MemoryBook: levels by e-LOND, groups without replacement, one open test, worn pools."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from instar_core.base import JsonValue
from instar_core.candidates import Candidate
from instar_core.errors import ConflictError, UserError
from instar_core.evolution import AcceptanceConfig, SealedOutcome, Verdict
from instar_core.lab import SealedTicket
from instar_core.statistics.elond import level
from instar_evolvers.lab import MemoryBook
from instar_evolvers.lab.rehearsal import rehearsal_candidate, rehearsal_tasks

START = rehearsal_candidate()
RULES = AcceptanceConfig(max_pairs=10, min_pairs=4, max_uses_of_group=2)


def child(number: int) -> Candidate:
    return START.with_component("text", f"child {number}")


def run_test(
    book: MemoryBook, number: int, verdict: Verdict = "no_improvement", used: int = 10
) -> SealedTicket:
    async def run() -> SealedTicket:
        ticket = await book.open_test(child(number), START)
        outcome = SealedOutcome(verdict=verdict, pairs=used, groups_used=used)
        await book.close(ticket, outcome, child(number))
        await book.close(ticket, outcome, child(number))
        return ticket

    return asyncio.run(run())


def test_levels_follow_e_lond_and_an_acceptance_raises_them() -> None:
    book = MemoryBook(rehearsal_tasks("sealed", 100), RULES)
    levels = []
    for number, verdict in enumerate(("no_improvement", "accepted", "undecided", "accepted")):
        levels.append(run_test(book, number, verdict, used=2).alpha_t)  # type: ignore[arg-type]
    accepted = [0, 0, 1, 1]
    assert levels == [level(t + 1, r) for t, r in enumerate(accepted)]


def test_no_group_comes_twice_before_all_came_once() -> None:
    book = MemoryBook(rehearsal_tasks("sealed", 30), RULES)
    served: Counter[str] = Counter()
    for number in range(3):
        served.update(group[0].group for group in run_test(book, number).groups)
    assert len(served) == 30 and set(served.values()) == {1}


def test_only_groups_that_were_run_count_as_served() -> None:
    book = MemoryBook(rehearsal_tasks("sealed", 12), RULES)
    for number in range(8):
        ticket = run_test(book, number, used=1)
        assert len(ticket.groups) == 10


def test_a_pool_that_cannot_serve_a_whole_test_is_worn() -> None:
    book = MemoryBook(rehearsal_tasks("sealed", 12), RULES)
    run_test(book, 0)
    run_test(book, 1)
    with pytest.raises(UserError, match=r"worn.*of its 12 groups.*needs 10"):
        run_test(book, 2)


def test_an_agent_has_one_open_test_and_a_crash_gives_the_same_ticket() -> None:
    book = MemoryBook(rehearsal_tasks("sealed", 30), RULES)

    async def run() -> None:
        ticket = await book.open_test(child(1), START)
        assert await book.open_test(child(1), START) == ticket
        with pytest.raises(ConflictError, match=r"test-1.*still open"):
            await book.open_test(child(2), START)

    asyncio.run(run())


def test_an_undecided_test_goes_on_and_a_decided_one_does_not() -> None:
    book = MemoryBook(rehearsal_tasks("sealed", 60), RULES)

    async def run() -> None:
        ticket = await book.open_test(child(1), START)
        state: JsonValue = {"pairs": [[1.0, 0.0, "default"], [0.5, 1.0, "default"]]}
        undecided = SealedOutcome(verdict="undecided", groups_used=4, state=state)
        await book.close(ticket, undecided, child(1))
        more = await book.open_test(child(1), START)
        assert more.test_id == ticket.test_id and more.alpha_t == ticket.alpha_t
        assert more.groups == ticket.groups[4:] and more.state == state
        assert more.seed != ticket.seed
        await book.close(more, SealedOutcome(verdict="no_improvement", groups_used=6), child(1))
        other = await book.open_test(child(1), START)
        assert other.test_id == "test-2" and other.state is None

    asyncio.run(run())


def test_an_undecided_test_without_groups_left_is_closed() -> None:
    book = MemoryBook(rehearsal_tasks("sealed", 60), RULES)
    run_test(book, 1, "undecided", used=10)
    assert run_test(book, 1).test_id == "test-2"


def test_a_new_epoch_starts_the_levels_and_the_uses_again() -> None:
    rules = RULES.model_copy(update={"epoch_tests": 2, "max_uses_of_group": 1})
    book = MemoryBook(rehearsal_tasks("sealed", 20), rules)
    levels = [run_test(book, number).alpha_t for number in range(4)]
    assert levels[:2] == levels[2:] == [level(t, 0, horizon=2) for t in (1, 2)]


def test_the_order_is_random_and_fixed_by_the_seed() -> None:
    tasks = rehearsal_tasks("sealed", 30)
    orders = [
        [group[0].group for group in run_test(MemoryBook(tasks, RULES, seed=seed), 0).groups]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])


def test_search_tasks_are_refused() -> None:
    with pytest.raises(UserError, match=r"'train'.*sealed"):
        MemoryBook(rehearsal_tasks("train", 1))
