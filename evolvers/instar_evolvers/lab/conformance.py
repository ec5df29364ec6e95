"""Conformance: what every journal and sealed book must do under a Lab, in memory and on Postgres
alike.

Each check takes a ``keep``: a factory for an empty place that outlives the processes using it (see
:class:`instar_evolvers.lab.rehearsal.Keeping`). A check gives nothing and raises ``AssertionError``
with what it saw. ``CHECKS`` lists them by name; ``check_kills`` takes a stride, since a database is
slower than memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from instar_core.base import JsonValue, content_hash
from instar_core.candidates import Candidate
from instar_core.errors import BudgetExhausted, LabMisuse, LeaseLost, ReplayDiverged
from instar_core.evolution import AcceptanceConfig, Event, Evidence
from instar_core.lab import EffectRecord, EffectStart
from instar_core.messages import Message
from instar_core.rollouts import Rollout
from instar_core.usage import Amount, Remaining, Usage
from instar_evolvers.lab.config import LabConfig
from instar_evolvers.lab.durable import DurableLab, open_lab
from instar_evolvers.lab.rehearsal import (
    RESERVED_TOKENS,
    Keep,
    Keeping,
    Kill,
    Killed,
    MortalBook,
    MortalJournal,
    RehearsalBackend,
    rehearsal_candidate,
    rehearsal_tasks,
    rehearse,
)

__all__ = ["ACCEPTANCE", "CHECKS", "Check", "check_kills", "rehearsal_hash", "run_once"]

Check = Callable[[Keep], Coroutine[Any, Any, None]]
ACCEPTANCE = AcceptanceConfig(max_pairs=12, min_pairs=4)
"""Rules of the rehearsals' sealed tests: small, so that a kill at every write stays cheap. The
places under test must use them."""

_SEALED = rehearsal_tasks("sealed", 16)
_WIDTH = 6
_AMPLE = Remaining(rollouts=10_000, tokens=10_000_000)
"""Never reached; given so that what an evolver sees of its budget is checked too."""


@dataclass(frozen=True, slots=True)
class Ran:
    """How one process's attempt at the rehearsal ended."""

    lab: DurableLab
    backend: RehearsalBackend
    trail: list[JsonValue] | None
    kill: Kill


async def run_once(
    kept: Keeping,
    program: Callable[[DurableLab], Awaitable[Any]] = rehearse,
    *,
    weather: int = 0,
    kill: Kill | None = None,
    width: int = _WIDTH,
) -> Ran:
    """One process: takes the run over, goes through the program, and dies if its time has come."""
    kill = kill or Kill()
    backend = RehearsalBackend(weather)
    lab = open_lab(
        "rehearsal",
        backend,
        MortalJournal(await kept.journal(), kill),
        MortalBook(await kept.book(), kill),
        incumbent=rehearsal_candidate(),
        seed=7,
        config=LabConfig(concurrency=width, sealed_lookahead=3, retry_wait_s=0.0),
    )
    try:
        await lab.start()
        trail = await program(lab)
        await lab.close()
    except Killed:
        return Ran(lab, backend, None, kill)
    assert backend.flying == 0, f"{backend.flying} calls outlived the program"
    return Ran(lab, backend, trail, kill)


def rehearsal_hash(trail: Sequence[JsonValue] | None) -> str:
    """One number for all that a rehearsal saw and chose."""
    return content_hash(list(trail or ()))


def _nothing_left_behind() -> None:
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    names = [task.get_coro().__qualname__ for task in left]  # type: ignore[union-attr]
    orphans = [name for name in names if "Lab" in name or "Gathering" in name or "pool" in name]
    assert not orphans, f"tasks outlived the Lab: {orphans}"


async def check_replay(keep: Keep) -> None:
    """A finished run goes through again without a single call, and shows nothing twice."""
    async with keep(_AMPLE, _SEALED) as kept:
        first = await run_once(kept, weather=1)
        events = await kept.events()
        effects = await kept.effects()
        again = await run_once(kept, weather=2)
        assert again.trail == first.trail, (first.trail, again.trail)
        assert not again.backend.performed, again.backend.performed
        assert again.lab.in_flight_lost == 0
        assert again.lab.spent == first.lab.spent
        assert await kept.events() == events
        assert await kept.effects() == effects
        _nothing_left_behind()


