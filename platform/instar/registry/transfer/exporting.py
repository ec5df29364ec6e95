"""Exporting: everything in a project's registry as one tar.gz of open formats.

Two exports of the same state are the same bytes but for the moment in the manifest. What is sealed
stays out: this role of the database cannot read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import IO, Any, cast

from sqlalchemy.ext.asyncio import AsyncSession

from instar import __version__
from instar.redaction import mask_known, redact, redact_text
from instar.registry.transfer.contents import attachments_of, decode_stored, open_form
from instar.registry.transfer.manifest import (
    FORMAT,
    MANIFEST,
    ArtifactFacts,
    AuthorFacts,
    FileFacts,
    LabelFacts,
    LabelMoveFacts,
    Manifest,
    PartFacts,
    SealedFacts,
    SecretFacts,
    TaskFacts,
    VersionFacts,
    VersionKey,
    VersionRef,
    folder_of,
)
from instar.registry.transfer.provenance import facts_of_move, facts_of_version
from instar.store.agents import load_candidate_version
from instar.store.projects import read_project
from instar.store.rollouts import read_rollout
from instar.store.secret_refs import find_references
from instar.store.tables import ArtifactRow, LabelEventRow, VersionRow
from instar.store.transfer import (
    RegistryRows,
    list_rollout_ids,
    read_blob,
    read_registry,
    read_secret_names,
    read_task_rows,
)
from instar_core.base import JsonValue, content_hash
from instar_core.errors import InstarError, StoreError, UserError
from instar_skills.archives import TarWriter
from instar_skills.paths import check_path

__all__ = ["ExportOptions", "export_project", "task_lines"]

_LONGEST_FILE = 64 * 2**20


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What goes along.

    Attributes:
        trajectories: Rollouts as JSONL, with known and likely secrets masked.
        redact: Mask known secrets inside contents and say so, instead of refusing to export them.
    """

    trajectories: bool = False
    redact: bool = False


@dataclass(slots=True)
class _Export:
    """What one export has written so far."""

    session: AsyncSession
    project_id: str
    options: ExportOptions
    writer: TarWriter
    rows: RegistryRows
    keys: dict[str, VersionKey]
    files: list[FileFacts] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    secrets: set[str] = field(default_factory=set)
    sealed: int = 0

    def add(self, path: str, data: bytes) -> None:
        """Writes one file, once."""
        if path in self.written:
            return
        self.written.add(path)
        self.writer.add(path, data)
        digest = content_hash(data)
        self.files.append(FileFacts(path=path, sha256=digest, size=len(data)))


