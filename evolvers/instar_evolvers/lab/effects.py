"""Effects: what is recorded returns, what is not is begun, performed and finished, under one key.

This is the Lab's core below scopes and draws: one door to the journal for rollouts, asks and the
calls inside them. Whatever the journal refuses for good (a lost lease, a store that is away)
becomes *fatal*: from then on nothing more is started or written by this Lab.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple, cast

from instar_core import errors
from instar_core.base import JsonValue, content_hash
from instar_core.errors import (
    BudgetExhausted,
    InfrastructureError,
    InstarError,
    LabMisuse,
    LeaseLost,
    ReplayDiverged,
    RunCancelled,
)
from instar_core.evolution import Event
from instar_core.lab import (
    CallOutcome,
    EffectKind,
    EffectRecord,
    EffectStart,
    Journal,
    JournalState,
)
from instar_core.usage import ZERO, Amount, Usage

__all__ = ["EffectDoor", "Perform", "Recorder", "Tried", "as_usage", "minus", "raise_if_exhausted"]

_CONTROL = (BudgetExhausted, LabMisuse, LeaseLost, ReplayDiverged, RunCancelled)
_RECORDABLE: dict[str, type[InstarError]] = {
    name: getattr(errors, name)
    for name in errors.__all__
    if name != "boundary" and not issubclass(getattr(errors, name), _CONTROL)
}
_FIELDS = tuple(name for name in Usage.model_fields if name != "cost_known")


class Tried(NamedTuple):
    """What an effect gave: the journal's form of it, all that it consumed, and the value itself."""

    result: Any
    usage: Usage
    value: Any = None


def as_usage(amount: Amount) -> Usage:
    """A reservation as usage, for what must be taken as spent."""
    return Usage(
        output_tokens=amount.tokens,
        cost_usd=amount.cost_usd,
        cost_known=False,
        wall_s=amount.wall_s,
    )


def minus(total: Usage, inside: Usage) -> Usage:
    """What remains of a usage when the part booked inside is taken off; never below zero."""
    if inside is ZERO:
        return total
    rest = {name: max(0, getattr(total, name) - getattr(inside, name)) for name in _FIELDS}
    return Usage(**rest, cost_known=total.cost_known)


Perform = Callable[["Recorder"], Awaitable[Tried]]
"""One attempt of an effect, with the journal of the calls inside it."""