async def check_kills(keep: Keep, stride: int = 1) -> None:
    """Killed at any write, before or after it reached the disk, a run ends as if nothing had been.

    No recorded call is performed again, what was in flight is at most the width, and events come
    once.
    """
    async with keep(_AMPLE, _SEALED) as kept:
        calm = await run_once(kept)
        expected, events = rehearsal_hash(calm.trail), await kept.events()
        total, calls = calm.kill.writes, sum(calm.backend.performed.values())
    kinds = [event.kind for event in events]
    assert kinds.count("seen") == 1 and kinds.count("look") == 3 and kinds[-1] == "end", kinds
    for at in range(0, total, stride):
        after = at // stride % 2 == 1
        async with keep(_AMPLE, _SEALED) as kept:
            where = f"killed {'after' if after else 'before'} write {at} of {total}"
            dead = await run_once(kept, weather=at + 1, kill=Kill(at, after=after))
            if not dead.kill.dead:
                continue  # this weather needed fewer writes
            assert dead.trail is None, where
            alive = await run_once(kept, weather=total + at)
            assert rehearsal_hash(alive.trail) == expected, where
            lost = alive.lab.in_flight_lost
            paid = dead.backend.performed + alive.backend.performed
            assert 0 <= lost <= _WIDTH, f"{where}: {lost} lost in flight"
            twice = sum(count - 1 for count in paid.values())
            # Looking ahead in the sealed test, the two processes may run different surplus pairs.
            assert twice <= lost, f"{where}: {twice} calls paid twice, {lost} in flight"
            assert sum(paid.values()) <= calls + lost + 3 * 6, where
            shown = await kept.events()
            assert sorted(e.message for e in shown) == sorted(e.message for e in events), where
            _nothing_left_behind()


async def check_diverged(keep: Keep) -> None:
    """The same key with other content stops the run; it is never a new call."""
    start, tasks = rehearsal_candidate(), rehearsal_tasks("train", 3)

    def program(text: str, *, n: int = 1) -> Callable[[DurableLab], Awaitable[Any]]:
        async def go(lab: DurableLab) -> object:
            found = await lab.rollouts(start.with_component("text", text), tasks, n=n)
            return [r.reward for r in found]

        return go

    async with keep(Remaining(), _SEALED) as kept:
        await run_once(kept, program("one"))
        for other in (program("two"), program("one", n=2)):
            backend: RehearsalBackend | None = None
            try:
                backend = (await run_once(kept, other)).backend
            except ReplayDiverged as error:
                assert "evolve#0.0" in str(error), error
            assert backend is None, "another program went through the record of the first"
        assert (await run_once(kept, program("one"))).backend.performed.total() == 0
    async with keep(Remaining(), _SEALED) as kept:
        dead = await run_once(kept, program("one"), kill=Kill(6))
        assert dead.kill.dead
        try:
            await run_once(kept, program("two"))
        except ReplayDiverged:
            return
        raise AssertionError("an unfinished effect was begun again with other content")


async def check_in_flight(keep: Keep) -> None:
    """Calls caught in flight: as many as there were, booked as spent, and issued again."""
    start, tasks, width = rehearsal_candidate(), rehearsal_tasks("train", 30), 20

    async def program(lab: DurableLab) -> object:
        return [r.draw for r in await lab.rollouts(start, tasks)]

    async with keep(Remaining(rollouts=30), _SEALED) as kept:
        kill, backend = Kill(), RehearsalBackend()
        backend.hold = width
        config = LabConfig(concurrency=width, retry_wait_s=0.0)
        journal = MortalJournal(await kept.journal(), kill)
        lab = open_lab(
            "rehearsal", backend, journal, await kept.book(), incumbent=start, seed=7, config=config
        )
        await lab.start()
        running = asyncio.ensure_future(program(lab))
        await backend.full.wait()
        before = await kept.spent()
        kill.dead = True
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        alive = await run_once(kept, program, width=width)
        assert alive.lab.in_flight_lost == width, alive.lab.in_flight_lost
        after = await kept.spent()
        # The rollouts around the lost calls went on: no rollout is booked twice.
        assert after.rollouts == 30, after
        waste = after.tokens - before.tokens - alive.lab.spent.tokens
        assert waste == width * RESERVED_TOKENS, (before, after, alive.lab.spent)


class _Bare(RehearsalBackend):
    """Rollouts without journalled calls inside them."""

    async def rollout(self, request: Any, calls: Any) -> Rollout:
        self.requests.append(request)
        await self._wait()
        return Rollout(
            id=request.identity[:32],
            task_id=request.task.id,
            candidate_digest=request.candidate.digest,
            draw=request.draw,
            score={"reward": 1.0},  # type: ignore[arg-type]
            usage=Usage(output_tokens=3),
        )


