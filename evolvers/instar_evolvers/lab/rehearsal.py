"""Rehearsal: a backend with a known answer and a process that can be killed, for the conformance
suite.

The backend's results are functions of what is asked; how long things take (its *weather*) is not.
It counts what it really performs, so that a check can see what was paid twice.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Literal, Protocol, TypeVar

from instar_core.base import JsonValue, content_hash
from instar_core.candidates import Candidate, Component, Harness
from instar_core.errors import ToolError
from instar_core.evolution import Event, Evidence, SealedOutcome
from instar_core.lab import (
    CallOutcome,
    Calls,
    EffectRecord,
    EffectStart,
    Journal,
    JournalState,
    Lab,
    Role,
    RolloutRequest,
    SealedBook,
    SealedTicket,
)
from instar_core.messages import Message, Messages
from instar_core.rollouts import Rollout, Score
from instar_core.tasks import Task, VerifierSpec
from instar_core.usage import ZERO, Amount, Remaining, Usage

__all__ = [
    "RESERVED_TOKENS",
    "Keep",
    "Keeping",
    "Kill",
    "Killed",
    "MortalBook",
    "MortalJournal",
    "RehearsalBackend",
    "rehearse",
    "rehearsal_candidate",
    "rehearsal_tasks",
]

T = TypeVar("T")
RESERVED_TOKENS = 20


class Keeping(Protocol):
    """Where one run and its agent's sealed tests are kept; outlives the processes that use it."""

    async def journal(self) -> Journal:
        """A journal for a new process, which takes the run over from the one before it."""
        ...

    async def book(self) -> SealedBook:
        """The sealed book for that process."""
        ...

    async def spent(self) -> Amount:
        """What the run's budget says was spent."""
        ...

    async def effects(self) -> int:
        """How many effects are kept."""
        ...

    async def events(self) -> list[Event]:
        """The Lab's events, in order."""
        ...


Keep = Callable[[Remaining, Sequence[Task]], AbstractAsyncContextManager[Keeping]]
"""Makes an empty place with a limit and a pool of sealed tasks."""


class Killed(BaseException):
    """The process is gone. Not an ``Exception``, so nothing handles it by accident."""


class Kill:
    """When the process dies: at the ``at``-th write to journal or book, before or after it.

    Args:
        at: Index of the write, from 0; ``None`` means never.
        after: Whether that write still reaches the disk.
    """

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.at = at
        self.after = after
        self.writes = 0
        self.dead = False

    async def write(self, perform: Callable[[], Awaitable[T]]) -> T:
        """Performs one write, unless the process dies first (or before it hears the answer)."""
        if self.dead:
            raise Killed
        number, self.writes = self.writes, self.writes + 1
        if number == self.at:
            self.dead = True
            if self.after:
                await perform()
            raise Killed
        return await perform()


class MortalJournal:
    """A journal whose process may die at any write."""

    def __init__(self, inner: Journal, kill: Kill) -> None:
        self._inner = inner
        self._kill = kill
        self.holds_objects = bool(getattr(inner, "holds_objects", False))

    async def open(self) -> JournalState:
        """See :class:`instar_core.lab.Journal`."""
        return await self._inner.open()

    async def begin(self, effect: EffectStart) -> None:
        """See :class:`instar_core.lab.Journal`."""
        await self._kill.write(lambda: self._inner.begin(effect))

    async def finish(self, record: EffectRecord) -> None:
        """See :class:`instar_core.lab.Journal`."""
        await self._kill.write(lambda: self._inner.finish(record))

    async def abandon(self, key: str, *, spent: Usage | None) -> None:
        """See :class:`instar_core.lab.Journal`."""
        await self._kill.write(lambda: self._inner.abandon(key, spent=spent))

    async def event(self, seq: int, event: Event) -> None:
        """See :class:`instar_core.lab.Journal`."""
        await self._kill.write(lambda: self._inner.event(seq, event))

    def remaining(self) -> Remaining:
        """See :class:`instar_core.lab.Journal`."""
        return self._inner.remaining()


class MortalBook:
    """A sealed book whose process may die at any write."""

    def __init__(self, inner: SealedBook, kill: Kill) -> None:
        self._inner = inner
        self._kill = kill

    async def open_test(self, candidate: Candidate, incumbent: Candidate) -> SealedTicket:
        """See :class:`instar_core.lab.SealedBook`."""
        return await self._kill.write(lambda: self._inner.open_test(candidate, incumbent))

    async def close(
        self, ticket: SealedTicket, outcome: SealedOutcome, candidate: Candidate
    ) -> None:
        """See :class:`instar_core.lab.SealedBook`."""
        await self._kill.write(lambda: self._inner.close(ticket, outcome, candidate))


def rehearsal_candidate(text: str = "start") -> Candidate:
    """A candidate with one component."""
    return Candidate(
        components={"text": Component(kind="instructions", content=text)},
        harness=Harness(model="rehearsal", environment="rehearsal"),
    )


def rehearsal_tasks(
    split: Literal["train", "validation", "sealed"], number: int
) -> tuple[Task, ...]:
    """Tasks that differ in their input and group."""
    return tuple(
        Task(
            id=f"{split}-{index}",
            input=f"{split} task {index}",
            split=split,
            group=f"{split}-{index}",
            verifier=VerifierSpec(name="exact"),
        )
        for index in range(number)
    )


def _chance(*parts: object) -> float:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / float(1 << 48)


