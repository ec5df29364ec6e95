"""DurableLab: the Lab over a journal, a backend and a sealed book.

An evolver that runs through it can be killed anywhere and started again from its top: what is
    recorded
returns, the rest happens. The same class serves the service (journal in Postgres) and plain Python
(journal in memory); only the three parts differ.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import TypeVar

from instar_core.base import content_hash
from instar_core.candidates import Candidate
from instar_core.errors import BudgetExhausted, LabMisuse
from instar_core.evolution import Event, Evidence, Prediction, Verdict
from instar_core.lab import (
    Backend,
    EffectStart,
    Journal,
    Parser,
    Role,
    RolloutRequest,
    SealedBook,
)
from instar_core.messages import Messages
from instar_core.rollouts import Rollout
from instar_core.tasks import Task
from instar_core.usage import Remaining, Usage
from instar_evolvers.lab.acceptance import SealedRun, run_sealed_test
from instar_evolvers.lab.asking import Asking
from instar_evolvers.lab.branches import Arrivals, Gathering, pool
from instar_evolvers.lab.config import LabConfig
from instar_evolvers.lab.effects import EffectDoor, raise_if_exhausted
from instar_evolvers.lab.rolling import Rolling
from instar_evolvers.lab.scope import CURRENT, Group, Scope

__all__ = ["DurableLab", "Proposed", "open_lab"]

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
_ROOT = "evolve"


@dataclass(frozen=True, slots=True)
class Proposed:
    """One call of ``propose``: what was put forward, why, and what became of it."""

    candidate: Candidate
    because: Evidence
    predicts: Prediction | None
    verdict: Verdict
    test_id: str
    words: str


def open_lab(
    run_id: str,
    backend: Backend,
    journal: Journal,
    book: SealedBook,
    *,
    incumbent: Candidate,
    seed: int = 0,
    config: LabConfig | None = None,
) -> DurableLab:
    """A Lab for one run; call ``await lab.start()`` before the evolver and ``await lab.close()``
    after.

    Args:
        run_id: Names the run in ids derived for it.
        backend: Performs rollouts, asks and embeddings.
        journal: The run's effects and budget.
        book: The agent's sealed tests.
        incumbent: The version that proposals are tested against.
        seed: Of all random streams of this run.
        config: Widths and retries.
    """
    return DurableLab(run_id, backend, journal, book, incumbent=incumbent, seed=seed, config=config)


class DurableLab:
    """See the module and :class:`instar_core.lab.Lab`.

    Attributes:
        in_flight_lost: Calls that the last crash caught in flight.
        asked: Role → number of asks made.
        usable: Role → number of asks whose reply could be used. A run whose proposer was asked and
            never usable has failed.
        proposals: What was proposed, in order.
    """

    def __init__(
        self,
        run_id: str,
        backend: Backend,
        journal: Journal,
        book: SealedBook,
        *,
        incumbent: Candidate,
        seed: int = 0,
        config: LabConfig | None = None,
    ) -> None:
        self.run_id = run_id
        self.config = config or LabConfig()
        self.in_flight_lost = 0
        self.asked: dict[Role, int] = {"proposer": 0, "judge": 0}
        self.usable: dict[Role, int] = {"proposer": 0, "judge": 0}
        self.proposals: list[Proposed] = []
        self.should_stop: Callable[[], bool] | None = None
        self._backend = backend
        self._book = book
        self._incumbent = incumbent
        self._seed = seed
        self._door = EffectDoor(journal, self._stopping)
        self._root = Scope(_ROOT, self, self._emit)
        self._slots = asyncio.Semaphore(self.config.concurrency)
        self._rolling = Rolling(self._door, backend, self._slots, self.config)
        self._asking = Asking(self._door, backend, self._slots, self.config)
        self._events: deque[tuple[int, Event]] = deque()
        self._numbered = 0
        self._written = 0
        self._writing = asyncio.Lock()
        self._limit = Remaining()
        self._started = False

    async def start(self) -> None:
        """Reads the journal; must come before anything else."""
        state = await self._door.open()
        self.in_flight_lost = len(state.in_flight_lost)
        self._written = state.events
        self._started = True

        async def first() -> object:
            return {"remaining": self._door.journal.remaining().model_dump(mode="json")}

        content = content_hash(["start", self._seed, self._incumbent.digest])
        opening = await self._door.simple(f"{_ROOT}!start", "now", content, first)
        self._limit = Remaining.model_validate(opening["remaining"])

    async def close(self) -> None:
        """Ends what is still running and writes the events that wait; call it also after an
        error."""
        while self._root.open_arrivals:
            await self._root.open_arrivals[-1].abort()
        if self._door.fatal is None:
            await self._flush()

    @property
    def spent(self) -> Usage:
        """What the run has consumed, waste and recorded effects of earlier processes included."""
        return self._door.spent

    @property
    def rollouts_done(self) -> int:
        """Rollouts handed out so far, recorded ones and those of sealed tests included."""
        return self._rolling.done

    @property
    def replayed(self) -> int:
        """Effects that returned from the journal instead of happening."""
        return self._door.replayed

    # -- rollouts ---------------------------------------------------------------------------------

    async def rollouts(
        self, candidate: Candidate, tasks: Sequence[Task], *, n: int = 1, arm: str = ""
    ) -> list[Rollout]:
        """See :class:`instar_core.lab.Lab`."""
        if n < 1:
            raise LabMisuse(f"rollouts(n={n!r}): n must be at least 1.")
        scope = self._scope()
        with scope.hold("rollouts") as key:
            requests = [
                RolloutRequest(
                    candidate=candidate,
                    task=task,
                    draw=scope.draw((candidate.digest, task.content_digest)),
                    arm=arm,
                )
                for task in tasks
                for _ in range(n)
            ]
            await self._flush()
            await self._fits(key, requests)
            size = len(requests)
            results = await pool(
                self._door,
                size,
                self.config.concurrency,
                lambda index: self._rolling.run(f"{key}.{index}", requests[index], of=size),
            )
            for rollout, request in zip(results, requests, strict=True):
                scope.used.add(rollout.usage, rollouts=self._backend.reserve_for(request).rollouts)
        return results

    async def _fits(self, key: str, requests: Sequence[RolloutRequest]) -> None:
        """Refuses a call whose rollouts cannot all be paid, before any of them is."""
        door = self._door
        for index in range(len(requests) if door.finished else 0):
            if (record := door.finished.get(f"{key}.{index}")) is not None:
                raise_if_exhausted(record)
        content = content_hash(["fits", len(requests)])
        if door.recorded(key, "rollout", content) is not None:
            return
        left = door.journal.remaining().rollouts
        if left is None:
            return
        names = (f"{key}.{index}" for index in range(len(requests)))
        # A replayed reference is no attempt of the agent: the backend reserves no rollout for it.
        fresh = sum(
            self._backend.reserve_for(request).rollouts
            for name, request in zip(names, requests, strict=True)
            if name not in door.finished and name not in door.unfinished
        )
        if fresh > left:
            words = (
                f"{fresh} more rollouts do not fit into what is left of the budget ({left}). "
                "Nothing was spent for them."
            )
            start = EffectStart(key=key, kind="rollout", content=content)
            await door.exhaust(start, words)
            raise BudgetExhausted(words, remedy="Raise the rollout limit or ask for fewer.")

    # -- asks and vectors -------------------------------------------------------------------------

    async def ask(self, role: Role, messages: Messages, parse: Parser[T]) -> T:
        """See :class:`instar_core.lab.Lab`."""
        scope = self._scope()
        with scope.hold("ask") as key:
            await self._flush()
            self.asked[role] += 1
            value = await self._asking.run(key, role, messages, parse, scope.used)
            self.usable[role] += 1
        return value

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """See :class:`instar_core.lab.Lab`."""
        with self._scope().hold("embed") as key:
            await self._flush()
            wanted = list(texts)

            async def perform() -> object:
                async with self._slots:
                    vectors = await self._backend.embed(wanted)
                return {"vectors": [[float(x) for x in vector] for vector in vectors]}

            result = await self._door.simple(key, "embed", content_hash(wanted), perform)
        return [list(vector) for vector in result["vectors"]]

    # -- proposals --------------------------------------------------------------------------------

    async def propose(
        self, candidate: Candidate, because: Evidence, predicts: Prediction | None = None
    ) -> Verdict:
        """See :class:`instar_core.lab.Lab`.

        A candidate that was proposed before in this run gets the same verdict again without another
        test, and one that equals the incumbent is ``no_improvement``. Tests beyond the number that
        the run may open are ``blocked``. A budget that runs out in mid-test leaves it
        ``undecided``.
        """
        scope = self._scope()
        with scope.hold("propose") as key:
            await self._flush()
            digest = candidate.digest
            verdict: Verdict
            known = next((p for p in self.proposals if p.candidate.digest == digest), None)
            if known is not None:
                verdict, test_id, words = known.verdict, known.test_id, known.words
            elif digest == self._incumbent.digest:
                verdict, test_id = "no_improvement", ""
                words = "The candidate is the current version; there is nothing to test."
            elif sum(bool(p.test_id) for p in self.proposals) >= self.config.max_sealed_tests:
                verdict, test_id = "blocked", ""
                words = f"This run may open {self.config.max_sealed_tests} sealed test(s)."
            else:
                verdict, test_id, words = await self._test(key, candidate, scope)
            self.proposals.append(Proposed(candidate, because, predicts, verdict, test_id, words))
        return verdict

    async def _test(self, key: str, candidate: Candidate, scope: Scope) -> tuple[Verdict, str, str]:
        async def roll(below: str, request: RolloutRequest) -> Rollout:
            return await self._rolling.run(f"{key}/{below}", request, of=1, retries=0)

        run = SealedRun(
            door=self._door,
            book=self._book,
            key=key,
            rollout=roll,
            lookahead=min(self.config.sealed_lookahead, self.config.concurrency),
            retries=self.config.infrastructure_retries,
            wait_s=self.config.retry_wait_s,
        )
        told = await run_sealed_test(run, candidate, self._incumbent)
        scope.used.add(told.usage, rollouts=told.rollouts)
        return told.verdict, told.test_id, told.words

    # -- concurrency ------------------------------------------------------------------------------

    async def gather(
        self, name: str, items: Sequence[A], fn: Callable[[A], Awaitable[B]]
    ) -> list[B]:
        """See :class:`instar_core.lab.Lab`. All branches end before a branch's error is raised."""
        scope = self._scope()
        with scope.hold(f"gather {name}") as key:
            await self._flush()
            self._door.check()
            group = Group(scope, Group.path_for(key, name), len(items), live=True)
            return await Gathering(self._door, group, items, fn).all()

    def completed(
        self, name: str, items: Sequence[A], fn: Callable[[A], Awaitable[B]]
    ) -> Arrivals[A, B]:
        """See :class:`instar_core.lab.Lab`. Iterate it to its end."""
        scope = self._scope()
        with scope.hold(f"completed {name}") as key:
            path = Group.path_for(key, name)

        def start() -> Gathering[A, B]:
            group = Group(scope, path, len(items), live=False)
            return Gathering(self._door, group, items, fn)

        return Arrivals(self._door, scope, key, start)

    # -- the small things -------------------------------------------------------------------------

    def budget(self) -> Remaining:
        """See :class:`instar_core.lab.Lab`.

        Seen from this strand of the program: what it, and everything before it, has consumed; of
        wall time, what there was at the start (seconds do not repeat; see :meth:`now`). What
        runs beside it is not in it (a replay could not tell), so a reservation may still be
        refused.
        """
        scope, limit = self._scope(), self._limit
        used = (scope.base, scope.used)

        def left(total: float | None, name: str) -> float | None:
            if total is None:
                return None
            return max(0.0, total - sum(float(getattr(meter, name)) for meter in used))

        rollouts, tokens = left(limit.rollouts, "rollouts"), left(limit.tokens, "tokens")
        return Remaining(
            rollouts=None if rollouts is None else int(rollouts),
            tokens=None if tokens is None else int(tokens),
            cost_usd=left(limit.cost_usd, "cost_usd"),
            wall_s=limit.wall_s,
        )

    async def now(self) -> datetime:
        """See :class:`instar_core.lab.Lab`."""

        async def perform() -> object:
            return {"now": datetime.now(UTC).isoformat()}

        with self._scope().hold("now") as key:
            result = await self._door.simple(key, "now", content_hash("now"), perform)
        return datetime.fromisoformat(result["now"])

    def rng(self, name: str) -> Random:
        """See :class:`instar_core.lab.Lab`. The same name starts the same stream each time."""
        digest = hashlib.sha256(f"{self._seed}/{name}".encode()).digest()
        return Random(int.from_bytes(digest, "big"))

    def log(self, event: Event) -> None:
        """See :class:`instar_core.lab.Lab`.

        Events are numbered in the order of the program, not of the clock: those of a branch wait
        for the branches before it.
        """
        self._scope().emit(event)

    def _emit(self, event: Event) -> None:
        if self._numbered >= self._written:
            self._events.append((self._numbered, event))
        self._numbered += 1

    async def _flush(self) -> None:
        if not self._events:
            return
        async with self._writing:
            while self._events:
                seq, event = self._events[0]
                await self._door.event(seq, event)
                self._events.popleft()

    def _scope(self) -> Scope:
        if not self._started:
            raise LabMisuse("The Lab is not started.", remedy="Call `await lab.start()` first.")
        scope = CURRENT.get()
        return scope if scope is not None and scope.owner is self else self._root

    def _stopping(self) -> bool:
        return self.should_stop is not None and self.should_stop()