async def export_project(
    session: AsyncSession, project_id: str, target: IO[bytes], options: ExportOptions
) -> Manifest:
    """Writes a project's registry as a tar.gz.

    Args:
        session: A snapshot of the project (:meth:`Database.snapshot`), so that all of it is of one
            moment.
        project_id: The project.
        target: Where the bytes go.
        options: What goes along.

    Returns:
        The manifest that was written as the last file.

    Raises:
        UserError: If something holds the value of a known secret; names it. What was written until
            then is of no use.
        StoreError: If a stored content is damaged.
    """
    rows = await read_registry(session, project_id)
    keys = {
        version.id: VersionKey(artifact.kind, artifact.name, version.number)
        for artifact in rows.artifacts
        for version in rows.versions[artifact.id]
    }
    state = _Export(session, project_id, options, TarWriter(target), rows, keys)
    artifacts = [await _artifact(state, row) for row in rows.artifacts]
    rollouts = await _write_rollouts(state) if options.trajectories else 0
    names = await read_secret_names(session, project_id)
    project = await read_project(session, project_id)
    manifest = Manifest(
        format=FORMAT,
        instar=__version__,
        project=project.name,
        moment=datetime.now(UTC).isoformat(timespec="seconds"),
        artifacts=tuple(artifacts),
        sealed=SealedFacts(tasks=state.sealed),
        rollouts=rollouts,
        secrets=tuple(
            SecretFacts(reference=one, name=names.get(one, one)) for one in sorted(state.secrets)
        ),
        files=tuple(sorted(state.files, key=lambda one: one.path)),
    )
    state.writer.add(MANIFEST, manifest_bytes(manifest))
    state.writer.close()
    return manifest


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest as its file has it: sorted keys, readable by people.

    Raises:
        UserError: If a name, tag or other text that cannot be masked is a known secret.
    """
    dumped = manifest.model_dump(mode="json")
    text = json.dumps(dumped, ensure_ascii=False, indent=1, sort_keys=True, allow_nan=False)
    if mask_known(text) != text:
        raise UserError(
            "a name, a tag or a label in this project holds the value of a known secret; nothing "
            "was exported.",
            remedy="Rename it, and replace the secret.",
        )
    return (text + "\n").encode("utf-8", "surrogatepass")


async def _artifact(state: _Export, row: ArtifactRow) -> ArtifactFacts:
    versions = [await _version(state, row, one) for one in state.rows.versions[row.id]]
    return ArtifactFacts(
        kind=row.kind,
        name=row.name,
        description=redact_text(row.description),
        tags=tuple(row.tags),
        owner_kind=cast("Any", row.owner_kind),
        job_access=cast("Any", row.job_access),
        archived=row.deleted_at is not None,
        versions=tuple(versions),
        labels=tuple(
            LabelFacts(name=label.name, number=label.number, move_role=cast("Any", label.move_role))
            for label in state.rows.labels[row.id]
        ),
        label_history=tuple(_move(move) for move in state.rows.moves[row.id]),
    )


def _move(row: LabelEventRow) -> LabelMoveFacts:
    facts = facts_of_move(row)
    return LabelMoveFacts(
        label=row.label,
        from_number=row.from_number,
        to_number=row.to_number,
        actor=AuthorFacts(kind=facts.author_kind, name=facts.author),
        cause=redact_text(row.cause),
        run=facts.run,
        at=facts.at,
    )


async def _version(state: _Export, artifact: ArtifactRow, row: VersionRow) -> VersionFacts:
    stored = await read_blob(state.session, state.project_id, row.blob_digest)
    where = f"{artifact.kind} {artifact.name!r} version {row.number}"
    data = _without_secrets(stored, where, state.options)
    folder, blob, tasks = await _content(state, artifact, row, data)
    facts = facts_of_version(row, state.rows.rollouts[row.id])
    return VersionFacts(
        number=row.number,
        digest=content_hash(data),
        media_type=row.media_type,
        size=len(data),
        folder=folder,
        blob=blob,
        subject_digest=row.subject_digest,
        author=AuthorFacts(kind=facts.author_kind, name=facts.author),
        reason=redact_text(row.reason),
        evidence=redact(facts.evidence),
        origin=facts.origin,
        run=facts.run,
        rollouts=facts.rollouts,
        parents=tuple(sorted(_refs(state, state.rows.parents[row.id]), key=lambda one: one.key)),
        base=next(iter(_refs(state, [row.base_id] if row.base_id else [])), None),
        parts=tuple(
            PartFacts(part=part, **_ref(state, part_id).model_dump())
            for part, part_id in state.rows.parts[row.id]
        ),
        tasks=tasks,
        created_at=facts.at,
        archived=row.deleted_at is not None,
        masked=row.blob_digest if data is not stored else "",
    )


def _refs(state: _Export, ids: Iterable[str]) -> list[VersionRef]:
    return [_ref(state, one) for one in ids]


def _ref(state: _Export, version_id: str) -> VersionRef:
    key = state.keys.get(version_id)
    if key is None:
        raise StoreError(
            f"a version refers to {version_id}, which this project does not have.",
            remedy="Run the check of the database (`instar db check`).",
        )
    return VersionRef(kind=key.kind, name=key.name, number=key.number)


async def _content(
    state: _Export, artifact: ArtifactRow, row: VersionRow, data: bytes
) -> tuple[str, str, TaskFacts | None]:
    """Writes a version's content; returns its folder, its blob and its tasks."""
    folder = f"{folder_of(artifact.kind, artifact.name)}/v{row.number}"
    state.secrets.update(find_references(data.decode("utf-8", "replace")))
    form = open_form(artifact.kind, artifact.name, data, row.media_type)
    files = dict(form.files)
    tasks = None
    if artifact.kind == "agent":
        files = await _agent_files(state, row)
    elif artifact.kind == "task_set":
        tasks, files = await _task_files(state, artifact, row, folder)
    elif artifact.kind == "adapter" and files:
        files |= await _attached(state, data, row.media_type)
    for path in sorted(files):
        state.add(f"{folder}/{path}", files[path])
    blob = ""
    if not form.exact:
        digest = content_hash(data)
        blob = f"blobs/{digest}"
        state.add(blob, data)
    return (folder if files else "", blob, tasks)


