"""Restoring: one call takes back everything that an evolution run touched, as far as it still is.

What the run put in force goes back to what was in force before it; what it made is archived, which
hides it and loses nothing; whatever somebody changed or built on since is left alone and told. The
restore is kept with the run and can itself be taken back.
"""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry.restore_report import (
    BuiltOn,
    LabelBack,
    RestoreReport,
    StateBack,
    VersionBack,
    together,
)
from instar.store import restore as store
from instar.store.artifacts import ArtifactRef
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.contents import lock_stream
from instar.store.labels import (
    LabelMove,
    delete_artifact,
    delete_label,
    delete_version,
    move_label,
    restore_artifact,
    restore_version,
)
from instar.store.promotions import decide_proposal, mark_rolled_back
from instar.store.saving import audit_stream, refuse_jobs
from instar.store.tables import ArtifactRow, LabelEventRow, PromotionRow, ProposalRow
from instar_core.base import JsonValue
from instar_core.errors import ConflictError

__all__ = [
    "BuiltOn",
    "LabelBack",
    "RestoreReport",
    "StateBack",
    "VersionBack",
    "restore_before_run",
    "undo_restore",
]

_OPEN = ("testing", "waiting", "stale")


async def restore_before_run(
    session: AsyncSession,
    project_id: str,
    run_id: str,
    by: Author,
    *,
    dry_run: bool = False,
    force: bool = False,
) -> RestoreReport:
    """Restores the state before an evolution run, for everything that it touched.

    Labels go back by compare-and-swap, its promotions become ``rolled_back``, its open proposals
    ``withdrawn``; versions and artifacts that it made are archived unless something uses them.
    Doing it twice changes nothing the second time.

    Args:
        session: A project transaction; all of it happens, or nothing.
        project_id: The project.
        run_id: The run.
        by: Who restores: a person.
        dry_run: Only tell what would happen.
        force: Move labels back even if somebody moved them on since.

    Raises:
        NotFoundError: If this project has no such run.
        ConflictError: If the run still works.
        PermissionDenied: If a job asks for it.
    """
    refuse_jobs(by, "restore the state before a run")
    run = await store.lock_run_for_restore(session, run_id)
    if run.state not in store.OVER:
        raise ConflictError(
            f"the run {run_id} is {run.state!r} and may still write.",
            remedy=f"Cancel it first: instar evolve cancel {run_id}.",
        )
    proposals = await store.proposals_of(session, run_id)
    promotions = await store.promotions_of_run(session, run_id)
    await lock_stream(session, project_id, audit_stream(by))
    plan = await _plan(session, run_id, proposals, promotions, force=force)
    report = plan.report.model_copy(update={"dry_run": dry_run})
    if not dry_run and report.changed:
        await _apply(session, project_id, plan, by)
        await _audit(session, project_id, "evolution.restore", report, by)
        kept = together(store.read_report(run), report)
        await store.save_report(session, run_id, json.dumps(kept.model_dump(mode="json")))
    return report


async def undo_restore(
    session: AsyncSession, project_id: str, run_id: str, by: Author, *, dry_run: bool = False
) -> RestoreReport:
    """Takes a restore back: what it archived returns, and labels go where the run had put them.

    Labels that somebody moved since the restore stay, and are told as ``moved_since``.

    Raises:
        NotFoundError: If this project has no such run.
        ConflictError: If the run was not restored, or that was taken back already.
        PermissionDenied: If a job asks for it.
    """
    refuse_jobs(by, "take a restore back")
    run = await store.lock_run_for_restore(session, run_id)
    kept = store.read_report(run)
    if kept is None:
        raise ConflictError(
            f"the state before run {run_id} was not restored, so there is nothing to take back."
        )
    done = RestoreReport.model_validate(kept)
    proposals = {row.id: row for row in await store.proposals_of(session, run_id)}
    promotions = {row.id: row for row in await store.promotions_of_run(session, run_id)}
    await lock_stream(session, project_id, audit_stream(by))
    labels = await _labels_forward(session, run_id, done, list(proposals))
    forward = {(one.name, one.label) for one in labels if one.state == "restored"}
    report = RestoreReport(
        run_id=run_id,
        dry_run=dry_run,
        changed=True,
        labels=tuple(labels),
        promotions=tuple(
            StateBack(id=one.id, before=one.after, after=one.before)
            for one in done.promotions
            if (promotions[one.id].agent, promotions[one.id].label) in forward
        ),
        proposals=tuple(
            # What was still being tested stays withdrawn: its run tests no more.
            StateBack(id=one.id, before=one.after, after=one.before)
            for one in done.proposals
            if one.before != "testing"
        ),
        versions=done.versions,
        artifacts=done.artifacts,
    )
    if dry_run:
        return report
    # What is pinned comes back before what pins it.
    for one in (*report.artifacts, *reversed(report.versions)):
        if one.state == "archived":
            ref = ArtifactRef(project_id, one.kind, one.name)
            if one.number == 0:
                await restore_artifact(session, ref, by)
            else:
                await restore_version(session, ref, one.number, by)
    await _states_forward(session, report)
    await _move_labels(session, project_id, report, by, f"restore of run {run_id} taken back")
    await _audit(session, project_id, "evolution.restore_undo", report, by)
    await store.save_report(session, run_id, "null")
    return report


