"""Importing: writes a checked package into a project, all of it or nothing, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry.transfer.contents import search_words
from instar.registry.transfer.manifest import VersionKey
from instar.registry.transfer.package import Package, VersionItem
from instar.registry.transfer.planning import ArtifactPlan, plan_import
from instar.registry.transfer.provenance import wrap_move, wrap_version
from instar.registry.transfer.report import ImportReport
from instar.store.agents import AGENT, load_candidate_version
from instar.store.artifacts import ArtifactRef, Draft, create_version, describe_artifact, put_blobs
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.contents import lock_stream
from instar.store.task_sets import TASK_SET
from instar.store.transfer import (
    ImportedMove,
    PlacedLabel,
    archive_imported,
    fill_sealed,
    place_labels,
    read_registry,
    save_task_rows,
    set_owner_kind,
)
from instar_core.base import content_hash
from instar_core.errors import ConflictError, InvalidContent, StoreError

__all__ = ["ImportOptions", "import_package"]

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How to import.

    Attributes:
        prefix: Put before every name, so that what is here stays untouched.
        dry_run: Report alone. The caller undoes the transaction: what is written in it shows
            whether it can be written.
    """

    prefix: str = ""
    dry_run: bool = False


@dataclass(slots=True)
class _Writer:
    """The state of one import: which version got which id."""

    session: AsyncSession
    project_id: str
    package: Package
    by: Author
    plans: dict[tuple[str, str], ArtifactPlan]
    ids: dict[VersionKey, str]
    sealed: int = 0
    tasks: int = 0

    def ref(self, plan: ArtifactPlan) -> ArtifactRef:
        """The artifact here."""
        return ArtifactRef(self.project_id, plan.facts.kind, plan.name)


async def import_package(
    session: AsyncSession,
    project_id: str,
    package: Package,
    by: Author,
    options: ImportOptions | None = None,
) -> ImportReport:
    """Writes what the project does not have of a package yet.

    Args:
        session: A project transaction; for a dry run the caller rolls it back.
        project_id: The project.
        package: What came, checked.
        by: Who imports: the author of everything that is written. Authors from elsewhere stand in
            the evidence.
        options: A prefix for names; a dry run.

    Returns:
        What was done. Where something is in the way, a dry run lists it.

    Raises:
        ConflictError: If something is in the way and this is no dry run; lists it.
        InvalidContent: If a name, text or content is not accepted here.
    """
    options = options or ImportOptions()
    # Before anything is read: nobody else writes to this project's registry until the end.
    await lock_stream(session, project_id, "admin")
    here = await read_registry(session, project_id)
    plans = plan_import(package, here, options.prefix)
    conflicts = [
        f"{plan.facts.kind} {plan.name!r}: {plan.reason}"
        for plan in plans
        if plan.action == "conflict"
    ]
    if conflicts and not options.dry_run:
        shown = "; ".join(conflicts[:_SHOWN])
        more = f" (and {len(conflicts) - _SHOWN} more)" if len(conflicts) > _SHOWN else ""
        raise ConflictError(
            f"{len(conflicts)} artifacts of the export differ from what is here: {shown}{more}. "
            "Nothing was imported.",
            remedy="Import under other names with a prefix, or into another project.",
        )
    writer = _Writer(
        session,
        project_id,
        package,
        by,
        {(plan.facts.kind, plan.facts.name): plan for plan in plans},
        {plan.facts.key(number): row.id for plan in plans for number, row in plan.known.items()},
    )
    if not conflicts:
        await _write(writer, plans)
    return _report(writer, plans, conflicts, options)


async def _write(writer: _Writer, plans: list[ArtifactPlan]) -> None:
    session = writer.session
    new = {item.key for plan in plans for item in plan.items}
    for item in writer.package.versions:
        if item.key in new:
            await _write_version(writer, item)
        elif item.sealed:
            version_id = writer.ids[item.key]
            rows = _sealed_rows(writer, item, version_id)
            writer.sealed += await fill_sealed(session, rows)
    for plan in plans:
        if plan.action == "create":
            await _describe(writer, plan)
        if plan.moves or plan.labels:
            await _place_labels(writer, plan)
    archived = [
        writer.ids[item.key] for plan in plans for item in plan.items if item.facts.archived
    ]
    gone = [writer.ref(plan) for plan in plans if plan.action == "create" and plan.facts.archived]
    await archive_imported(session, archived, gone)
    await _check_agents(writer, new)
    changed = [plan for plan in plans if plan.items or plan.labels]
    if changed or writer.sealed:
        await _audit(writer, changed)