async def check_bare_rollouts(keep: Keep) -> None:
    """A rollout with nothing journalled inside counts its own usage, and is lost as a whole."""
    start, tasks = rehearsal_candidate(), rehearsal_tasks("train", 4)
    async with keep(Remaining(rollouts=100), _SEALED) as kept:
        for held in (True, False):
            kill, backend = Kill(), _Bare()
            if held:
                backend.hold = 0
            lab = open_lab(
                "rehearsal",
                backend,
                MortalJournal(await kept.journal(), kill),
                await kept.book(),
                incumbent=start,
                config=LabConfig(concurrency=4),
            )
            await lab.start()
            running = asyncio.ensure_future(lab.rollouts(start, tasks))
            if held:
                await backend.full.wait()
                kill.dead = True
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                continue
            assert len(await running) == 4
            assert lab.in_flight_lost in range(1, 5), lab.in_flight_lost
            spent = await kept.spent()
            assert spent.rollouts == 4 + lab.in_flight_lost, spent
            assert spent.tokens == 4 * 3, spent


async def check_no_overshoot(keep: Keep) -> None:
    """Fifty rollouts at once never spend more than the limit, of rollouts or of tokens."""
    tasks = rehearsal_tasks("train", 10)
    children = [rehearsal_candidate(f"child {index}") for index in range(10)]

    async def program(lab: DurableLab) -> object:
        async def try_it(child: Candidate) -> object:
            try:
                return len(await lab.rollouts(child, tasks))
            except BudgetExhausted:
                return "exhausted"

        return await lab.gather("all", children, try_it)

    for limit in (
        Remaining(rollouts=33),
        Remaining(tokens=1501),
        Remaining(rollouts=60, tokens=999),
    ):
        async with keep(limit, _SEALED) as kept:
            ran = await run_once(kept, program, weather=5, width=50)
            assert ran.trail is not None and "exhausted" in ran.trail, ran.trail
            assert ran.backend.most > 10, ran.backend.most
            spent = await kept.spent()
            _within(spent, limit)
            again = await run_once(kept, program, weather=9, width=50)
            assert again.trail == ran.trail and not again.backend.performed, "exhaustion replays"
            assert await kept.spent() == spent


def _within(spent: Amount, limit: Remaining) -> None:
    for name in ("rollouts", "tokens", "cost_usd"):
        most = getattr(limit, name)
        assert most is None or getattr(spent, name) <= most, f"{name}: {spent} beyond {limit}"


async def check_draws(keep: Keep) -> None:
    """Draws are 0, 1, 2 … per candidate and task, none twice, and sealed ones never those."""
    async with keep(Remaining(), _SEALED) as kept:
        ran = await run_once(kept, weather=3)
        search: set[tuple[str, str, int]] = set()
        sealed: set[tuple[str, str, int]] = set()
        for request in ran.backend.requests:
            draw = (request.candidate.digest, request.task.content_digest, request.draw)
            bucket = sealed if request.sealed_test else search
            assert draw not in bucket, f"drawn twice: {draw}"
            assert bool(request.sealed_test) == (request.task.split == "sealed"), request.task
            bucket.add(draw)
        assert search and sealed and not search & sealed
        counts: dict[tuple[str, str], list[int]] = {}
        for who, task, index in search:
            counts.setdefault((who, task), []).append(index)
        assert all(sorted(ks) == list(range(len(ks))) for ks in counts.values()), counts
        assert {index for *_, index in search}.isdisjoint(index for *_, index in sealed)


async def check_shared_draw(keep: Keep) -> None:
    """Two branches that draw the same pair are refused, since timing would decide who gets
    which."""
    start, tasks = rehearsal_candidate(), rehearsal_tasks("train", 2)

    async def program(lab: DurableLab) -> object:
        async def branch(_: int) -> object:
            return await lab.rollouts(start, tasks)

        return await lab.gather("same", [0, 1], branch)

    async with keep(Remaining(), _SEALED) as kept:
        try:
            await run_once(kept, program, weather=4)
        except LabMisuse as error:
            assert "draw" in str(error), error
            _nothing_left_behind()
            return
    raise AssertionError("two branches drew the same candidate and task")


async def check_order(keep: Keep) -> None:
    """``gather`` keeps the items' order; ``completed`` keeps the order that was recorded."""
    tasks = rehearsal_tasks("train", 2)
    children = [rehearsal_candidate(f"racer {index}") for index in range(6)]

    async def program(lab: DurableLab) -> object:
        async def branch(child: Candidate) -> str:
            await lab.rollouts(child, tasks)
            return child.digest

        gathered = await lab.gather("in-order", children[:3], branch)
        assert gathered == [child.digest for child in children[:3]]
        return [index async for index, _ in lab.completed("race", children[3:], branch)]

    orders = set()
    for weather in range(1, 9):
        async with keep(Remaining(), _SEALED) as kept:
            first = await run_once(kept, program, weather=weather)
            again = await run_once(kept, program, weather=weather + 50)
            assert again.trail == first.trail, (first.trail, again.trail)
            orders.add(tuple(str(index) for index in first.trail or ()))
    assert len(orders) > 1, "the weather never changed the order, so this check shows nothing"


