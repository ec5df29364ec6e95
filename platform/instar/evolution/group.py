"""One group of journal operations: decided in memory, written with few statements, all or nothing.

A refusal (a budget that is spent, a cancelled run) concerns one operation; the others of the group
go through.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.writer import Outcome
from instar.ledger.budgets import BudgetChain, amount_spent, save_chain
from instar.store import effects as store
from instar_core.errors import InstarError, LabMisuse, RunCancelled
from instar_core.evolution import Event
from instar_core.lab import EffectRecord, EffectStart
from instar_core.usage import ZERO, Amount, Usage

__all__ = [
    "Abandon",
    "Append",
    "Begin",
    "Finish",
    "IN_FLIGHT",
    "Group",
    "JournalMemory",
    "KnownEffect",
    "Op",
    "RunWrite",
    "Write",
]

IN_FLIGHT = frozenset({"rollout", "ask", "embed", "model_call", "tool_call"})
"""Effects that reach outside; with nothing recorded inside them, a crash may have cost all of
them."""

_IN_SEALED_TEST = re.compile(r"/p[0-9]+[.][0-9]+[.](candidate|incumbent)[.][0-9]+/")
"""Keys of calls inside a sealed rollout. What they asked holds the sealed task; no replay reads it,
since the digest of a request decides, so it is not kept."""

RunWrite = Callable[[AsyncSession], Awaitable[None]]
"""Another write of the run's holder, to commit under the same lock and token."""


@dataclass(frozen=True, slots=True)
class Begin:
    """An effect starts."""

    effect: EffectStart


@dataclass(frozen=True, slots=True)
class Finish:
    """A started effect has its result."""

    record: EffectRecord


@dataclass(frozen=True, slots=True)
class Abandon:
    """A started effect ends without a result."""

    key: str
    spent: Usage | None


@dataclass(frozen=True, slots=True)
class Append:
    """An event is shown."""

    source_seq: int | None
    event: Event


@dataclass(frozen=True, slots=True)
class Write:
    """The run's holder writes something else."""

    write: RunWrite


Op = Begin | Finish | Abandon | Append | Write


@dataclass(frozen=True, slots=True)
class KnownEffect:
    """What is remembered of an effect: where it stands and what it holds reserved."""

    status: str
    kind: str
    content: str
    reserved: Amount


