"""Restoring: what an evolution run touched, so that one call can take all of it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import ArtifactRef
from instar.store.rows import read_row
from instar.store.tables import (
    ArtifactRow,
    EvolutionRunRow,
    LabelEventRow,
    LabelRow,
    PromotionRow,
    ProposalRow,
    VersionParentRow,
    VersionPartRow,
    VersionRow,
)
from instar_core.base import JsonValue

__all__ = [
    "OVER",
    "LabelLine",
    "Made",
    "Use",
    "artifacts_made",
    "is_live",
    "label_lines",
    "labels_on",
    "live_versions",
    "lock_run_for_restore",
    "promotions_of_run",
    "proposals_of",
    "read_report",
    "save_report",
    "set_promotion",
    "set_proposal",
    "uses_of",
    "versions_made",
    "wanted_elsewhere",
]

OVER = frozenset({"succeeded", "no_improvement", "failed", "cancelled", "budget_exhausted"})
"""States in which a run writes nothing any more."""

_SAVE = text(
    "update instar.evolution_run set progress = progress ||"
    " jsonb_build_object('restoration', cast(:report as jsonb)) where id = cast(:run as uuid)"
)


class LabelLine(NamedTuple):
    """A label that a run's work moved: its events, oldest first, and where it is now."""

    artifact: ArtifactRow
    label: str
    events: list[LabelEventRow]
    now: int | None


class Made(NamedTuple):
    """A version that a run made, with its artifact."""

    version: VersionRow
    artifact: ArtifactRow


class Use(NamedTuple):
    """Something that came after a run's version and depends on it."""

    version_id: str
    used_by: str
    kind: str
    name: str
    number: int
    origin: str
    how: str


