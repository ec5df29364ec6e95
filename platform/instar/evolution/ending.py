"""Ending: closing what a run left open, and writing its terminal state with the best evidence."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution.book import open_book
from instar.evolution.context import JobContext
from instar.evolution.estimates import PLAIN
from instar.evolution.facts import Ending, RunFacts
from instar.evolution.journal import PostgresJournal
from instar.evolution.recording import RecordingLab
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.evolution import update_run
from instar.store.promotions import withdraw_proposals
from instar_core.base import JsonValue
from instar_core.evolution import Event

__all__ = ["end_run"]

_CUT_SHORT = frozenset({"failed", "cancelled", "budget_exhausted"})


async def end_run(
    context: JobContext,
    facts: RunFacts,
    journal: PostgresJournal,
    ending: Ending,
    recorder: RecordingLab | None,
) -> None:
    """Writes the end of a run; after this nothing of it is open and nothing reserved.

    Args:
        context: The lease.
        facts: What the run is about.
        journal: Its journal, opened.
        ending: State and reason.
        recorder: What its candidates scored, where the search began.
    """
    if ending.state in _CUT_SHORT:
        await open_book(context, facts, journal.config.patience).withdraw(ending.reason)
    await journal.settle_open()
    best, result = "", None
    if recorder is not None:
        await recorder.write()
        best = recorder.best() or ""
        result = _evidence(recorder, facts, best)
    data: dict[str, JsonValue] = {
        "state": ending.state,
        PLAIN: ending.plain or ending.reason,
    }
    await journal.tell(Event(kind="ended", message=ending.reason, data=data))

    async def write(session: AsyncSession) -> None:
        await withdraw_proposals(session, context.run_id, ending.reason)
        await update_run(
            session,
            context.run_id,
            state=ending.state,
            reason=ending.reason.replace("\x00", ""),
            phase="done",
            best_digest=best,
            result=result,
            finished_at=datetime.now(UTC),
        )
        entry = AuditEntry(
            action="evolution.end", subject=context.run_id, details={"state": ending.state}
        )
        await append_audit(session, context.project_id, entry, Author("run", context.run_id))

    await journal.write(write)


def _evidence(recorder: RecordingLab, facts: RunFacts, best: str) -> JsonValue:
    incumbent = facts.incumbent.digest
    return {
        "incumbent": {"digest": incumbent, "validation_mean": recorder.mean(incumbent)},
        "best": None
        if not best
        else {
            "digest": best,
            "validation_mean": recorder.mean(best),
            "train_mean": recorder.mean(best, "train"),
        },
    }
