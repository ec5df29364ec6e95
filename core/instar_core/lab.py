"""The Lab: the only door through which an evolver touches the world.

An evolver is ordinary ``async`` Python; every effect (rollout, model call, sealed test) goes
through the Lab, which writes the result under a key before returning it. After a crash the
evolver's function runs again from the top: finished effects return from the journal, the next one
runs for real.

Three seams make one Lab run everywhere: a :class:`Backend` performs effects, a :class:`Journal`
keeps them together with the budget, and a :class:`SealedBook` hands out sealed tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from random import Random
from typing import Literal, Protocol, TypeVar, runtime_checkable

from pydantic import Field

from instar_core.base import Frozen, JsonValue, content_hash
from instar_core.candidates import Candidate
from instar_core.evolution import (
    AcceptanceConfig,
    Event,
    Evidence,
    Prediction,
    SealedOutcome,
    Verdict,
)
from instar_core.messages import Messages
from instar_core.rollouts import Rollout
from instar_core.tasks import Splits, Task
from instar_core.usage import Amount, Remaining, Usage

__all__ = [
    "Backend",
    "CallOutcome",
    "Calls",
    "EffectKind",
    "EffectRecord",
    "EffectStart",
    "Evolver",
    "Journal",
    "JournalState",
    "Lab",
    "Parser",
    "Restarting",
    "Role",
    "RolloutRequest",
    "SealedBook",
    "SealedTicket",
]

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
Role = Literal["proposer", "judge"]
Parser = Callable[[str], T]
"""Turns a reply into a value; raises ``ValueError`` with a message the model can act on."""

EffectKind = Literal["rollout", "model_call", "tool_call", "ask", "embed", "order", "sealed", "now"]


class Lab(Protocol):
    """What an evolver may do. Deterministic given the journal; concurrency only by ``gather``."""

    async def rollouts(
        self, candidate: Candidate, tasks: Sequence[Task], *, n: int = 1, arm: str = ""
    ) -> list[Rollout]:
        """``n`` fresh attempts per task, in order (task-major); draws 0, 1, 2 … none twice.

        Rollouts whose infrastructure failed for good have ``score`` ``None``.

        Raises:
            BudgetExhausted: Before spending, if the rollouts do not fit.
        """
        ...

    async def ask(self, role: Role, messages: Messages, parse: Parser[T]) -> T:
        """The parsed reply of a model; on a parse error it is asked again with the error shown.

        Raises:
            ParseFailure: If no attempt could be parsed; quotes the last reply.
        """
        ...

    async def propose(
        self, candidate: Candidate, because: Evidence, predicts: Prediction | None = None
    ) -> Verdict:
        """Opens a sealed test of the candidate against the incumbent; tells the verdict alone."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors for texts, in order."""
        ...

    async def gather(
        self, name: str, items: Sequence[A], fn: Callable[[A], Awaitable[B]]
    ) -> list[B]:
        """Runs ``fn`` over the items concurrently; results in the items' order."""
        ...

    def completed(
        self, name: str, items: Sequence[A], fn: Callable[[A], Awaitable[B]]
    ) -> AsyncIterator[tuple[int, B]]:
        """Like gather, but yields (index, result) in order of arrival; the order is journalled."""
        ...

    def budget(self) -> Remaining:
        """What is left of the run's budget."""
        ...

    async def now(self) -> datetime:
        """The time, journalled: a replay sees the same value."""
        ...

    def rng(self, name: str) -> Random:
        """A random stream made of (run seed, name), the same on every replay."""
        ...

    def log(self, event: Event) -> None:
        """Shows something about the run; written once, also after replays."""
        ...


class Evolver(Protocol):
    """A gradient-free optimiser: one class with one method, configured by a frozen model.

    What a quote should know beforehand is optional: ``needs_proposer = True`` where the method asks
    a model to reflect, ``least_rollouts(data)``, below which a search can tell nothing, and
    ``check(seed, data)``, which raises for an agent or tasks that the method cannot work on.
    """

    name: str

    async def evolve(self, seed: Candidate, data: Splits, lab: Lab) -> Candidate:
        """The best candidate seen on validation (the seed itself when nothing better was found)."""
        ...


class RolloutRequest(Frozen):
    """One rollout to run: who, on what, which draw, and for which purpose."""

    candidate: Candidate
    task: Task
    draw: int = Field(ge=0)
    arm: str = ""
    sealed_test: str = Field(default="", description="id of the sealed test; empty in search")

    @property
    def identity(self) -> str:
        """Hash of what makes two rollouts the same: candidate, task, draw, arm, sealed or not.

        Not of the sealed test's id: that differs between two runs of the same history, and draws
        are new in every test anyway (the Lab takes them from the ticket's seed).
        """
        return content_hash(
            [
                self.candidate.digest,
                self.task.content_digest,
                self.draw,
                self.arm,
                "sealed" if self.sealed_test else "",
            ]
        )


class CallOutcome(Frozen):
    """What one journalled call inside a rollout gave back, and what it consumed."""

    value: JsonValue
    usage: Usage = Usage()


