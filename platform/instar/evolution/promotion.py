"""Promotion: a label moves to a tested candidate, by compare-and-swap, and moves back when told to.

The swap names the incumbent that the candidate was tested against. If the label is elsewhere,
nothing moves and the proposal is ``stale``: it has to be tested again. Everything here is audited
and idempotent.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from instar.store import promotions as store
from instar.store.agents import AGENT
from instar.store.artifacts import ArtifactRef
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.labels import LabelMove, list_labels, move_label
from instar.store.tables import PromotionRow, ProposalRow
from instar_core.base import JsonValue
from instar_core.errors import ConflictError

__all__ = ["promote", "reject", "roll_back"]


async def promote(
    session: AsyncSession, proposal_id: str, by: Author, *, note: str = ""
) -> PromotionRow | None:
    """Approves a waiting proposal and moves its label.

    Args:
        session: A project transaction.
        proposal_id: A proposal whose test was accepted.
        by: Who approves: a person, or the run under an ``auto`` rule.
        note: Why.

    Returns:
        The promotion (the one there is, when it was approved before), or ``None`` when the label
        has moved meanwhile: the proposal is then ``stale``.

    Raises:
        ConflictError: If the proposal was decided otherwise, or its test was not accepted.
    """
    row = await store.read_proposal(session, proposal_id, lock=True)
    if row.state == "approved":
        return (await store.promotions_of(session, [row.id]))[row.id]
    if row.state == "stale":
        return None
    if row.state != "waiting" or row.verdict != "accepted":
        raise _not_open(row, "approved")
    numbers = await store.version_numbers(session, [row.agent_version_id, row.incumbent_version_id])
    incumbent, candidate = numbers[row.incumbent_version_id], numbers[row.agent_version_id]
    ref = ArtifactRef(row.project_id, AGENT, row.agent)
    now_at = {label.name: label.number for label in await list_labels(session, ref)}
    expected: int | None = incumbent
    if row.label not in now_at:
        expected = None  # the first promotion of an agent under this label
    try:
        await move_label(
            session,
            ref,
            LabelMove(
                row.label,
                candidate,
                expected,
                f"proposal {row.id}",
                unlock=True,
                run_id=row.run_id,
            ),
            by,
        )
    except ConflictError as error:
        await store.decide_proposal(session, row, "stale", by, error.message)
        await _audit(session, row, "proposal.stale", {"label_at": now_at.get(row.label)}, by)
        return None
    await store.decide_proposal(session, row, "approved", by, note)
    details: dict[str, JsonValue] = {"from": incumbent, "to": candidate, "label": row.label}
    await _audit(session, row, "proposal.approve", details, by)
    return await store.create_promotion(session, row, by, {"had_label": row.label in now_at})


async def reject(
    session: AsyncSession, proposal_id: str, by: Author, *, note: str = ""
) -> ProposalRow:
    """Rejects a waiting or stale proposal; rejecting twice changes nothing.

    Raises:
        ConflictError: If it was approved, or its test still runs.
    """
    row = await store.read_proposal(session, proposal_id, lock=True)
    if row.state == "rejected":
        return row
    if row.state not in ("waiting", "stale"):
        raise _not_open(row, "rejected")
    await store.decide_proposal(session, row, "rejected", by, note)
    await _audit(session, row, "proposal.reject", {"note": note}, by)
    return row


async def roll_back(
    session: AsyncSession, promotion_id: str, by: Author, *, cause: str
) -> PromotionRow:
    """Moves the label back to the version it had before a promotion, with the cause.

    Rolling back twice changes nothing.

    Raises:
        ConflictError: If the label has moved on since; nothing was moved.
    """
    row = await store.read_promotion(session, promotion_id, lock=True)
    if row.state == "rolled_back":
        return row
    numbers = await store.version_numbers(session, [row.from_version_id, row.to_version_id])
    move = LabelMove(
        row.label,
        numbers[row.from_version_id],
        numbers[row.to_version_id],
        f"rolled back: {cause}" if cause else "rolled back",
        unlock=True,
    )
    await move_label(session, ArtifactRef(row.project_id, AGENT, row.agent), move, by)
    await store.mark_rolled_back(session, row, by, cause)
    details: dict[str, JsonValue] = {"promotion": row.id, "cause": cause}
    entry = AuditEntry(action="promotion.roll_back", subject=f"agent/{row.agent}", details=details)
    await append_audit(session, row.project_id, entry, by)
    return row


def _not_open(row: ProposalRow, wish: str) -> ConflictError:
    verdict = f" with the verdict {row.verdict!r}" if row.verdict else ""
    return ConflictError(
        f"the proposal {row.id} is {row.state!r}{verdict} and cannot be {wish}.",
        remedy="Only proposals that wait, after an accepted test, are decided.",
    )


async def _audit(
    session: AsyncSession, row: ProposalRow, action: str, details: dict[str, JsonValue], by: Author
) -> None:
    facts: dict[str, JsonValue] = {"proposal": row.id, "run": row.run_id, **details}
    entry = AuditEntry(action=action, subject=f"agent/{row.agent}", details=facts)
    await append_audit(session, row.project_id, entry, by)
