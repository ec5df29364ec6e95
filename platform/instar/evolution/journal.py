"""The Postgres journal: a run's effects, events and budget, kept together under its fencing token.

What the Lab begins and finishes is durable before the Lab goes on. Operations that wait at the same
time are committed as one group; each group has a number that commits with it, so that after a
connection broke during a commit the writer can tell whether that group was written, and never
writes it twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.group import (
    IN_FLIGHT,
    Abandon,
    Append,
    Begin,
    Finish,
    Group,
    JournalMemory,
    KnownEffect,
    Op,
    RunWrite,
    Write,
)
from instar.evolution.retry import StorePatience, with_patience
from instar.evolution.writer import GroupWriter, Outcome
from instar.ledger.budgets import BudgetChain, lock_chain
from instar.store import effects as store
from instar_core.base import JsonValue
from instar_core.evolution import Event
from instar_core.lab import EffectRecord, EffectStart, JournalState
from instar_core.usage import Amount, Remaining, Usage

if TYPE_CHECKING:
    from instar.store.session import Database

__all__ = ["JournalConfig", "PostgresJournal"]


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Whose journal it is and what it draws on.

    Attributes:
        project_id: Project of the run.
        run_id: The evolution run.
        job_id: The job whose lease the writer holds.
        token: Fencing token of that lease.
        budgets: Kind → subject of every budget the run draws on, its own included.
        patience: How long a database may be away.
    """

    project_id: str
    run_id: str
    job_id: str
    token: int
    budgets: dict[str, str]
    patience: StorePatience = field(default_factory=StorePatience)