async def _agent_files(state: _Export, row: VersionRow) -> dict[str, bytes]:
    """The whole agent in one JSON for people; the bundle that pins its parts goes as a blob."""
    try:
        candidate = await load_candidate_version(state.session, row.id)
    except InstarError:
        return {}
    dumped = candidate.model_dump(mode="json", include={"components", "harness"})
    text = json.dumps(dumped, ensure_ascii=False, indent=2)
    if mask_known(text) != text:
        # Its parts are masked one by one; this copy for people stays away.
        return {}
    return {"agent.json": (text + "\n").encode("utf-8", "surrogatepass")}


async def _task_files(
    state: _Export, artifact: ArtifactRow, row: VersionRow, folder: str
) -> tuple[TaskFacts, dict[str, bytes]]:
    rows = await read_task_rows(state.session, row.id)
    sealed = [[task.task_id, task.content_digest] for task in rows if task.split == "sealed"]
    visible = [task.content for task in rows if task.split != "sealed"]
    data = task_lines(visible)
    where = f"a task of {artifact.kind} {artifact.name!r} version {row.number}"
    _without_secrets(data, where, ExportOptions())
    state.sealed += len(sealed)
    facts = TaskFacts(
        file=f"{folder}/tasks.jsonl",
        tasks=len(visible),
        sealed=len(sealed),
        sealed_digest=content_hash(sealed) if sealed else "",
    )
    return facts, {"tasks.jsonl": data}


def task_lines(tasks: Iterable[Any]) -> bytes:
    """Tasks as JSON lines, their keys in the order in which they are stored."""
    lines = [
        json.dumps(task, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        for task in tasks
    ]
    return "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")


async def _attached(state: _Export, data: bytes, media_type: str) -> dict[str, bytes]:
    """Files that the content names by hash, as far as their bytes are in the database."""
    found: dict[str, bytes] = {}
    for path, digest in attachments_of("adapter", decode_stored(data, media_type)).items():
        try:
            found[check_path(path)] = await read_blob(state.session, state.project_id, digest)
        except StoreError:
            continue
    return found


def _without_secrets(data: bytes, where: str, options: ExportOptions) -> bytes:
    """The bytes, if no known secret is in them; masked where that was asked for.

    Raises:
        UserError: If one is; names where.
    """
    text = data.decode("utf-8", "surrogateescape")
    masked = mask_known(text)
    if masked == text:
        return data
    if not options.redact:
        raise UserError(
            f"the content of {where} holds the value of a known secret; nothing was exported.",
            remedy="Replace the secret and save the content without it, or export with 'redact', "
            "which masks it and marks the content as changed.",
        )
    return masked.encode("utf-8", "surrogateescape")


async def _write_rollouts(state: _Export) -> int:
    """One JSONL per run, in the order of ids, cut where a file would grow too long."""
    by_run: dict[str, list[str]] = {}
    async for key, run in list_rollout_ids(state.session, state.project_id):
        by_run.setdefault(run or "single", []).append(key)
    total = 0
    for run in sorted(by_run):
        lines: list[bytes] = []
        size, part = 0, 1
        for key in by_run[run]:
            rollout = await read_rollout(state.session, key)
            line = _rollout_line(redact(rollout.model_dump(mode="json")))
            if lines and size + len(line) > _LONGEST_FILE:
                state.add(f"rollouts/{run}-{part}.jsonl", b"".join(lines))
                lines, size, part = [], 0, part + 1
            lines.append(line)
            size += len(line)
            total += 1
        state.add(f"rollouts/{run}-{part}.jsonl", b"".join(lines))
    return total


def _rollout_line(value: JsonValue) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n"