async def lock_run_for_restore(session: AsyncSession, run_id: str) -> EvolutionRunRow:
    """The run, its row held until the transaction ends.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    return await read_row(session, EvolutionRunRow, run_id, "evolution run", lock=True)


async def proposals_of(session: AsyncSession, run_id: str) -> list[ProposalRow]:
    """A run's proposals, locked, in the order of their ids."""
    rows = await session.scalars(
        select(ProposalRow)
        .where(ProposalRow.run_id == run_id)
        .order_by(ProposalRow.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    return list(rows)


async def promotions_of_run(session: AsyncSession, run_id: str) -> list[PromotionRow]:
    """The promotions of a run's proposals, locked, in the order of their ids."""
    rows = await session.scalars(
        select(PromotionRow)
        .join(ProposalRow, ProposalRow.id == PromotionRow.proposal_id)
        .where(ProposalRow.run_id == run_id)
        .order_by(PromotionRow.id)
        .with_for_update(of=PromotionRow)
        .execution_options(populate_existing=True)
    )
    return list(rows)


async def label_lines(
    session: AsyncSession, run_id: str, proposal_ids: Sequence[str]
) -> list[LabelLine]:
    """Every label that a run moved, by itself or by the approval of a proposal of its.

    Moves from before runs were noted are known by the proposal that is their cause.
    """
    causes = [f"proposal {one}" for one in proposal_ids]
    touched = (
        select(LabelEventRow.artifact_id, LabelEventRow.label)
        .where(or_(LabelEventRow.run_id == run_id, LabelEventRow.cause.in_(causes)))
        .distinct()
    )
    lines: list[LabelLine] = []
    for artifact_id, label in (await session.execute(touched)).tuples().all():
        artifact = await session.get(ArtifactRow, artifact_id, populate_existing=True)
        assert artifact is not None, "a label event refers to its artifact"
        events = await session.scalars(
            select(LabelEventRow)
            .where(LabelEventRow.artifact_id == artifact_id, LabelEventRow.label == label)
            .order_by(LabelEventRow.created_at, LabelEventRow.id)
        )
        row = await session.get(LabelRow, (artifact_id, label), populate_existing=True)
        lines.append(LabelLine(artifact, label, list(events), None if row is None else row.number))
    lines.sort(key=lambda line: (line.artifact.kind, line.artifact.name, line.label))
    return lines


async def versions_made(session: AsyncSession, run_id: str) -> list[Made]:
    """The versions that a run made, bundles before what they pin, newest first."""
    rows = await session.execute(
        select(VersionRow, ArtifactRow)
        .join(ArtifactRow, ArtifactRow.id == VersionRow.artifact_id)
        .where(
            or_(
                VersionRow.run_id == run_id,
                (VersionRow.author_kind == "run") & (VersionRow.author == run_id),
            )
        )
        .order_by(
            (ArtifactRow.kind == "agent").desc(),
            ArtifactRow.kind,
            ArtifactRow.name,
            VersionRow.number.desc(),
        )
        .execution_options(populate_existing=True)
    )
    return [Made(version, artifact) for version, artifact in rows.tuples()]


async def artifacts_made(session: AsyncSession, made: Sequence[Made]) -> list[ArtifactRow]:
    """The artifacts whose first version is among these, by kind and name."""
    firsts = {one.artifact.id: one.artifact for one in made if one.version.number == 1}
    return sorted(firsts.values(), key=lambda row: (row.kind, row.name))


async def uses_of(session: AsyncSession, version_ids: Sequence[str]) -> list[Use]:
    """Live versions that came from these versions, or pin or lie on them."""
    ids = list(version_ids)
    found: list[Use] = []
    child = select(
        VersionRow.id, ArtifactRow.kind, ArtifactRow.name, VersionRow.number, VersionRow.origin
    ).join(ArtifactRow, ArtifactRow.id == VersionRow.artifact_id)
    live = (VersionRow.deleted_at.is_(None), ArtifactRow.deleted_at.is_(None))
    queries = (
        (
            "parent",
            child.add_columns(VersionParentRow.parent_id)
            .join(VersionParentRow, VersionParentRow.version_id == VersionRow.id)
            .where(VersionParentRow.parent_id.in_(ids), *live),
        ),
        (
            "part",
            child.add_columns(VersionPartRow.part_id)
            .join(VersionPartRow, VersionPartRow.version_id == VersionRow.id)
            .where(VersionPartRow.part_id.in_(ids), *live),
        ),
        ("base", child.add_columns(VersionRow.base_id).where(VersionRow.base_id.in_(ids), *live)),
    )
    for how, query in queries:
        rows = await session.execute(query.order_by(ArtifactRow.name, VersionRow.number))
        for used_by, kind, name, number, origin, used in rows.tuples():
            found.append(Use(str(used), used_by, kind, name, number, origin, how))
    return found


async def labels_on(session: AsyncSession, version_ids: Sequence[str]) -> dict[str, list[str]]:
    """Version id → names of the labels that point to it."""
    rows = await session.execute(
        select(LabelRow.version_id, LabelRow.name)
        .where(LabelRow.version_id.in_(list(version_ids)))
        .order_by(LabelRow.name)
    )
    found: dict[str, list[str]] = {}
    for version_id, name in rows.tuples():
        found.setdefault(version_id, []).append(name)
    return found


async def wanted_elsewhere(
    session: AsyncSession, run_id: str, version_ids: Sequence[str]
) -> set[str]:
    """Which of a run's agent versions another run proposes, or had promoted."""
    rows = await session.scalars(
        select(ProposalRow.agent_version_id).where(
            ProposalRow.agent_version_id.in_(list(version_ids)),
            ProposalRow.run_id != run_id,
            ProposalRow.state.in_(("testing", "waiting", "stale", "approved")),
        )
    )
    return set(rows)


async def live_versions(session: AsyncSession, artifact_id: str) -> set[str]:
    """Ids of the versions of an artifact that are not archived."""
    rows = await session.scalars(
        select(VersionRow.id).where(
            VersionRow.artifact_id == artifact_id, VersionRow.deleted_at.is_(None)
        )
    )
    return set(rows)


async def set_promotion(session: AsyncSession, promotion_id: str, state: str) -> None:
    """Sets the state of a promotion that is watched again; what undid it is forgotten."""
    await session.execute(
        update(PromotionRow)
        .where(PromotionRow.id == promotion_id)
        .values(state=state, rolled_back_by="", rolled_back_reason="", rolled_back_at=None)
        .execution_options(synchronize_session=False)
    )


async def set_proposal(session: AsyncSession, proposal_id: str, state: str, reason: str) -> None:
    """Sets the state of a proposal, with what is to be told about it."""
    await session.execute(
        update(ProposalRow)
        .where(ProposalRow.id == proposal_id)
        .values(state=state, decision_reason=reason, decided_at=func.clock_timestamp())
        .execution_options(synchronize_session=False)
    )


async def save_report(session: AsyncSession, run_id: str, report: str) -> None:
    """Keeps what a restore did with the run, so that it can be taken back."""
    await session.execute(_SAVE, {"run": run_id, "report": report})


def read_report(run: EvolutionRunRow) -> JsonValue:
    """What the last restore of a run did; ``None`` where there was none."""
    found: JsonValue = dict(run.progress).get("restoration")
    return found


async def is_live(session: AsyncSession, ref: ArtifactRef, number: int) -> bool:
    """Whether a version is there and not archived."""
    found = await session.scalar(
        select(VersionRow.id)
        .join(ArtifactRow, ArtifactRow.id == VersionRow.artifact_id)
        .where(
            ArtifactRow.project_id == ref.project_id,
            ArtifactRow.kind == ref.kind,
            ArtifactRow.name == ref.name,
            VersionRow.number == number,
            VersionRow.deleted_at.is_(None),
        )
    )
    return found is not None