class PostgresJournal:
    """The journal of one evolution run, for the one worker that holds its lease.

    Args:
        db: Session factory of the service's database.
        config: Whose journal this is and which budgets it draws on.

    Attributes:
        cancelled: Set to let nothing more begin.
        opened: Whether the journal was read.
        lost: Keys of the calls that the last crash caught in flight.
    """

    def __init__(self, db: Database, config: JournalConfig) -> None:
        self.config = config
        self.cancelled = False
        self.opened = False
        self.lost: list[str] = []
        self._db = db
        self._memory = JournalMemory(config.token)
        self._chain = BudgetChain([])
        self._batch = 0
        self._last = Group(self._memory, self._chain, cancelled=False), 0.0, list[Outcome]()
        self._clock: float | None = None
        self._writer: GroupWriter[Op] = GroupWriter(self._apply)

    async def open(self) -> JournalState:
        """Everything recorded so far; calls left in flight by a dead process are settled as spent.

        Raises:
            LeaseLost: If another worker holds the run.
            StoreError: If the database stays away.
        """
        self.lost = []
        state = await with_patience(self._open, self.config.patience, "Opening the run's journal")
        self._clock = time.monotonic()
        self.opened = True
        return state

    async def begin(self, effect: EffectStart) -> None:
        """Records the start and reserves for it, atomically.

        Raises:
            BudgetExhausted: If the reservation does not fit into every budget; nothing is recorded.
            RunCancelled: If a person cancelled the run.
            LeaseLost: If another worker holds the run.
            StoreError: If the database stays away.
        """
        await self._writer.submit(Begin(effect))

    async def finish(self, record: EffectRecord) -> None:
        """Records the result and settles the reservation, atomically."""
        await self._writer.submit(Finish(record))

    async def abandon(self, key: str, *, spent: Usage | None) -> None:
        """Closes a start without a result: releases the reservation (``None``) or books usage."""
        await self._writer.submit(Abandon(key, spent))

    async def event(self, seq: int, event: Event) -> None:
        """Appends the program's event number ``seq``; one already there is left as it is."""
        await self._writer.submit(Append(seq, event))

    async def tell(self, event: Event) -> None:
        """Appends an event of the run's holder, which no replay repeats."""
        await self._writer.submit(Append(None, event))

    async def write(self, write: RunWrite) -> None:
        """Commits another write of the run's holder under the same lock and token.

        The write may be tried again after a broken connection, though never once it committed.
        """
        await self._writer.submit(Write(write))

    def remaining(self) -> Remaining:
        """What is left of the run's budgets, as of the last group that committed."""
        return self._chain.remaining()

    def overshoot(self) -> dict[str, float]:
        """Spending beyond limits, as of the last group; empty when every limit held."""
        return self._chain.overshoot()

    def run_totals(self) -> Amount:
        """What the run itself has spent so far, waste included; zero without a budget of its
        own."""
        for line in self._chain.lines:
            if line.scope == "run":
                rollouts, tokens, cost_usd, wall_s = line.spent.values()
                return Amount(rollouts=rollouts, tokens=tokens, cost_usd=cost_usd, wall_s=wall_s)
        return Amount()

    def open_keys(self) -> list[str]:
        """Keys of the effects that are started and not finished."""
        return [
            key
            for key, known in self._memory.effects.items()
            if known.status in ("started", "resting")
        ]

    async def settle_open(self) -> None:
        """Settles every effect still open as spent; for a run that ends before they do."""
        await self._writer.drain()
        keys = self.open_keys()
        if keys:
            await with_patience(
                lambda: self._settle(keys), self.config.patience, "Settling open effects"
            )

    async def close(self) -> None:
        """Waits until everything submitted is durable or refused."""
        await self._writer.drain()

    @property
    def groups(self) -> tuple[int, int]:
        """How many groups were committed, and how many operations were in them."""
        return self._writer.groups, self._writer.operations

    async def _apply(self, ops: Sequence[Op]) -> list[Outcome]:
        self._batch += 1
        return await with_patience(
            lambda: self._commit(ops), self.config.patience, "Recording effects"
        )

    async def _commit(self, ops: Sequence[Op]) -> list[Outcome]:
        """One try at committing group number ``self._batch``."""
        config = self.config
        elapsed = self._elapsed()
        async with self._db.transaction(config.project_id) as session:
            lock = await self._lock(session)
            if (lock.writer_token, lock.writer_batch) == (config.token, self._batch):
                # An earlier try committed and only its answer was lost.
                group, elapsed, outcomes = self._last
            else:
                chain = await lock_chain(session, config.budgets)
                chain.spend(Amount(wall_s=elapsed))
                stop = self.cancelled or lock.cancel_requested
                group = Group(self._memory, chain, cancelled=stop)
                outcomes = [group.apply(op) for op in ops]
                await group.write(session, config.project_id, config.run_id)
                await store.mark_batch(
                    session,
                    config.run_id,
                    token=config.token,
                    batch=self._batch,
                    event_seq=group.seq,
                )
                self._last = group, elapsed, outcomes
        self._memory.take(group)
        if self._clock is not None:
            self._clock += elapsed
        self._chain = group.chain
        return outcomes

    async def _lock(self, session: AsyncSession) -> store.RunLock:
        config = self.config
        return await store.lock_run(session, config.run_id, config.job_id, config.token)

    def _elapsed(self) -> float:
        return 0.0 if self._clock is None else max(0.0, time.monotonic() - self._clock)

    async def _open(self) -> JournalState:
        config = self.config
        memory = JournalMemory(config.token)
        async with self._db.transaction(config.project_id) as session:
            lock = await self._lock(session)
            rows = await store.load_effects(session, config.run_id)
            for row in rows:
                memory.effects[row.key] = KnownEffect(
                    row.status, row.kind, row.content, row.reserved
                )
            memory.event_seq = lock.event_seq
            memory.source_events = await store.load_source_events(session, config.run_id)
            group = Group(memory, await lock_chain(session, config.budgets), cancelled=False)
            lost = self._settle_lost(group, rows)
            if rows:
                group.apply(Append(None, _resumed(len(rows), lost)))
            await group.write(session, config.project_id, config.run_id)
            await store.add_lost(session, config.run_id, len(lost))
            await store.mark_batch(
                session, config.run_id, token=config.token, batch=0, event_seq=group.seq
            )
        # A try of this opening that committed, and whose answer was lost, settled some before.
        self.lost.extend(row.key for row in lost)
        memory.take(group)
        self._memory, self._chain, self._batch = memory, group.chain, 0
        return JournalState(
            finished={
                row.key: EffectRecord.model_construct(
                    key=row.key,
                    kind=row.kind,
                    content=row.content,
                    result=row.result,
                    usage=row.usage,
                )
                for row in rows
                if row.status == "finished"
            },
            in_flight_lost=tuple(self.lost),
            events=len(memory.source_events),
            unfinished={row.key: row.content for row in rows if row.status != "finished"},
        )

    def _settle_lost(self, group: Group, rows: Sequence[store.EffectRow]) -> list[store.EffectRow]:
        """Settles what a crash left open; returns the calls that were in flight."""
        inside = _containers(row.key for row in rows)
        lost = []
        for row in rows:
            if not _is_open(row):
                continue
            container = row.key in inside
            group.settle_lost(row.key, container=container)
            if not container and row.kind in IN_FLIGHT:
                lost.append(row)
        return lost

    async def _settle(self, keys: Sequence[str]) -> None:
        config = self.config
        async with self._db.transaction(config.project_id) as session:
            await self._lock(session)
            rows = await store.load_effects(session, config.run_id)
            group = Group(self._memory, await lock_chain(session, config.budgets), cancelled=True)
            for row in rows:
                if _is_open(row) and row.key in keys:
                    group.settle_for_good(row.key)
            await group.write(session, config.project_id, config.run_id)
        self._memory.take(group)
        self._chain = group.chain


def _resumed(recorded: int, lost: Sequence[store.EffectRow]) -> Event:
    words = f"Taken up again with {recorded} effects on record."
    if lost:
        words += f" {len(lost)} calls were in flight; they count as spent and are made again."
    listed: list[JsonValue] = [{"key": row.key, "content": row.content} for row in lost]
    return Event(kind="resumed", message=words, data={"in_flight_lost": listed})


def _is_open(row: store.EffectRow) -> bool:
    return row.status == "started"


def _containers(keys: Iterable[str]) -> set[str]:
    """Every key that another key continues after a ``/``."""
    heads: set[str] = set()
    for key in keys:
        end = key.rfind("/")
        while end > 0 and key[:end] not in heads:
            heads.add(key[:end])
            end = key.rfind("/", 0, end)
    return heads