async def _write_version(writer: _Writer, item: VersionItem) -> None:
    plan = writer.plans[item.artifact.kind, item.artifact.name]
    facts = item.facts
    draft = Draft(
        content=item.data,
        media_type=facts.media_type,
        author=writer.by,
        reason=facts.reason,
        evidence=wrap_version(facts, writer.package.manifest),
        parents=[writer.ids[one.key] for one in facts.parents],
        subject_digest=facts.subject_digest,
        parts=[(one.part, writer.ids[one.key]) for one in facts.parts],
        origin="import",
        base=None if facts.base is None else writer.ids[facts.base.key],
        search_text=search_words(item.artifact.kind, item.data, facts.media_type),
        description=item.artifact.description if facts.number == 1 else None,
        job_access=item.artifact.job_access if facts.number == 1 else None,
    )
    row = await create_version(writer.session, writer.ref(plan), draft)
    if row.number != facts.number:
        raise StoreError(
            f"version {facts.number} of {item.artifact.kind} {plan.name!r} would become "
            f"{row.number}.",
            remedy="Import it again.",
        )
    writer.ids[item.key] = row.id
    await put_blobs(writer.session, writer.project_id, item.attached)
    if item.artifact.kind == TASK_SET:
        key = {"version_id": row.id, "project_id": writer.project_id}
        sealed = _sealed_rows(writer, item, row.id)
        await save_task_rows(writer.session, [{**key, **one} for one in item.rows], sealed)
        writer.tasks += len(item.rows)
        writer.sealed += len(sealed)


def _sealed_rows(writer: _Writer, item: VersionItem, version_id: str) -> list[Mapping[str, object]]:
    key = {"version_id": version_id, "project_id": writer.project_id}
    return [{**key, "task_id": task, "content": item.sealed[task]} for task in item.sealed]


async def _describe(writer: _Writer, plan: ArtifactPlan) -> None:
    ref = writer.ref(plan)
    if plan.facts.tags:
        await describe_artifact(writer.session, ref, writer.by, tags=plan.facts.tags)
    await set_owner_kind(writer.session, ref, plan.facts.owner_kind)


async def _place_labels(writer: _Writer, plan: ArtifactPlan) -> None:
    moves = [
        ImportedMove(move.label, move.from_number, move.to_number, move.cause, wrap_move(move))
        for move in plan.moves
    ]
    now = {
        label.name: PlacedLabel(
            writer.ids[plan.facts.key(label.number)],
            label.number,
            label.move_role,
            plan.placed.get(label.name),
        )
        for label in plan.facts.labels
        if label.name in plan.labels
    }
    await place_labels(writer.session, writer.ref(plan), moves, now, writer.by)


async def _check_agents(writer: _Writer, new: set[VersionKey]) -> None:
    """Loads every agent version that was written: what was exported is what would run here.

    Raises:
        InvalidContent: If one does not read as the digest under which it was tested.
    """
    masked = {item.key for item in writer.package.versions if item.facts.masked}
    for item in writer.package.versions:
        if item.key not in new or item.artifact.kind != AGENT:
            continue
        if masked & {one.key for one in item.facts.parts}:
            continue  # it cannot run, and says so when it is called
        try:
            await load_candidate_version(writer.session, writer.ids[item.key])
        except StoreError as error:
            raise InvalidContent(
                f"agent {item.key.name!r} version {item.key.number} is not what was exported: "
                f"{error.message}",
                remedy="Export the project again.",
            ) from error


async def _audit(writer: _Writer, changed: list[ArtifactPlan]) -> None:
    manifest = writer.package.manifest
    entry = AuditEntry(
        action="project.import",
        subject=manifest.project,
        details={
            "manifest": content_hash(manifest),
            "moment": manifest.moment,
            "artifacts": len(changed),
            "versions": sum(len(plan.items) for plan in changed),
            "labels": [
                [plan.facts.kind, plan.name, *plan.labels] for plan in changed if plan.labels
            ],
            "sealed": writer.sealed,
        },
    )
    await append_audit(writer.session, writer.project_id, entry, writer.by)


def _report(
    writer: _Writer, plans: list[ArtifactPlan], conflicts: list[str], options: ImportOptions
) -> ImportReport:
    manifest = writer.package.manifest
    actions = [plan.action for plan in plans]
    notes: list[str] = []
    without = sum(
        item.facts.tasks.sealed
        for item in writer.package.versions
        if item.facts.tasks and not item.facts.tasks.sealed_file
    )
    if without:
        notes.append(
            f"{without} sealed tasks came without their contents: no sealed test can use them "
            "until an export with sealed tasks is imported over this."
        )
    if manifest.rollouts:
        notes.append(f"{manifest.rollouts} trajectories are in the export; they are not imported.")
    if manifest.secrets:
        named = ", ".join(one.name for one in manifest.secrets)
        notes.append(f"contents refer to secrets that must be made here: {named}.")
    masked = [item for item in writer.package.versions if item.facts.masked]
    notes += [
        f"{item.key.kind} {item.key.name!r} version {item.key.number} had a secret masked; it is "
        "not what was tested."
        for item in masked
    ]
    return ImportReport(
        project=manifest.project,
        dry_run=options.dry_run,
        written=not options.dry_run,
        artifacts=len(plans),
        created=actions.count("create"),
        extended=actions.count("extend"),
        kept=actions.count("keep"),
        versions=sum(len(plan.items) for plan in plans),
        labels=sum(len(plan.labels) for plan in plans),
        tasks=writer.tasks,
        sealed=writer.sealed,
        changes=tuple(plan.change() for plan in plans),
        conflicts=tuple(conflicts),
        notes=tuple(notes),
    )