class _Plan(NamedTuple):
    report: RestoreReport
    proposals: dict[str, ProposalRow]
    promotions: dict[str, PromotionRow]


async def _plan(
    session: AsyncSession,
    run_id: str,
    proposals: list[ProposalRow],
    promotions: list[PromotionRow],
    *,
    force: bool,
) -> _Plan:
    lines = await store.label_lines(session, run_id, [row.id for row in proposals])
    labels = [await _label_back(session, line, run_id, proposals, force=force) for line in lines]
    gone = {(one.name, one.label) for one in labels if one.state in ("restored", "unchanged")}
    rolled = [
        StateBack(id=row.id, before=row.state, after="rolled_back")
        for row in promotions
        if row.state != "rolled_back" and (row.agent, row.label) in gone
    ]
    withdrawn = [
        StateBack(id=row.id, before=row.state, after="withdrawn")
        for row in proposals
        if row.state in _OPEN
    ]
    versions, artifacts, built_on = await _versions_back(session, run_id, lines, labels)
    changed = bool(
        rolled
        or withdrawn
        or any(one.state == "restored" for one in labels)
        or any(one.state == "archived" for one in (*versions, *artifacts))
    )
    report = RestoreReport(
        run_id=run_id,
        dry_run=True,
        changed=changed,
        labels=tuple(labels),
        promotions=tuple(rolled),
        proposals=tuple(withdrawn),
        versions=tuple(versions),
        artifacts=tuple(artifacts),
        built_on=tuple(built_on),
    )
    return _Plan(report, {row.id: row for row in proposals}, {row.id: row for row in promotions})


async def _label_back(
    session: AsyncSession,
    line: store.LabelLine,
    run_id: str,
    proposals: list[ProposalRow],
    *,
    force: bool,
) -> LabelBack:
    """Where a label goes: to what it named before the run's last unbroken series of moves."""
    causes = {f"proposal {row.id}" for row in proposals}

    def is_ours(event: LabelEventRow) -> bool:
        return event.run_id == run_id or event.cause in causes

    last = max(place for place, event in enumerate(line.events) if is_ours(event))
    first = last
    while first > 0 and is_ours(line.events[first - 1]):
        first -= 1
    left, before = line.events[last].to_number, line.events[first].from_number
    newest = line.events[-1]
    back = LabelBack(
        kind=line.artifact.kind,
        name=line.artifact.name,
        label=line.label,
        left=left,
        now=line.now,
        to=before,
        state="restored",
        by=f"{newest.actor_kind}:{newest.actor}",
    )
    if line.now == before:
        return back.model_copy(update={"state": "unchanged"})
    if line.now != left and not force:
        return back.model_copy(update={"state": "moved_since"})
    if before is not None:
        ref = ArtifactRef(line.artifact.project_id, line.artifact.kind, line.artifact.name)
        if line.artifact.deleted_at is not None or not await store.is_live(session, ref, before):
            return back.model_copy(update={"state": "blocked"})
    return back


async def _versions_back(
    session: AsyncSession, run_id: str, lines: list[store.LabelLine], labels: list[LabelBack]
) -> tuple[list[VersionBack], list[VersionBack], list[BuiltOn]]:
    """The run's versions and artifacts that go, those that stay, and what was built on them."""
    made = await store.versions_made(session, run_id)
    ids = {one.version.id: one for one in made}
    uses = await store.uses_of(session, list(ids))
    moving = {
        (line.artifact.id, line.label): back
        for line, back in zip(lines, labels, strict=True)
        if back.state == "restored"
    }
    kept: dict[str, str] = {}
    for version_id, names in (await store.labels_on(session, list(ids))).items():
        one = ids[version_id]
        staying = [name for name in names if (one.artifact.id, name) not in moving]
        if staying:
            kept[version_id] = f"the label {staying[0]!r} names it"
    targets = {(artifact, back.to): label for (artifact, label), back in moving.items()}
    for version_id, one in ids.items():
        label = targets.get((one.artifact.id, one.version.number))
        if label is not None:
            kept[version_id] = f"the label {label!r} goes back to it"
    for version_id in await store.wanted_elsewhere(session, run_id, list(ids)):
        kept.setdefault(version_id, "another run proposes it")
    # What something pins that stays has to stay as well, and so on.
    grown = True
    while grown:
        grown = False
        for use in uses:
            stays = use.used_by not in ids or use.used_by in kept
            if use.how == "part" and stays and use.version_id not in kept:
                kept[use.version_id] = f"version {use.number} of {use.kind} {use.name!r} pins it"
                grown = True
    versions = [_version_back(one, kept) for one in made]
    built_on = [
        _built_on(use, ids[use.version_id])
        for use in uses
        if use.used_by not in ids and use.how in ("parent", "part")
    ]
    artifacts = []
    for artifact in await store.artifacts_made(session, made):
        artifacts.append(await _artifact_back(session, artifact, set(ids) - set(kept)))
    return versions, artifacts, list(dict.fromkeys(built_on))