class EffectDoor:
    """Runs effects over a journal. One per Lab.

    Args:
        journal: Keeps effects and budget.
        should_stop: Asked before each effect; true means that the run was cancelled. It may also
            raise an exception of its own, which passes out untouched.
    """

    def __init__(self, journal: Journal, should_stop: Callable[[], bool] | None = None) -> None:
        self.journal = journal
        self.finished: dict[str, EffectRecord] = {}
        self.unfinished: dict[str, str] = {}
        self.fatal: BaseException | None = None
        self.replayed = 0
        self.spent = ZERO
        # A journal in memory holds the objects themselves; all others get JSON.
        self.holds_objects = bool(getattr(journal, "holds_objects", False))
        self._should_stop = should_stop
        self._inside: set[str] = set()

    async def open(self) -> JournalState:
        """Reads what is recorded; must come first."""
        state = await self.journal.open()
        self.finished = state.finished
        self.unfinished = state.unfinished
        for record in state.finished.values():
            self.book(record.usage)
        for key in (*state.finished, *state.unfinished):
            head, slash, _ = key.rpartition("/")
            if slash:
                self._inside.add(head)
        return state

    def book(self, usage: Usage) -> None:
        """Adds to what the run has spent."""
        if usage is not ZERO:
            self.spent = self.spent + usage

    def under_way(self, head: str) -> bool:
        """Whether something is recorded directly inside ``head`` (with the next ``/`` after it)."""
        return head in self._inside

    def check_fatal(self) -> None:
        """Raises what ended this Lab, if anything did."""
        if self.fatal is not None:
            raise self.fatal

    def check(self) -> None:
        """Raises what keeps the next effect from happening, if anything does."""
        self.check_fatal()
        if self._should_stop is not None and self._should_stop():
            raise RunCancelled("The run was cancelled.", remedy="What is recorded stays recorded.")

    def recorded(self, key: str, kind: EffectKind, content: str) -> EffectRecord | None:
        """The finished record under a key, if there is one.

        Raises:
            ReplayDiverged: If something else was recorded or begun under this key.
            BudgetExhausted: If the record says that the budget did not allow it.
            RunCancelled: If the run is to stop.
        """
        self.check()
        record = self.finished.get(key)
        before = record.content if record is not None else self.unfinished.get(key, content)
        if before != content:
            what = record.kind if record is not None else "effect"
            self.fatal = ReplayDiverged(
                f"Effect {key!r} was recorded as a {what} with content {before[:12]}, but is now a "
                f"{kind} with content {content[:12]}.",
                remedy="The evolver does something else than before: its code, its inputs, or "
                "something that it reads outside the Lab has changed. Restart the run; rollouts "
                "that are still the same are reused.",
            )
            raise self.fatal
        if record is None:
            return None
        self.replayed += 1
        raise_if_exhausted(record)
        return record

    async def event(self, seq: int, event: Event) -> None:
        """Appends an event."""
        self.check_fatal()
        await self._write(self.journal.event(seq, event))

    async def begin(self, start: EffectStart) -> None:
        """Records a start. A refusal by the budget is recorded too, so that a replay sees it
        again."""
        try:
            await self.journal.begin(start)
        except BudgetExhausted as error:
            await self.exhaust(start, str(error))
            raise
        except BaseException as error:
            self.fail(error)
            raise

    async def exhaust(self, start: EffectStart, words: str) -> None:
        """Records that the budget did not allow an effect which had not begun."""
        free = start.model_copy(update={"reserve": Amount()})
        await self._write(self.journal.begin(free))
        await self.finish(start, {"exhausted": words}, ZERO)

    async def finish(self, start: EffectStart, result: Any, usage: Usage) -> None:
        """Records a result; after this it is never paid again."""
        record = EffectRecord.model_construct(
            key=start.key, kind=start.kind, content=start.content, result=result, usage=usage
        )
        await self._write(self.journal.finish(record))
        self.book(usage)

    async def abandon(self, key: str, spent: Usage | None) -> None:
        """Closes a start without a result."""
        await self._write(self.journal.abandon(key, spent=spent))
        if spent is not None:
            self.book(spent)

    async def _write(self, write: Awaitable[None]) -> None:
        try:
            await write
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Lets nothing more happen in this Lab; later effects raise the same error."""
        if self.fatal is None and not isinstance(error, (asyncio.CancelledError, RunCancelled)):
            self.fatal = error

    async def simple(
        self, key: str, kind: EffectKind, content: str, perform: Callable[[], Awaitable[Any]]
    ) -> Any:
        """An effect that reserves nothing and has nothing inside it: its recorded or new result."""
        record = self.recorded(key, kind, content)
        if record is not None:
            return record.result
        start = EffectStart.model_construct(key=key, kind=kind, content=content, reserve=Amount())
        await self.begin(start)
        try:
            result = await perform()
        except Exception as error:
            self.fail(error)
            raise
        await self.finish(start, result, ZERO)
        return result

    async def attempts(
        self,
        start: EffectStart,
        perform: Perform,
        *,
        retries: int,
        wait_s: float,
        replayable: bool = True,
    ) -> Tried:
        """A container effect with retries; the caller has seen that it is not recorded yet.

        Failed attempts are recorded under ``<key>/<attempt>!`` so that a replay skips them, and
        what they consumed stays booked as waste.

        Raises:
            InfrastructureError: If the last attempt failed too; the start is closed as spent.
            BudgetExhausted: If a reservation did not fit; recorded as this effect's result.
        """
        key, attempt, failures = start.key, 0, 0
        while f"{key}/{attempt}!" in self.finished:
            # A recorded failure counts against the retries, a restart after a crash does not.
            failures += _mark(self.finished[f"{key}/{attempt}!"].result, "failed") is not None
            attempt += 1
        await self.begin(start)
        if not replayable and self.under_way(f"{key}/{attempt}"):
            await self._note(start, attempt, {"restarted": True})
            attempt += 1
        while True:
            calls = Recorder(self, f"{key}/{attempt}/")
            try:
                tried = await perform(calls)
            except BudgetExhausted as error:
                await self.finish(start, {"exhausted": str(error)}, ZERO)
                raise
            except InfrastructureError as error:
                if self.fatal is not None:
                    raise
                if calls.diverged:
                    await self._note(start, attempt, {"restarted": True})
                    attempt += 1
                    continue
                failures += 1
                if failures > retries:
                    raise
                await self._note(start, attempt, _failure(error))
                attempt += 1
                await asyncio.sleep(wait_s * 2 ** (failures - 1))
                self.check()
            except Exception as error:
                # A fault of the code or the configuration: an evolver cannot go on around it, or a
                # replay (where it may be mended) would see another history.
                self.fail(error)
                raise
            else:
                await self.finish(start, tried.result, minus(tried.usage, calls.usage))
                return tried

    async def _note(self, start: EffectStart, attempt: int, result: JsonValue) -> None:
        note = EffectStart.model_construct(
            key=f"{start.key}/{attempt}!",
            kind=start.kind,
            content=start.content,
            reserve=Amount(),
            request=None,
        )
        await self.begin(note)
        await self.finish(note, result, ZERO)


class Recorder:
    """The journal of the calls inside one attempt of a rollout or ask (core ``Calls``).

    Args:
        door: The Lab's door to its journal.
        prefix: Key prefix of this attempt; calls are numbered in the order in which they are
            issued.

    Attributes:
        usage: What the calls consumed.
        diverged: Whether the attempt asked for another call than the one that is recorded; it then
            starts over with new calls, and the recorded ones are waste.
    """

    def __init__(self, door: EffectDoor, prefix: str) -> None:
        self.usage = ZERO
        self.diverged = False
        self._door = door
        self._prefix = prefix
        self._next = 0

    @property
    def resuming(self) -> bool:
        """Whether the next call comes from the record."""
        return f"{self._prefix}{self._next}" in self._door.finished

    async def call(
        self,
        kind: Literal["model_call", "tool_call"],
        request: JsonValue,
        perform: Callable[[], Awaitable[CallOutcome]],
        *,
        reserve: Amount,
    ) -> CallOutcome:
        """See :class:`instar_core.lab.Calls`."""
        door = self._door
        key = f"{self._prefix}{self._next}"
        self._next += 1
        content = content_hash([kind, request])
        record = self._recorded(key, content)
        if record is not None:
            self._count(record.usage)
            _raise_recorded(record.result)
            if isinstance(record.result, CallOutcome):
                return record.result
            value = cast(dict[str, JsonValue], record.result)["value"]
            return CallOutcome(value=value, usage=record.usage)
        start = EffectStart.model_construct(
            key=key, kind=kind, content=content, reserve=reserve, request=request
        )
        await door.begin(start)
        try:
            outcome = await perform()
        except BaseException as error:
            await self._failed(start, error)
            raise
        result = outcome if door.holds_objects else {"value": outcome.value}
        await door.finish(start, result, outcome.usage)
        self._count(outcome.usage)
        return outcome

    def _recorded(self, key: str, content: str) -> EffectRecord | None:
        """The recorded call, if this is the call that was recorded."""
        self._door.check()
        record = self._door.finished.get(key)
        if record is None:
            return None
        if record.content != content:
            # What surrounds the calls (an environment, a clock) did not repeat itself.
            self.diverged = True
            raise InfrastructureError(
                f"Call {key!r} is not the one recorded there.", remedy="The attempt starts over."
            )
        self._door.replayed += 1
        raise_if_exhausted(record)
        return record

    def _count(self, usage: Usage) -> None:
        self.usage = usage if self.usage is ZERO else self.usage + usage

    async def _failed(self, start: EffectStart, error: BaseException) -> None:
        """Settles a call that raised; failures a backend may act on are recorded as outcomes."""
        door = self._door
        if door.fatal is not None or isinstance(error, (KeyboardInterrupt, SystemExit)):
            return
        free = isinstance(error, InfrastructureError) and error.nothing_sent
        spent = ZERO if free else as_usage(start.reserve)
        self._count(spent)
        if isinstance(error, TimeoutError):
            await door.finish(start, {"failed": "TimeoutError", "message": str(error)}, spent)
        elif isinstance(error, InstarError) and not isinstance(error, _CONTROL):
            await door.finish(start, _failure(error), spent)
        else:
            await door.abandon(start.key, None if free else spent)


def raise_if_exhausted(record: EffectRecord) -> None:
    """Raises again what the budget said when this effect was tried.

    Raises:
        BudgetExhausted: If the record holds such a refusal.
    """
    words = _mark(record.result, "exhausted")
    if words is not None:
        raise BudgetExhausted(words)


def _failure(error: InstarError) -> JsonValue:
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _RECORDABLE)
    return {"failed": name, "message": error.message, "remedy": error.remedy}


def _mark(result: Any, mark: str) -> str | None:
    """The text under a mark that the door itself put into a record; results never look like
    that."""
    if isinstance(result, dict) and mark in result:
        return str(cast(dict[str, Any], result)[mark])
    return None


def _raise_recorded(result: Any) -> None:
    name = _mark(result, "failed")
    if name is None:
        return
    if name == "TimeoutError":
        raise TimeoutError(str(result.get("message", "")))
    raise _RECORDABLE[name](str(result["message"]), remedy=str(result.get("remedy", "")))
