"""The sealed test: order, arms, missing pairs, budgets, and going on later."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from instar_core.errors import RunCancelled
from instar_core.evolution import AcceptanceConfig, Evidence
from instar_core.lab import RolloutRequest
from instar_core.usage import Remaining
from instar_evolvers.lab.acceptance import sealed_draw

BECAUSE = Evidence(reason="test")
SMALL = AcceptanceConfig(max_pairs=20, min_pairs=5)


def mixed(bench: Any) -> Any:
    """The child wins on most tasks and loses on some, by the task alone."""

    def rule(request: RolloutRequest) -> float:
        number = int(request.task.id.rsplit("-", 1)[1])
        mine = request.candidate.digest == bench.child.digest
        if number % 5 == 0:
            return 0.0 if mine else 1.0
        return 1.0 if mine else float(number % 3 == 0)

    return rule


def test_pairs_are_fed_in_the_recorded_order_whatever_ends_first(bench: Any) -> None:
    bench.rules(SMALL)
    outcomes = []
    for slow in (0, 1, 7):
        bench.rules(SMALL)
        bench.tape = type(bench.tape)()
        bench.backend = type(bench.backend)(mixed(bench))

        def delays(request: RolloutRequest, slow: int = slow) -> int:
            # the first groups of the test take longest, so later ones end before them
            number = int(request.task.id.rsplit("-", 1)[1])
            return slow * (number % 4)

        bench.backend.delays = delays

        async def run() -> str:
            lab = await bench.lab(sealed_lookahead=6)
            return str(await lab.propose(bench.child, BECAUSE))

        verdict = asyncio.run(run())
        outcome = bench.book.outcomes["test-1"]
        outcomes.append((verdict, outcome.state, outcome.evidence))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_each_arm_runs_fresh_and_a_coin_decides_who_goes_first(bench: Any) -> None:
    bench.rules(SMALL)

    async def run() -> None:
        lab = await bench.lab(sealed_lookahead=1)
        await lab.propose(bench.child, BECAUSE)

    asyncio.run(run())
    requests = bench.backend.requests
    pairs = [requests[i : i + 2] for i in range(0, len(requests), 2)]
    assert len(pairs) >= SMALL.min_pairs
    for first, second in pairs:
        assert {first.arm, second.arm} == {"candidate", "incumbent"}
        assert first.task == second.task and first.draw == second.draw
        assert first.sealed_test == second.sealed_test == "test-1"
    order = [(request.task.id, request.arm) for request in requests]
    bench.rules(SMALL)
    bench.tape = type(bench.tape)()
    del requests[:]
    asyncio.run(run())
    assert [(request.task.id, request.arm) for request in requests] == order, "fixed by the seed"
    firsts = Counter(first.arm for first, _ in pairs)
    assert min(firsts.values()) >= 2, firsts
    assert len({request.task.group for request in requests}) == len(pairs)


def test_draws_differ_from_test_to_test() -> None:
    draws = {sealed_draw(seed, attempt, 0) for seed in range(300) for attempt in range(3)}
    assert len(draws) > 890 and min(draws) >= 1 << 20 and max(draws) < 1 << 31


def test_repeats_are_averaged_into_one_pair(bench: Any) -> None:
    bench.rules(SMALL.model_copy(update={"repeats": 4}))
    turn = iter(range(10_000))
    bench.backend.rule = lambda request: float(next(turn) % 4 == 0)

    async def run() -> None:
        await (await bench.lab()).propose(bench.child, BECAUSE)

    asyncio.run(run())
    state = bench.book.outcomes["test-1"].state
    per_group = Counter(request.task.group for request in bench.backend.requests)
    assert set(per_group.values()) == {8}
    assert all(
        score in (0.0, 0.25, 0.5, 0.75, 1.0) for c, i, _ in state["pairs"] for score in (c, i)
    )


def test_a_pair_with_a_fault_is_run_again_as_a_whole_with_new_draws(bench: Any) -> None:
    bench.rules(SMALL)
    failed: set[str] = set()

    def faults(request: RolloutRequest) -> bool:
        if request.arm == "candidate" and request.task.id not in failed and len(failed) < 3:
            failed.add(request.task.id)
            return True
        return False

    bench.backend.faults = faults

    async def run() -> None:
        await (await bench.lab(sealed_lookahead=1)).propose(bench.child, BECAUSE)

    asyncio.run(run())
    outcome = bench.book.outcomes["test-1"]
    assert outcome.missing == 0 and len(failed) == 3
    for task in failed:
        draws = [request.draw for request in bench.backend.requests if request.task.id == task]
        first_attempt = [draw for draw in draws if draw == min(draws)]
        assert len(draws) - len(first_attempt) == 2, "both arms again, on another draw"


def test_pairs_that_fail_for_good_leave_the_test_undecided(bench: Any) -> None:
    bench.rules(SMALL)
    bench.backend.rule = lambda request: float(request.candidate.digest == bench.child.digest)
    bench.backend.faults = lambda request: (
        request.arm == "candidate" and request.task.id.endswith(("1", "2", "3"))
    )

    async def run() -> str:
        return str(await (await bench.lab(infrastructure_retries=1)).propose(bench.child, BECAUSE))

    assert asyncio.run(run()) == "undecided"
    outcome = bench.book.outcomes["test-1"]
    assert outcome.missing >= 1 and "candidate" in outcome.words, outcome.words


def test_the_budget_ends_a_test_undecided_and_it_goes_on_later(bench: Any) -> None:
    rules = AcceptanceConfig(max_pairs=40, min_pairs=5)
    bench.rules(rules)
    bench.backend.rule = mixed(bench)
    bench.limit(Remaining(rollouts=16))

    async def run() -> tuple[str, str]:
        lab = await bench.lab(sealed_lookahead=1)
        return await lab.propose(bench.child, BECAUSE), lab.proposals[0].test_id

    assert asyncio.run(run()) == ("undecided", "test-1")
    first = bench.book.outcomes["test-1"]
    assert first.pairs == 8 and first.reason == "budget" and bench.budget.spent.rollouts == 16

    bench.tape = type(bench.tape)()
    bench.limit(Remaining(rollouts=500))
    seen = {request.task.group for request in bench.backend.requests[:16]}
    del bench.backend.requests[:]
    verdict, test_id = asyncio.run(run())
    second = bench.book.outcomes["test-1"]
    assert test_id == "test-1" and second.threshold == first.threshold
    assert second.state["pairs"][:8] == first.state["pairs"]
    assert second.pairs > 8 and verdict in ("accepted", "no_improvement")
    fresh = {request.task.group for request in bench.backend.requests}
    assert fresh and not fresh & seen


def test_a_test_that_goes_on_remembers_what_was_missing(bench: Any) -> None:
    bench.rules(AcceptanceConfig(max_pairs=100, min_pairs=5), groups=100)
    bench.backend.rule = mixed(bench)

    async def run() -> str:
        lab = await bench.lab(sealed_lookahead=1, infrastructure_retries=0)
        return str(await lab.propose(bench.child, BECAUSE))

    ticket = asyncio.run(bench.book.open_test(bench.child, bench.start))
    lost = ticket.groups[2][0].id
    bench.backend.faults = lambda request: request.task.id == lost
    bench.limit(Remaining(rollouts=15))
    assert asyncio.run(run()) == "undecided"
    first = bench.book.outcomes["test-1"]
    assert first.missing == 1 and first.reason == "budget"
    bench.tape = type(bench.tape)()
    bench.limit(Remaining())
    asyncio.run(run())
    second = bench.book.outcomes["test-1"]
    assert second.missing == 1 and second.pairs > first.pairs


def test_a_test_undecided_for_what_was_missing_is_a_new_test_next_time(bench: Any) -> None:
    bench.rules(AcceptanceConfig(max_pairs=20, min_pairs=5))
    bench.backend.rule = lambda request: float(request.candidate.digest == bench.child.digest)
    bench.backend.faults = lambda request: request.arm == "candidate"

    async def run() -> tuple[str, str]:
        lab = await bench.lab(infrastructure_retries=0)
        return await lab.propose(bench.child, BECAUSE), lab.proposals[0].test_id

    assert asyncio.run(run()) == ("undecided", "test-1")
    assert bench.book.outcomes["test-1"].reason == "missing"
    bench.tape = type(bench.tape)()
    bench.backend.faults = lambda request: False
    assert asyncio.run(run()) == ("accepted", "test-2")
    thresholds = [bench.book.outcomes[name].threshold for name in ("test-1", "test-2")]
    assert thresholds[0] < thresholds[1], "a new index has a level of its own"


def test_a_worn_pool_blocks_with_words(bench: Any) -> None:
    bench.rules(SMALL, groups=4)

    async def run() -> tuple[str, str]:
        lab = await bench.lab()
        return await lab.propose(bench.child, BECAUSE), lab.proposals[0].words

    verdict, words = asyncio.run(run())
    assert verdict == "blocked" and "4 of its 4 groups" in words and not bench.backend.requests


def test_cancelling_closes_the_test_as_undecided(bench: Any) -> None:
    bench.rules(SMALL)

    async def run() -> None:
        lab = await bench.lab(sealed_lookahead=3)
        lab.should_stop = lambda: len(bench.backend.requests) >= 9
        with pytest.raises(RunCancelled):
            await lab.propose(bench.child, BECAUSE)
        await lab.close()

    asyncio.run(run())
    outcome = bench.book.outcomes["test-1"]
    assert outcome.verdict == "undecided" and outcome.reason == "cancelled"


def test_surplus_pairs_are_neither_started_nor_read_after_the_stop(bench: Any) -> None:
    bench.rules(AcceptanceConfig(max_pairs=40, min_pairs=5))
    bench.backend.rule = lambda request: float(request.candidate.digest == bench.child.digest)
    bench.backend.delays = lambda request: 3

    async def run() -> str:
        return str(await (await bench.lab(sealed_lookahead=5)).propose(bench.child, BECAUSE))

    assert asyncio.run(run()) == "accepted"
    outcome = bench.book.outcomes["test-1"]
    assert outcome.pairs == 9 and outcome.groups_used <= 9 + 4
    begun = len(bench.backend.requests)
    assert begun < 2 * outcome.groups_used, "second arms of surplus pairs were started"