async def check_events(keep: Keep) -> None:
    """Events keep the program's order, whatever finishes first, and come once."""

    async def program(lab: DurableLab) -> object:
        async def branch(index: int) -> None:
            lab.log(Event(kind="step", message=f"{index} begins"))
            await lab.ask("judge", (Message(role="user", content=f"{index}"),), str)
            lab.log(Event(kind="step", message=f"{index} ends"))

        await lab.gather("talk", range(5), branch)
        lab.log(Event(kind="end", message="all done"))
        return None

    said = [f"{index} {word}" for index in range(5) for word in ("begins", "ends")]
    for at in range(0, 24, 5):
        async with keep(Remaining(), _SEALED) as kept:
            await run_once(kept, program, weather=at + 1, kill=Kill(at, after=at % 2 == 0))
            await run_once(kept, program, weather=at + 2)
            assert [e.message for e in await kept.events()] == [*said, "all done"], at


async def check_growth(keep: Keep) -> None:
    """The journal grows in proportion to the rollouts."""

    def program(count: int) -> Callable[[DurableLab], Awaitable[Any]]:
        async def go(lab: DurableLab) -> object:
            return len(await lab.rollouts(rehearsal_candidate(), rehearsal_tasks("train", count)))

        return go

    kept_effects = []
    for count in (10, 20, 40):
        async with keep(Remaining(), _SEALED) as kept:
            await run_once(kept, program(count))
            kept_effects.append(await kept.effects())
    ten, twenty, forty = kept_effects
    assert forty - twenty == 2 * (twenty - ten), kept_effects
    assert twenty - ten == 10 * 4, f"a rollout with three calls is four effects: {kept_effects}"


async def check_lease(keep: Keep) -> None:
    """Once another process has taken the run over, the first one can write nothing more."""
    async with keep(Remaining(), _SEALED) as kept:
        old, new = await kept.journal(), await kept.journal()
        start = EffectStart(key="evolve#0", kind="now", content="a")
        record = EffectRecord(key="evolve#0", kind="now", content="a", result=1)
        await old.open()
        await new.open()
        await new.begin(start)
        for write in (
            old.begin(start),
            old.finish(record),
            old.event(0, Event(kind="e", message="")),
        ):
            try:
                await write
            except LeaseLost:
                continue
            raise AssertionError("a journal without its lease wrote something")
        await new.finish(record)
        state = await (await kept.journal()).open()
        assert list(state.finished) == ["evolve#0"] and state.events == 0, state


async def check_sealed_books(keep: Keep) -> None:
    """One open test at a time, the same ticket after a crash, closing twice, no group twice."""
    start, config = rehearsal_candidate(), ACCEPTANCE
    first, second = (start.with_component("text", text) for text in ("one", "two"))
    async with keep(Remaining(), _SEALED) as kept:
        await (await kept.journal()).open()
        book = await kept.book()
        ticket = await book.open_test(first, start)
        again = await (await kept.book()).open_test(first, start)
        assert again.test_id == ticket.test_id and again.alpha_t == ticket.alpha_t
        assert again.groups == ticket.groups and again.seed == ticket.seed
        keys = [group[0].group for group in ticket.groups]
        assert len(keys) == len(set(keys)) == config.max_pairs, keys
        assert {task.split for group in ticket.groups for task in group} == {"sealed"}


async def check_sealed_remembers(keep: Keep) -> None:
    """A candidate is tested once in a run; equal to the incumbent it is not tested at all."""
    start = rehearsal_candidate()
    child = start.with_component("text", "child")

    async def program(lab: DurableLab) -> object:
        because = Evidence(reason="check")
        same = await lab.propose(start, because)
        first = await lab.propose(child, because)
        count = lab.rollouts_done
        second = await lab.propose(child, because)
        third = await lab.propose(start.with_component("text", "another"), because)
        return [same, first == second, third, lab.rollouts_done == count]

    async with keep(Remaining(), _SEALED) as kept:
        ran = await run_once(kept, program)
        assert ran.trail == ["no_improvement", True, "blocked", True], ran.trail


CHECKS: dict[str, Check] = {
    "replay": check_replay,
    "kills": check_kills,
    "diverged": check_diverged,
    "in_flight": check_in_flight,
    "bare_rollouts": check_bare_rollouts,
    "no_overshoot": check_no_overshoot,
    "draws": check_draws,
    "shared_draw": check_shared_draw,
    "order": check_order,
    "events": check_events,
    "growth": check_growth,
    "lease": check_lease,
    "sealed_books": check_sealed_books,
    "sealed_remembers": check_sealed_remembers,
}
