"""MemoryJournal and MemoryBook: the Lab's two books in memory, for plain Python, selfchecks and
tests.

They keep the same promises as the service's (one conformance suite runs against both), except that
they die with their process. A crash is simulated by opening a second journal on the same ``tape``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from instar_core.base import content_hash
from instar_core.candidates import Candidate
from instar_core.errors import ConflictError, LabMisuse, LeaseLost, UserError
from instar_core.evolution import AcceptanceConfig, Event, SealedOutcome
from instar_core.lab import EffectRecord, EffectStart, JournalState, SealedTicket
from instar_core.statistics.elond import ELond
from instar_core.tasks import Task
from instar_core.usage import Remaining, Usage
from instar_evolvers.lab.budget import Budget

__all__ = ["MemoryBook", "MemoryJournal", "Tape"]

_IN_FLIGHT = frozenset({"rollout", "ask", "embed", "model_call", "tool_call"})


@dataclass(slots=True)
class Tape:
    """What a memory journal has recorded; outlives the journal that wrote it."""

    finished: dict[str, EffectRecord] = field(default_factory=dict)
    started: dict[str, EffectStart] = field(default_factory=dict)
    lost: dict[str, EffectStart] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    holder: int = 0
    writes: int = 0


class MemoryJournal:
    """A journal on a tape in memory.

    Args:
        limit: The run's limits; none by default.
        tape: An earlier journal's tape, to go on from it. The earlier one then loses its lease.
        budget: A budget to draw on (with parents); replaces ``limit``, and must be the same object
            again when a tape goes on.
        json_round_trip: Keep JSON text instead of the objects, as a database would.
        clock: Seconds that only grow; wall time counts from ``open``.
    """

    def __init__(
        self,
        limit: Remaining | None = None,
        *,
        tape: Tape | None = None,
        budget: Budget | None = None,
        json_round_trip: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tape = tape if tape is not None else Tape()
        self.budget = budget if budget is not None else Budget(limit)
        self.holds_objects = not json_round_trip
        self._token = -1
        self._clock = clock
        self._ticked = clock()

    async def open(self) -> JournalState:
        """See :class:`instar_core.lab.Journal`."""
        tape = self.tape
        tape.holder += 1
        self._token = tape.holder
        self._ticked = self._clock()
        inside = {
            key[:cut]
            for key in (*tape.finished, *tape.started)
            for cut in range(len(key))
            if key[cut] == "/"
        }
        lost: list[str] = []
        for key, start in list(tape.started.items()):
            if key in inside:
                continue
            del tape.started[key]
            tape.lost[key] = start
            if start.kind in _IN_FLIGHT:
                self.budget.forfeit(start.reserve)
                lost.append(key)
        return JournalState.model_construct(
            finished={key: self._read(record) for key, record in tape.finished.items()},
            in_flight_lost=tuple(lost),
            events=len(tape.events),
            unfinished={key: start.content for key, start in (tape.started | tape.lost).items()},
        )

    async def begin(self, effect: EffectStart) -> None:
        """See :class:`instar_core.lab.Journal`."""
        tape = self._held()
        if effect.key in tape.finished:
            raise LabMisuse(f"The effect {effect.key!r} is finished already.")
        if effect.key in tape.started:
            return  # a container that a crash left open: its reservation stands
        self._tick()
        self.budget.reserve(effect.reserve)
        tape.started[effect.key] = effect
        tape.writes += 1

    async def finish(self, record: EffectRecord) -> None:
        """See :class:`instar_core.lab.Journal`."""
        tape = self._held()
        start = self._close(record.key)
        self.budget.settle(start.reserve, record.usage)
        if not self.holds_objects:
            text = json.dumps(record.model_dump(mode="json"), allow_nan=False)
            record = EffectRecord.model_construct(key=record.key, result=text)
        tape.finished[record.key] = record
        tape.writes += 1

    async def abandon(self, key: str, *, spent: Usage | None) -> None:
        """See :class:`instar_core.lab.Journal`."""
        start = self._close(key)
        if spent is None:
            self.budget.release(start.reserve)
        else:
            self.budget.settle(start.reserve, spent)
        self.tape.lost[key] = start
        self.tape.writes += 1

    async def event(self, seq: int, event: Event) -> None:
        """See :class:`instar_core.lab.Journal`."""
        tape = self._held()
        if seq == len(tape.events):
            tape.events.append(event)
        elif seq > len(tape.events):
            raise LabMisuse(f"Event {seq} would leave a gap after {len(tape.events)}.")

    def remaining(self) -> Remaining:
        """See :class:`instar_core.lab.Journal`."""
        self._tick()
        return self.budget.remaining()

    def _tick(self) -> None:
        if self.budget.limits_wall:
            now = self._clock()
            self.budget.spend_wall(now - self._ticked)
            self._ticked = now

    def _held(self) -> Tape:
        if self.tape.holder != self._token:
            raise LeaseLost(
                "Another journal was opened on this tape.", remedy="Go on with the newer one."
            )
        return self.tape

    def _close(self, key: str) -> EffectStart:
        start = self._held().started.pop(key, None)
        if start is None:
            raise LabMisuse(f"The effect {key!r} is not under way; only a started effect can end.")
        return start

    def _read(self, record: EffectRecord) -> EffectRecord:
        if self.holds_objects:
            return record
        return EffectRecord.model_validate_json(cast(str, record.result))


@dataclass(slots=True)
class _Entry:
    """One sealed test in the book."""

    ticket: SealedTicket
    pair: tuple[str, str]
    epoch: int
    open: bool = True
    outcomes: list[SealedOutcome] = field(default_factory=list)
    remaining: tuple[tuple[Task, ...], ...] = ()


class MemoryBook:
    """The sealed tests of one agent, in memory.

    Groups are drawn by least use, at random among equals, so none comes twice before all came once.
    A group that served ``max_uses_of_group`` tests of an epoch rests until the epoch ends.

    Args:
        tasks: The sealed tasks; one group per ``task.group``.
        config: Level, sizes and limits.
        seed: Of the drawing; recorded with each ticket.
        name: Begins the tests' ids.

    Attributes:
        outcomes: Test id → its latest outcome, for approvers and tests.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        config: AcceptanceConfig | None = None,
        *,
        seed: int = 0,
        name: str = "test",
    ) -> None:
        self.config = config or AcceptanceConfig()
        self.outcomes: dict[str, SealedOutcome] = {}
        self._groups: dict[str, list[Task]] = {}
        for task in tasks:
            if task.split != "sealed":
                raise UserError(
                    f"Task {task.id!r} is of the split {task.split!r}; a sealed book takes sealed "
                    "tasks only.",
                    remedy="Give it the tasks whose split is 'sealed'.",
                )
            self._groups.setdefault(task.group, []).append(task)
        self._uses = dict.fromkeys(self._groups, 0)
        self._served = dict.fromkeys(self._groups, 0)
        self._seed = seed
        self._name = name
        self._entries: dict[str, _Entry] = {}
        self._epoch = 1
        self._level = ELond(alpha=self.config.alpha, horizon=self.config.epoch_tests)

    async def open_test(self, candidate: Candidate, incumbent: Candidate) -> SealedTicket:
        """See :class:`instar_core.lab.SealedBook`."""
        pair = (candidate.digest, incumbent.digest)
        for entry in self._entries.values():
            if entry.open and entry.pair == pair:
                return entry.ticket
            if entry.open:
                raise ConflictError(
                    f"The sealed test {entry.ticket.test_id!r} of candidate {entry.pair[0][:12]} "
                    "is still open; an agent has one open test at a time.",
                    remedy="Let that run finish or cancel it, then propose again.",
                )
        resumed = self._resume(pair)
        return resumed if resumed is not None else self._open(pair)

    async def close(
        self, ticket: SealedTicket, outcome: SealedOutcome, candidate: Candidate
    ) -> None:
        """See :class:`instar_core.lab.SealedBook`."""
        entry = self._entries.get(ticket.test_id)
        if entry is None:
            raise UserError(f"There is no sealed test {ticket.test_id!r} in this book.")
        if not entry.open:
            return
        entry.open = False
        entry.outcomes.append(outcome)
        self.outcomes[ticket.test_id] = outcome
        used, rest = entry.ticket.groups[: outcome.groups_used], entry.ticket.groups
        entry.remaining = rest[outcome.groups_used :] if outcome.verdict == "undecided" else ()
        for group in used:
            self._served[group[0].group] += 1
            if entry.epoch == self._epoch:
                self._uses[group[0].group] += 1
        if outcome.verdict == "accepted" and entry.epoch == self._epoch:
            self._level = self._level.model_copy(update={"accepted": self._level.accepted + 1})

    def _resume(self, pair: tuple[str, str]) -> SealedTicket | None:
        """The last undecided test of this pair with the groups that remain, on its own level."""
        for entry in reversed(self._entries.values()):
            if entry.pair != pair or not entry.outcomes or not entry.remaining:
                continue
            if entry.outcomes[-1].reason == "missing":
                return None  # what is missing stays missing: only a new test, on a new level
            state = cast(dict[str, Any], entry.outcomes[-1].state or {"pairs": []})
            if len(state["pairs"]) + len(entry.remaining) < self.config.min_pairs:
                return None
            entry.open = True
            entry.ticket = entry.ticket.model_copy(
                update={
                    "groups": entry.remaining,
                    "state": state,
                    "seed": entry.ticket.seed + len(entry.outcomes),
                }
            )
            entry.remaining = ()
            return entry.ticket
        return None

    def _open(self, pair: tuple[str, str]) -> SealedTicket:
        if self._level.opened >= self.config.epoch_tests:
            self._epoch += 1
            self._level = ELond(alpha=self.config.alpha, horizon=self.config.epoch_tests)
            self._uses = dict.fromkeys(self._groups, 0)
        fresh = [g for g, n in self._uses.items() if n < self.config.max_uses_of_group]
        whole = min(self.config.max_pairs, max(len(self._groups), self.config.min_pairs))
        if len(fresh) < whole:
            raise UserError(
                f"The sealed pool is worn: {len(fresh)} of its {len(self._groups)} groups may "
                f"still serve, and a whole test needs {whole}.",
                remedy="Add sealed tasks in new groups; those that served go to the training set.",
            )
        number = len(self._entries) + 1
        seed = int(content_hash([self._seed, self._name, number])[:12], 16)
        rng = Random(seed)
        rng.shuffle(fresh)
        fresh.sort(key=lambda group: self._served[group])
        chosen = fresh[:whole]
        # The least used come first only in the choice; the order of the test is random again.
        rng.shuffle(chosen)
        ticket = SealedTicket.model_construct(
            test_id=f"{self._name}-{number}",
            alpha_t=self._level.next_level,
            index_in_epoch=self._level.opened + 1,
            groups=tuple(tuple(self._groups[group]) for group in chosen),
            seed=seed,
            config=self.config,
            state=None,
        )
        self._level = self._level.model_copy(update={"opened": self._level.opened + 1})
        self._entries[ticket.test_id] = _Entry(ticket, pair, self._epoch)
        return ticket
