"""Orphans: what a run left open when it ended without its worker: reservations, proposals."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.facts import OVER, budgets_of
from instar.evolution.group import Group, JournalMemory, KnownEffect
from instar.ledger.budgets import lock_chain
from instar.store import effects
from instar.store.evolution import find_runs_with_reservations
from instar.store.promotions import withdraw_orphans

__all__ = ["settle_orphans"]


async def settle_orphans(session: AsyncSession, project_id: str) -> int:
    """Settles the open effects of runs that are over; returns how many there were.

    A run that ends under its worker leaves none. One that was cancelled while it waited, or whose
    job died, may: its reservations would be kept from other runs for ever, and its proposal would
    be ``testing`` for ever.
    """
    await withdraw_orphans(session, sorted(OVER))
    settled = 0
    for row in await find_runs_with_reservations(session, sorted(OVER)):
        rows = await effects.load_effects(session, row.id)
        memory = JournalMemory(0)
        for one in rows:
            memory.effects[one.key] = KnownEffect(one.status, one.kind, one.content, one.reserved)
        memory.event_seq = row.event_seq
        group = Group(memory, await lock_chain(session, budgets_of(row)), cancelled=True)
        for one in rows:
            if one.status == "started":
                group.settle_for_good(one.key)
                settled += 1
        await group.write(session, project_id, row.id)
    return settled