class Calls(Protocol):
    """The journal of the calls inside one rollout (or one ask)."""

    async def call(
        self,
        kind: Literal["model_call", "tool_call"],
        request: JsonValue,
        perform: Callable[[], Awaitable[CallOutcome]],
        *,
        reserve: Amount,
    ) -> CallOutcome:
        """The recorded outcome of this call if there is one, else performs and records it.

        The reservation is taken before ``perform`` and settled with the outcome's usage after it.
        If ``perform`` raises, the reservation is released for infrastructure errors raised before
        anything was sent (``error.nothing_sent``), and settled as spent otherwise. Instar's own
        errors and time-outs are recorded like outcomes, so that a replay raises them again.
        """
        ...


@runtime_checkable
class Restarting(Protocol):
    """A backend some of whose environments do not come back by replaying recorded calls.

    Optional: where it answers ``False``, a rollout that was under way at a crash starts over with
    new calls, and what it had consumed is waste.
    """

    def can_replay(self, request: RolloutRequest) -> bool:
        """Whether recorded calls alone bring this rollout's environment back."""
        ...


class Backend(Protocol):
    """Performs effects for a Lab: the real agent runtime, or a world."""

    async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
        """Runs and scores one attempt; every model and tool call goes through ``calls``."""
        ...

    def reserve_for(self, request: RolloutRequest) -> Amount:
        """A bound for the rollout itself (``rollouts=1``); its calls reserve their own tokens."""
        ...

    async def ask(self, role: Role, messages: Messages, calls: Calls) -> str:
        """One reply of the proposer or judge model, unparsed."""
        ...

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors for the texts."""
        ...


class EffectStart(Frozen):
    """An effect about to happen: its key, the hash of what is asked, what is reserved for it."""

    key: str = Field(description="scope path and ordinal within it, e.g. 'evolve/g:batch[3]#0'")
    kind: EffectKind
    content: str = Field(description="sha256 of the request")
    reserve: Amount = Amount()
    request: JsonValue = None


class EffectRecord(Frozen):
    """A finished effect as the journal holds it."""

    key: str
    kind: EffectKind
    content: str
    result: JsonValue
    usage: Usage = Usage()


class JournalState(Frozen):
    """What a journal held when it was opened: finished effects, and calls lost in flight."""

    finished: dict[str, EffectRecord] = Field(default_factory=dict)
    in_flight_lost: tuple[str, ...] = Field(
        default=(), description="keys started but not finished; settled as spent, issued again"
    )
    events: int = Field(default=0, description="events written so far: numbers 0 … events-1")
    unfinished: dict[str, str] = Field(
        default_factory=dict, description="key → content of starts that have no result"
    )


class Journal(Protocol):
    """Keeps a run's effects and budget together: a start and its reservation commit as one.

    Effects nest: a start is a *container* when another key begins with its own key and ``/`` (a
    rollout around its model calls). ``EffectRecord.usage`` is what the effect consumed beyond the
    effects inside it, so usages add up and nothing counts twice. Finishing, or abandoning as spent,
    books the reserved ``rollouts``.
    """

    async def open(self) -> JournalState:
        """Everything recorded so far, with the starts that a crash left open dealt with.

        * A container goes on where it was: it is not counted and its rollout not booked twice.
        * A ``rollout``, ``ask``, ``embed``, ``model_call`` or ``tool_call`` with nothing inside it
          was in flight: all of its reservation is booked as spent, and ``in_flight_lost`` names it.
        * Other kinds reserve nothing and are not counted.

        Every unfinished key may begin again.
        """
        ...

    async def begin(self, effect: EffectStart) -> None:
        """Records the start and reserves for it, atomically.

        Raises:
            BudgetExhausted: If the reservation does not fit; nothing is recorded.
            LeaseLost: If another worker holds the run.
        """
        ...

    async def finish(self, record: EffectRecord) -> None:
        """Records the result and settles the reservation, atomically. Same errors as begin."""
        ...

    async def abandon(self, key: str, *, spent: Usage | None) -> None:
        """Closes a start without a result: releases the reservation (``None``) or books usage."""
        ...

    async def event(self, seq: int, event: Event) -> None:
        """Appends event number ``seq``; a number already there is left as it is."""
        ...

    def remaining(self) -> Remaining:
        """What is left of the run's budget, as of the last reservation."""
        ...


class SealedTicket(Frozen):
    """Permission for one sealed test: its level and its groups in the recorded random order."""

    test_id: str
    alpha_t: float
    index_in_epoch: int = Field(ge=1)
    groups: tuple[tuple[Task, ...], ...] = Field(description="one tuple of tasks per group key")
    seed: int
    config: AcceptanceConfig = AcceptanceConfig()
    state: JsonValue = Field(
        default=None, description="SealedOutcome.state of the undecided test that goes on"
    )


class SealedBook(Protocol):
    """Keeps one agent's sealed tests of an epoch: levels by e-LOND, no group drawn twice."""

    async def open_test(self, candidate: Candidate, incumbent: Candidate) -> SealedTicket:
        """Opens the next test; while this pair's test is open (a crash) gives its ticket again.

        A test of the same pair that was closed as ``undecided`` may go on: its own level and state,
        the groups that remain. The first ``outcome.groups_used`` groups of a ticket have served.

        Raises:
            UserError: If the pool is worn (cannot serve a whole test) or another test is open.
        """
        ...

    async def close(
        self, ticket: SealedTicket, outcome: SealedOutcome, candidate: Candidate
    ) -> None:
        """Records the outcome; an accepted test raises e-LOND's R.

        Idempotent: closing a test that is closed already changes nothing. Only the ticket's
        ``test_id`` is read (after a crash the ticket comes without its groups).
        """
        ...