def _version_back(one: store.Made, kept: dict[str, str]) -> VersionBack:
    back = VersionBack(
        kind=one.artifact.kind, name=one.artifact.name, number=one.version.number, state="archived"
    )
    if one.version.deleted_at is not None or one.artifact.deleted_at is not None:
        return back.model_copy(update={"state": "already"})
    if one.version.id in kept:
        return back.model_copy(update={"state": "kept", "why": kept[one.version.id]})
    return back


async def _artifact_back(
    session: AsyncSession, artifact: ArtifactRow, going: set[str]
) -> VersionBack:
    back = VersionBack(kind=artifact.kind, name=artifact.name, number=0, state="archived")
    if artifact.deleted_at is not None:
        return back.model_copy(update={"state": "already"})
    if artifact.owner_kind != "run":
        return back.model_copy(update={"state": "kept", "why": "a person made it"})
    if await store.live_versions(session, artifact.id) - going:
        return back.model_copy(update={"state": "kept", "why": "it has versions that stay"})
    return back


def _built_on(use: store.Use, on: store.Made) -> BuiltOn:
    return BuiltOn(
        kind=use.kind,
        name=use.name,
        number=use.number,
        origin=use.origin,
        on_kind=on.artifact.kind,
        on_name=on.artifact.name,
        on_number=on.version.number,
    )


async def _apply(session: AsyncSession, project_id: str, plan: _Plan, by: Author) -> None:
    report = plan.report
    words = f"restored to before run {report.run_id}"
    await _move_labels(session, project_id, report, by, words)
    for one in report.promotions:
        await mark_rolled_back(session, plan.promotions[one.id], by, words)
    for one in report.proposals:
        await decide_proposal(session, plan.proposals[one.id], "withdrawn", by, words)
    for version in (*report.versions, *report.artifacts):
        if version.state == "archived":
            ref = ArtifactRef(project_id, version.kind, version.name)
            if version.number == 0:
                await delete_artifact(session, ref, by)
            else:
                await delete_version(session, ref, version.number, by)


async def _move_labels(
    session: AsyncSession, project_id: str, report: RestoreReport, by: Author, words: str
) -> None:
    back = words.startswith("restored")
    for one in report.labels:
        if one.state != "restored":
            continue
        ref = ArtifactRef(project_id, one.kind, one.name)
        if one.to is None:
            await delete_label(session, ref, one.label, by, unlock=True)
            continue
        # What takes a restore back puts the run's work in force again, and counts as the run's.
        run_id = None if back else report.run_id
        move = LabelMove(one.label, one.to, one.now, words, unlock=True, run_id=run_id)
        await move_label(session, ref, move, by)


async def _labels_forward(
    session: AsyncSession, run_id: str, done: RestoreReport, proposal_ids: list[str]
) -> list[LabelBack]:
    lines = await store.label_lines(session, run_id, proposal_ids)
    now = {(line.artifact.kind, line.artifact.name, line.label): line for line in lines}
    labels = []
    for one in done.labels:
        if one.state != "restored":
            continue
        line = now[one.kind, one.name, one.label]
        newest = line.events[-1]
        state: Literal["restored", "moved_since"] = "restored"
        if line.now != one.to:
            state = "moved_since"
        labels.append(
            LabelBack(
                kind=one.kind,
                name=one.name,
                label=one.label,
                left=one.to,
                now=line.now,
                to=one.now,
                state=state,
                by=f"{newest.actor_kind}:{newest.actor}",
            )
        )
    return labels


async def _states_forward(session: AsyncSession, report: RestoreReport) -> None:
    for one in report.promotions:
        await store.set_promotion(session, one.id, one.after)
    for one in report.proposals:
        await store.set_proposal(session, one.id, one.after, "")


async def _audit(
    session: AsyncSession, project_id: str, action: str, report: RestoreReport, by: Author
) -> None:
    details: dict[str, JsonValue] = {
        "labels": sum(one.state == "restored" for one in report.labels),
        "promotions": len(report.promotions),
        "proposals": len(report.proposals),
        "versions": sum(one.state == "archived" for one in report.versions),
        "artifacts": sum(one.state == "archived" for one in report.artifacts),
    }
    entry = AuditEntry(action=action, subject=report.run_id, details=details)
    await append_audit(session, project_id, entry, by)
