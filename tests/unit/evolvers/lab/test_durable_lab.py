"""DurableLab: asks, failures, budgets and the small things."""

from __future__ import annotations

import asyncio
from datetime import UTC
from typing import Any

import pytest

from instar_core.candidates import Candidate
from instar_core.errors import (
    BudgetExhausted,
    InfrastructureError,
    LabMisuse,
    ModelError,
    ParseFailure,
    RunCancelled,
    VerifierError,
)
from instar_core.lab import CallOutcome, Calls, Lab, RolloutRequest
from instar_core.messages import Message
from instar_core.rollouts import Rollout, Score
from instar_core.usage import Amount, Remaining, Usage

ASK = (Message(role="user", content="a number?"),)


def test_it_is_a_lab(bench: Any) -> None:
    async def run() -> Lab:
        lab: Lab = await bench.lab()
        return lab

    asyncio.run(run())


# -- asks -----------------------------------------------------------------------------------------


def test_a_reply_that_does_not_parse_is_shown_its_error(bench: Any) -> None:
    bench.backend.replies = ["many", "7"]

    async def run() -> None:
        lab = await bench.lab()
        assert await lab.ask("proposer", ASK, int) == 7
        assert lab.asked["proposer"] == lab.usable["proposer"] == 1

    asyncio.run(run())
    again = bench.backend.asked[1]
    assert [message.role for message in again] == ["user", "assistant", "user"]
    assert again[1].content == "many" and "invalid literal" in again[2].content


def test_then_it_is_repaired_then_the_failure_quotes_it(bench: Any) -> None:
    bench.backend.replies = ["one", "two", "three", "four"]

    async def run() -> None:
        lab = await bench.lab(parse_retries=2)
        with pytest.raises(ParseFailure, match=r"4 attempts.*'four'"):
            await lab.ask("judge", ASK, int)
        assert lab.asked["judge"] == 1 and lab.usable["judge"] == 0

    asyncio.run(run())
    repair = bench.backend.asked[-1]
    assert repair[0].role == "system" and "three" in repair[1].content
    asks = [record for record in bench.tape.finished.values() if record.kind == "ask"]
    replies = [record.result["reply"] for record in asks]
    assert replies == ["one", "two", "three", "four"]


def test_an_outage_ends_the_run_and_is_asked_again_when_it_resumes(bench: Any) -> None:
    outages = [True] * 3

    async def failing(*_: object) -> str:
        if outages and outages.pop():
            raise ModelError("the provider is away")
        return "5"

    bench.backend.ask = failing

    async def run(*, ends: bool) -> None:
        lab = await bench.lab()
        if ends:
            with pytest.raises(ModelError):
                await lab.ask("proposer", ASK, int)
            with pytest.raises(ModelError):  # nothing may happen that a replay would not see
                await lab.rollouts(bench.start, bench.tasks)
        else:
            assert await lab.ask("proposer", ASK, int) == 5

    asyncio.run(run(ends=True))
    asyncio.run(run(ends=False))


# -- rollouts that fail ---------------------------------------------------------------------------


def test_a_rollout_with_faults_is_tried_again_then_has_no_score(bench: Any) -> None:
    count = {"train-0": 2, "train-1": 99}

    def faults(request: RolloutRequest) -> bool:
        count[request.task.id] = count.get(request.task.id, 0) - 1
        return count[request.task.id] >= 0

    bench.backend.faults = faults

    async def run() -> list[Rollout]:
        lab = await bench.lab(infrastructure_retries=2)
        found: list[Rollout] = await lab.rollouts(bench.start, bench.tasks[:3])
        return found

    first, second, third = asyncio.run(run())
    assert first.reward == third.reward == 0.5
    assert second.score is None and "sandbox did not start" in second.error
    begun = len(bench.backend.requests)
    assert begun == 3 + 3 + 1
    assert [r.score for r in asyncio.run(run())] == [first.score, None, third.score]
    assert len(bench.backend.requests) == begun, "failures are recorded too"