class JournalMemory:
    """What the run's one writer knows without asking the database."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.effects: dict[str, KnownEffect] = {}
        self.source_events: set[int] = set()
        self.event_seq = 0

    def take(self, group: Group) -> None:
        """Takes over what a committed group changed."""
        self.effects.update(group.changed)
        self.source_events |= group.source_events
        self.event_seq = group.seq


class Group:
    """One group of operations being applied: decisions in memory, rows to write, outcomes."""

    def __init__(self, state: JournalMemory, chain: BudgetChain, *, cancelled: bool) -> None:
        self.chain = chain
        self.changed: dict[str, KnownEffect] = {}
        self.started: dict[str, store.EffectRow] = {}
        self.finished: list[store.EffectRow] = []
        self.closed: list[store.EffectRow] = []
        self.events: list[store.EventWrite] = []
        self.writes: list[RunWrite] = []
        self.seq = state.event_seq
        self.source_events: set[int] = set()
        self._state = state
        self._cancelled = cancelled

    def apply(self, op: Op) -> Outcome:
        """Decides one operation; refusals are returned, not raised."""
        try:
            match op:
                case Begin(effect):
                    self._begin(effect)
                case Finish(record):
                    self._finish(record)
                case Abandon(key, spent):
                    self._abandon(key, spent)
                case Append(source_seq, event):
                    self._append(source_seq, event)
                case Write(write):
                    self.writes.append(write)
        except InstarError as error:
            return error
        return None

    def _entry(self, key: str) -> KnownEffect | None:
        return self.changed.get(key) or self._state.effects.get(key)

    def _begin(self, effect: EffectStart) -> None:
        entry = self._entry(effect.key)
        if entry is not None and entry.status == "resting":
            self._check_cancelled()
            self.changed[effect.key] = replace(entry, status="started")
            return  # a container that a crash left open goes on; its reservation stands
        if entry is not None and entry.status != "abandoned":
            raise LabMisuse(
                f"The effect {effect.key!r} is {entry.status} already and cannot start again."
            )
        self._check_cancelled()
        self.chain.check_wall(effect.reserve.wall_s)
        # Wall time passes once however many effects wait in parallel, so it is compared with the
        # limit but not added up per effect.
        reserve = effect.reserve.model_copy(update={"wall_s": 0.0})
        self.chain.reserve(reserve)
        self.changed[effect.key] = KnownEffect("started", effect.kind, effect.content, reserve)
        self.started[effect.key] = store.EffectRow(
            key=effect.key,
            kind=effect.kind,
            content=effect.content,
            request=None if _IN_SEALED_TEST.search(effect.key) else effect.request,
            reserved=reserve,
            fencing_token=self._state.token,
        )

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise RunCancelled("The run was cancelled; nothing new is started.")

    def _open_entry(self, key: str) -> KnownEffect:
        entry = self._entry(key)
        if entry is None or entry.status != "started":
            found = "unknown" if entry is None else entry.status
            raise LabMisuse(f"The effect {key!r} is {found}; only a started effect can end.")
        return entry

    def _finish(self, record: EffectRecord) -> None:
        entry = self._open_entry(record.key)
        self.chain.settle(entry.reserved, amount_spent(entry.reserved, record.usage))
        self.changed[record.key] = KnownEffect(
            "finished", entry.kind, entry.content, entry.reserved
        )
        self.finished.append(
            store.EffectRow(
                key=record.key,
                kind=entry.kind,
                content=entry.content,
                status="finished",
                result=record.result,
                reserved=entry.reserved,
                usage=record.usage,
                fencing_token=self._state.token,
            )
        )

    def _abandon(self, key: str, spent: Usage | None) -> None:
        entry = self._open_entry(key)
        if spent is None:
            self.chain.release(entry.reserved)
        else:
            self.chain.settle(entry.reserved, amount_spent(entry.reserved, spent))
        self._close(key, entry, spent or ZERO)

    def _close(self, key: str, entry: KnownEffect, usage: Usage) -> None:
        self.changed[key] = KnownEffect("abandoned", entry.kind, entry.content, entry.reserved)
        self.closed.append(
            store.EffectRow(
                key=key,
                kind=entry.kind,
                content=entry.content,
                status="abandoned",
                reserved=entry.reserved,
                usage=usage,
                fencing_token=self._state.token,
            )
        )

    def settle_lost(self, key: str, *, container: bool) -> None:
        """Deals with a start that a crash left open.

        Args:
            key: The started effect.
            container: Whether other effects are recorded inside it. It then rests, with its
                reservation, until it goes on where it was; a call was in flight and is spent.
        """
        entry = self._open_entry(key)
        if container:
            self.changed[key] = replace(entry, status="resting")
        elif entry.kind in IN_FLIGHT:
            self._forfeit(key, entry)
        else:
            self.chain.release(entry.reserved)
            self._close(key, entry, ZERO)

    def settle_for_good(self, key: str) -> None:
        """Settles a start of a run that ends: all that it reserved counts as spent."""
        entry = self._entry(key)
        if entry is not None and entry.status in ("started", "resting"):
            self._forfeit(key, entry)

    def _forfeit(self, key: str, entry: KnownEffect) -> None:
        self.chain.settle(entry.reserved, entry.reserved)
        spent = Usage(output_tokens=entry.reserved.tokens, cost_usd=entry.reserved.cost_usd)
        self._close(key, entry, spent)

    def _append(self, source_seq: int | None, event: Event) -> None:
        if source_seq is not None:
            if source_seq in self._state.source_events or source_seq in self.source_events:
                return  # a replay comes past it again
            self.source_events.add(source_seq)
        self.seq += 1
        self.events.append(
            store.EventWrite(
                seq=self.seq,
                source_seq=source_seq,
                kind=event.kind,
                message=event.message,
                data=event.data,
            )
        )

    async def write(self, session: AsyncSession, project_id: str, run_id: str) -> None:
        """Writes everything the group decided; the run's row and the budgets are locked already."""
        await store.start_effects(session, project_id, run_id, list(self.started.values()))
        await store.finish_effects(session, run_id, self.finished)
        await store.close_effects(session, run_id, self.closed)
        await store.append_events(session, project_id, run_id, self._state.token, self.events)
        await save_chain(session, self.chain)
        for write in self.writes:
            await write(session)