class RehearsalBackend:
    """Rollouts of two model calls and a tool call; asks that sometimes answer in the wrong form.

    Args:
        weather: Seed of how long things take; 0 means that nothing waits.
        gain: How much better than the start any other text is.

    Attributes:
        performed: What really happened, by content → how often.
        requests: Rollout requests that were begun, by the content of the first call.
        flying: Calls that are happening now.
        most: Most calls that ever happened at once.
        hold: When set to a number, calls wait (for ever) once that many are in flight.
        full: Is set when they are.
    """

    def __init__(self, weather: int = 0, *, gain: float = 0.5) -> None:
        self.performed: Counter[str] = Counter()
        self.requests: list[RolloutRequest] = []
        self.flying = 0
        self.most = 0
        self.hold: int | None = None
        self.full = asyncio.Event()
        self._gain = gain
        self._weather = Random(weather) if weather else None
        self._start = rehearsal_candidate().digest

    def reserve_for(self, request: RolloutRequest) -> Amount:
        """One rollout; its calls reserve their own tokens."""
        del request
        return Amount(rollouts=1)

    async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
        """Two model calls around a tool call that fails now and then."""
        self.requests.append(request)
        who = request.identity
        usage = ZERO
        for step in range(2):
            outcome = await self._call(calls, "model_call", [who, step])
            usage = usage + outcome.usage
        try:
            tool = await self._call(calls, "tool_call", [who, "tool"])
            usage = usage + tool.usage
        except ToolError:
            usage = usage + Usage(output_tokens=RESERVED_TOKENS)
        better = self._gain if request.candidate.digest != self._start else 0.0
        reward = float(_chance("reward", who) < 0.3 + better)
        return Rollout(
            id=who[:32],
            task_id=request.task.id,
            candidate_digest=request.candidate.digest,
            draw=request.draw,
            arm=request.arm,
            score=Score(reward=reward),
            usage=usage,
        )

    async def ask(self, role: Role, messages: Messages, calls: Calls) -> str:
        """A number, or at first words without one (a third of the requests)."""
        said: JsonValue = [message.model_dump(mode="json") for message in messages]
        await self._call(calls, "model_call", [role, said])
        chance = _chance("ask", content_hash(said))
        wrong = chance < 0.34 and not any(m.role == "assistant" for m in messages)
        return "no number" if wrong else str(int(chance * 1000))

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Vectors of the texts' hashes."""
        self.performed[content_hash(["embed", list(texts)])] += 1
        return [[_chance(text, axis) for axis in range(3)] for text in texts]

    async def _call(
        self, calls: Calls, kind: Literal["model_call", "tool_call"], request: JsonValue
    ) -> CallOutcome:
        content = content_hash([kind, request])

        async def perform() -> CallOutcome:
            self.performed[content] += 1
            self.flying += 1
            self.most = max(self.most, self.flying)
            try:
                await self._wait()
            finally:
                self.flying -= 1
            if kind == "tool_call" and _chance("tool", content) < 0.2:
                # The call was sent, so all of its reservation counts as spent.
                raise ToolError("the tool refused")
            tokens = 5 + int(_chance("tokens", content) * (RESERVED_TOKENS - 5))
            return CallOutcome(
                value={"said": content[:8]}, usage=Usage(output_tokens=tokens, model_calls=1)
            )

        return await calls.call(kind, request, perform, reserve=Amount(tokens=RESERVED_TOKENS))

    async def _wait(self) -> None:
        if self.hold is not None and self.flying >= self.hold:
            self.full.set()
        if self.hold is not None:
            await asyncio.Event().wait()
        if self._weather is not None:
            for _ in range(self._weather.randrange(6)):
                await asyncio.sleep(0)


async def rehearse(lab: Lab, *, propose: bool = True) -> list[JsonValue]:
    """A small evolver that uses every part of the Lab.

    Returns:
        What it saw and chose, without anything that depends on the clock.
    """
    start, tasks = rehearsal_candidate(), rehearsal_tasks("train", 8)
    trail: list[JsonValue] = []
    seen = await lab.rollouts(start, tasks[:3], n=2)
    trail.append([[r.task_id, r.draw, r.reward] for r in seen])
    lab.log(Event(kind="seen", message=f"{len(seen)} rollouts"))
    idea = await lab.ask("proposer", (Message(role="user", content="an idea?"),), int)
    salt = lab.rng("children").randrange(1000)
    children = [start.with_component("text", f"idea {idea} {salt} {i}") for i in range(3)]

    async def look(child: Candidate) -> JsonValue:
        first = await lab.rollouts(child, tasks[3:5])
        lab.log(Event(kind="look", message=child.digest[:8]))
        more = await lab.rollouts(child, tasks[4:6], arm="more")
        judged = await lab.ask("judge", (Message(role="user", content=child.digest),), int)
        left = lab.budget()
        return [[r.draw for r in (*first, *more)], [r.reward for r in first], judged, left.tokens]

    trail.append(list(await lab.gather("look", children, look)))

    async def race(child: Candidate) -> JsonValue:
        lab.log(Event(kind="race", message=child.digest[:8]))
        return [r.reward for r in await lab.rollouts(child, tasks[5:7])]

    arrived: list[tuple[int, JsonValue]] = []
    async for index, rewards in lab.completed("race", children, race):
        arrived.append((index, rewards))
    trail.append([list(pair) for pair in sorted(arrived, key=lambda pair: pair[0])])
    trail.append([round(x, 9) for vector in await lab.embed(["a", "b"]) for x in vector])
    trail.append(lab.budget().rollouts)
    if propose:
        best = children[idea % len(children)]
        trail.append(await lab.propose(best, Evidence(reason="rehearsed")))
    lab.log(Event(kind="end", message="done"))
    return trail