def test_waste_is_booked_and_a_crash_does_not_try_failed_attempts_again(bench: Any) -> None:
    class Flaky(type(bench.backend)):  # type: ignore[misc]
        calls_made = 0

        async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
            async def perform() -> CallOutcome:
                Flaky.calls_made += 1
                if Flaky.calls_made == 2:
                    raise ModelError("reset by peer")
                return CallOutcome(value="ok", usage=Usage(output_tokens=4))

            usage = Usage()
            for _ in range(2):
                outcome = await calls.call("model_call", "hi", perform, reserve=Amount(tokens=9))
                usage = usage + outcome.usage
            rollout: Rollout = await super().rollout(request, calls)
            return rollout.model_copy(update={"usage": usage})

    bench.backend = Flaky()

    async def run() -> Usage:
        lab = await bench.lab()
        (rollout,) = await lab.rollouts(bench.start, bench.tasks[:1])
        assert rollout.usage.tokens == 8
        spent: Usage = lab.spent
        return spent

    spent = asyncio.run(run())
    # one call used 4, one failed and may have used all of its 9, then two calls used 4 each
    assert spent.tokens == 4 + 9 + 8 == bench.budget.spent.tokens
    assert bench.budget.spent.rollouts == 1
    assert asyncio.run(run()) == spent and Flaky.calls_made == 4


def test_nothing_sent_releases_the_reservation(bench: Any) -> None:
    class Unsent(type(bench.backend)):  # type: ignore[misc]
        async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
            async def perform() -> CallOutcome:
                error = ModelError("no such host")
                error.nothing_sent = True
                raise error

            await calls.call("model_call", "hi", perform, reserve=Amount(tokens=9))
            raise AssertionError("unreachable")

    bench.backend = Unsent()

    async def run() -> None:
        (rollout,) = await (await bench.lab()).rollouts(bench.start, bench.tasks[:1])
        assert rollout.score is None and rollout.trajectory.stop == "infrastructure_error"

    asyncio.run(run())
    assert bench.budget.spent.tokens == 0


def test_an_attempt_whose_calls_do_not_repeat_starts_over(bench: Any) -> None:
    class Moody(type(bench.backend)):  # type: ignore[misc]
        mood = "first"
        made: list[str] = []  # noqa: RUF012 - counts over instances on purpose

        async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
            for step in range(3):
                said = f"{Moody.mood} {step}"

                async def perform(said: str = said) -> CallOutcome:
                    Moody.made.append(said)
                    if said == "first 2":
                        raise KeyboardInterrupt
                    return CallOutcome(value=said, usage=Usage(output_tokens=1))

                await calls.call("tool_call", said, perform, reserve=Amount(tokens=1))
            rollout: Rollout = await super().rollout(request, calls)
            return rollout

    bench.backend = Moody()

    async def run() -> list[Rollout]:
        lab = await bench.lab(concurrency=1)
        found: list[Rollout] = await lab.rollouts(bench.start, bench.tasks[:1])
        return found

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())
    Moody.mood = "second"
    assert asyncio.run(run())[0].reward == 0.5
    assert Moody.made[3:] == ["second 0", "second 1", "second 2"]


def test_a_fault_of_the_configuration_ends_the_run(bench: Any) -> None:
    def broken(request: RolloutRequest) -> float:
        raise VerifierError("no verifier 'exactt'")

    bench.backend.rule = broken

    async def run() -> None:
        lab = await bench.lab()
        for _ in range(2):
            with pytest.raises(VerifierError):
                await lab.rollouts(bench.start, bench.tasks)

    asyncio.run(run())


# -- budgets --------------------------------------------------------------------------------------


def test_rollouts_that_do_not_all_fit_are_refused_before_any_is_paid(bench: Any) -> None:
    bench.limit(Remaining(rollouts=7))

    async def run() -> int:
        lab = await bench.lab()
        assert lab.budget().rollouts == 7
        await lab.rollouts(bench.start, bench.tasks[:4])
        assert lab.budget().rollouts == 3
        with pytest.raises(BudgetExhausted, match=r"4 more rollouts.*\(3\)"):
            await lab.rollouts(bench.start, bench.tasks[:4])
        await lab.rollouts(bench.start, bench.tasks[:3])
        return int(bench.budget.spent.rollouts)

    assert asyncio.run(run()) == 7
    assert asyncio.run(run()) == 7 and len(bench.backend.requests) == 7


def test_rollouts_that_reserve_nothing_do_not_count_against_the_limit(bench: Any) -> None:
    bench.limit(Remaining(rollouts=2))
    bench.backend.reserve_for = lambda request: Amount(rollouts=0 if request.arm else 1)

    async def run() -> None:
        lab = await bench.lab()
        await lab.rollouts(bench.start, bench.tasks, arm="reference")
        assert lab.budget().rollouts == 2
        await lab.rollouts(bench.start, bench.tasks[:2])
        assert lab.budget().rollouts == 0 == bench.budget.remaining().rollouts

    asyncio.run(run())


def test_a_refusal_is_the_same_on_a_replay_even_when_there_is_room_by_then(bench: Any) -> None:
    bench.limit(Remaining(tokens=30))

    class Dear(type(bench.backend)):  # type: ignore[misc]
        async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
            async def perform() -> CallOutcome:
                await asyncio.sleep(0)
                return CallOutcome(value=1, usage=Usage(output_tokens=1))

            await calls.call("model_call", "hi", perform, reserve=Amount(tokens=20))
            rollout: Rollout = await super().rollout(request, calls)
            return rollout.model_copy(update={"usage": Usage(output_tokens=1)})

    bench.backend = Dear()

    async def run() -> list[object]:
        lab = await bench.lab()

        async def branch(child: Candidate) -> object:
            try:
                return len(await lab.rollouts(child, bench.tasks[:1]))
            except BudgetExhausted:
                return "exhausted"

        found: list[object] = await lab.gather("two", [bench.start, bench.child], branch)
        return found

    assert asyncio.run(run()) == [1, "exhausted"]
    assert bench.budget.remaining().tokens == 29, "by now the second one would fit"
    assert asyncio.run(run()) == [1, "exhausted"] and len(bench.backend.requests) == 1


def test_a_lab_must_be_started(bench: Any) -> None:
    async def run() -> None:
        from instar_evolvers.lab import MemoryJournal, open_lab

        lab = open_lab("r", bench.backend, MemoryJournal(), bench.book, incumbent=bench.start)
        with pytest.raises(LabMisuse, match="not started"):
            await lab.rollouts(bench.start, bench.tasks)

    asyncio.run(run())


# -- the small things -----------------------------------------------------------------------------


def test_streams_come_from_seed_and_name(bench: Any) -> None:
    async def run() -> list[float]:
        lab = await bench.lab()
        return [lab.rng("a").random(), lab.rng("a").random(), lab.rng("b").random()]

    first = asyncio.run(run())
    assert first[0] == first[1] != first[2] and asyncio.run(run()) == first


def test_the_time_is_recorded(bench: Any) -> None:
    async def run() -> Any:
        return await (await bench.lab()).now()

    first = asyncio.run(run())
    assert first.tzinfo == UTC and asyncio.run(run()) == first


def test_vectors_come_back_bit_by_bit(bench: Any) -> None:
    async def vectors(texts: list[str]) -> list[list[float]]:
        return [[0.1 + 0.2, 1e-17, -0.0, 1 / 3] for _ in texts]

    bench.backend.embed = vectors

    async def run() -> list[list[float]]:
        found: list[list[float]] = await (await bench.lab()).embed(["a"])
        return found

    assert (
        repr(asyncio.run(run()))
        == repr(asyncio.run(run()))
        == repr([[0.1 + 0.2, 1e-17, -0.0, 1 / 3]])
    )


def test_cancelling_stops_before_the_next_effect_and_keeps_what_is_recorded(bench: Any) -> None:
    async def run(limit: int) -> None:
        lab = await bench.lab(concurrency=2)
        lab.should_stop = lambda: len(bench.backend.requests) >= limit
        await lab.rollouts(bench.start, bench.tasks)

    with pytest.raises(RunCancelled):
        asyncio.run(run(3))
    recorded = sum(record.kind == "rollout" for record in bench.tape.finished.values())
    assert recorded == len(bench.backend.requests) < 6
    asyncio.run(run(99))
    assert len(bench.backend.requests) == 6


def test_a_stop_of_its_own_kind_passes_untouched(bench: Any) -> None:
    class Paused(Exception):
        pass

    def pause() -> bool:
        raise Paused

    async def run() -> None:
        lab = await bench.lab()
        lab.should_stop = pause
        with pytest.raises(Paused):
            await lab.rollouts(bench.start, bench.tasks)

    asyncio.run(run())


def test_s32_scores_missing_for_good_are_never_zero(bench: Any) -> None:
    bench.backend.faults = lambda request: True

    async def run() -> Rollout:
        found: list[Rollout] = await (await bench.lab()).rollouts(bench.start, bench.tasks[:1])
        return found[0]

    rollout = asyncio.run(run())
    with pytest.raises(ValueError, match="no score"):
        _ = rollout.reward
    assert Score(reward=0.0) != rollout.score and issubclass(ModelError, InfrastructureError)
