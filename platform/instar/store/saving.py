"""Saving: a new version of an artifact, in one round trip to the database.

Numbers are consecutive because each save takes its number under the artifact's row lock. Content is
an immutable blob named by the sha256 of its bytes: saved twice, it is two versions and one blob.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import column, text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import Author
from instar.store.contents import (
    MAX_CONTENT_BYTES,
    MAX_DESCRIPTION,
    MAX_EVIDENCE_BYTES,
    MAX_REASON,
    check_bytes,
    check_value,
    check_words,
    is_too_deep,
)
from instar.store.names import check_name, skeleton
from instar.store.tables import VersionRow
from instar.store.words import index_words
from instar_core.base import JsonValue, content_hash, new_id, short
from instar_core.errors import (
    ConflictError,
    InvalidContent,
    NotFoundError,
    PermissionDenied,
)

__all__ = [
    "ArtifactRef",
    "Draft",
    "JobAccess",
    "Origin",
    "audit_stream",
    "create_version",
    "refuse_jobs",
    "version_row",
]

Origin = Literal["save", "overlay", "rebase", "merge", "copy", "import", "restore"]
JobAccess = Literal["none", "overlay"]

VERSION_COLUMNS = (
    "id",
    "artifact_id",
    "number",
    "blob_digest",
    "media_type",
    "subject_digest",
    "author_kind",
    "author",
    "reason",
    "evidence",
    "origin",
    "base_id",
    "run_id",
    "created_at",
)
_FACTS_DEPTH = 2
_FACTS_BYTES = 1_000_000
"""What an import puts around the evidence of a version: who made it elsewhere, from what."""
_SAVE = text(
    "select * from instar.save_version(cast(:project as uuid), :kind, :name, :skeleton, "
    "cast(:artifact as uuid), cast(:version as uuid), cast(:audit as uuid), :digest, :content, "
    ":media_type, :subject_digest, :author_kind, :author, :reason, cast(:evidence as json), "
    ":origin, cast(:base as uuid), cast(:run as uuid), cast(:parents as uuid[]), "
    "cast(:part_names as text[]), cast(:part_ids as uuid[]), cast(:rollouts as uuid[]), :search, "
    ":description, :job_access, :reuse)"
).columns(*(column(name) for name in ("status", "told", *VERSION_COLUMNS)))
_EXISTS = text(
    "select 1 from instar.artifact where project_id = cast(:project as uuid) and kind = :kind "
    "and name = :name"
)


class ArtifactRef(NamedTuple):
    """Which artifact: all three fields, always, so that no query crosses projects or kinds."""

    project_id: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A version about to be saved.

    Attributes:
        content: The bytes; see :func:`instar.store.contents.encode_content`.
        media_type: What the bytes are.
        author: The person or run that made it.
        reason: Why, in words.
        evidence: What speaks for it (ids of rollouts, scores), as JSON.
        parents: Ids of the versions it was made from.
        subject_digest: Digest of what the content describes, where that is not the content itself.
        parts: Names and ids of the versions it pins, in order.
        origin: How it came to be. What a run saves on a person's artifact is an ``overlay``.
        base: Id of the person's version on which a learned one lies.
        run_id: The evolution run that made it; a run's own id where the author is a run.
        rollouts: Ids of the rollouts that it was derived from.
        search_text: Words to find the artifact by; ``None`` takes those of the content.
        description: New description of the artifact; ``None`` leaves it.
        job_access: What jobs may do with the artifact; ``None`` leaves it (``none`` for a new one).
        max_bytes: Limit of the content; ``None`` takes the installation's.
    """

    content: bytes
    media_type: str
    author: Author
    reason: str = ""
    evidence: JsonValue = None
    parents: Sequence[str] = ()
    subject_digest: str = ""
    parts: Sequence[tuple[str, str]] = field(default_factory=tuple)
    origin: Origin = "save"
    base: str | None = None
    run_id: str | None = None
    rollouts: Sequence[str] = ()
    search_text: str | None = None
    description: str | None = None
    job_access: JobAccess | None = None
    max_bytes: int | None = None

    @property
    def digest(self) -> str:
        """The sha256 that names the content's blob."""
        return content_hash(self.content)


async def create_version(
    session: AsyncSession, ref: ArtifactRef, draft: Draft, *, reuse: bool = False
) -> VersionRow:
    """Saves a version, audited; the artifact is made with its first one.

    Args:
        session: A project transaction. Parallel saves of one artifact queue on its row.
        ref: The artifact.
        draft: What to save.
        reuse: Return the newest version of the same content, if there is one, instead of saving it
            again.

    Returns:
        The version, with the next consecutive number (or the one found). It belongs to no session:
        a version never changes.

    Raises:
        ConflictError: If the artifact was archived.
        InvalidContent: If its name cannot be one or looks like another's, or content, reason,
            description or evidence are beyond their limits.
        PermissionDenied: If the author is a run and the artifact is a person's that jobs may not
            touch.
        NotFoundError: If a parent, part or base is no version of this project.
    """
    if session.new or session.dirty or session.deleted:
        await session.flush()
    limit = session.info.get("max_content_bytes", MAX_CONTENT_BYTES)
    values = _checked(ref, draft, limit)
    try:
        check_name(ref.kind, ref.name)
    except InvalidContent:
        # A name from before this rule stays usable; no new one is made.
        known = {"project": ref.project_id, "kind": ref.kind, "name": ref.name}
        if "\x00" in ref.name or await session.scalar(_EXISTS, known) is None:
            raise
    row = (await session.execute(_SAVE, {**values, "reuse": reuse})).mappings().one()
    if row["id"] is None:
        raise _refusal(ref, str(row["status"]), row["told"])
    return version_row(ref.project_id, row)


def audit_stream(by: Author) -> str:
    """The audit stream of what somebody does: a run's acts are a chain of their own."""
    return by.name if by.kind == "run" else "admin"


def refuse_jobs(by: Author, what: str) -> None:
    """Refuses what only people and the system do: nothing a job does is beyond recall.

    Raises:
        PermissionDenied: If the actor is a run.
    """
    if by.kind == "run":
        raise PermissionDenied(
            f"a job may not {what}.",
            remedy="Jobs add versions and propose them; a person, or the promotion of a tested "
            "proposal, does the rest.",
        )


def version_row(project_id: str, values: Mapping[Any, Any], prefix: str = "") -> VersionRow:
    """A version that is not deleted, from the columns of a statement; it belongs to no session."""
    found = {name: values[prefix + name] for name in VERSION_COLUMNS}
    for name in ("id", "artifact_id", "base_id", "run_id"):
        found[name] = None if found[name] is None else str(found[name])
    return VersionRow(project_id=project_id, deleted_at=None, **found)


def _checked(ref: ArtifactRef, draft: Draft, limit: int) -> dict[str, Any]:
    """The parameters of the save, each within its limit."""
    what = f"the content of {ref.kind} {short(ref.name, 80)!r}"
    author = draft.author
    check_bytes(draft.content, draft.max_bytes or limit, what)
    if draft.media_type != "text/plain; charset=utf-8" and is_too_deep(draft.content):
        raise InvalidContent(
            f"{what} has more than 200 objects and arrays inside each other.", remedy="Flatten it."
        )
    # A run's own words are cut rather than refused: a night does not fail on a long note.
    reason = draft.reason
    if author.kind == "run":
        reason = short(reason, MAX_REASON).replace("\x00", "\ufffd")
    check_words(reason, MAX_REASON, "the reason")
    check_words(draft.description or "", MAX_DESCRIPTION, "the description")
    evidence = None
    if draft.evidence is not None:
        around, limit = 0, MAX_EVIDENCE_BYTES
        if draft.origin == "import":
            # It lies with the other facts of the place it comes from: what went out comes in.
            around, limit = _FACTS_DEPTH, limit + _FACTS_BYTES
        check_value(draft.evidence, "the evidence", around=around)
        evidence = json.dumps(draft.evidence)
        check_bytes(evidence.encode("ascii"), limit, "the evidence")
    run_id = draft.run_id or (author.name if author.kind == "run" and _is_id(author.name) else None)
    return {
        "project": ref.project_id,
        "kind": ref.kind,
        "name": ref.name,
        "skeleton": skeleton(ref.name),
        "artifact": new_id(),
        "version": new_id(),
        "audit": new_id(),
        "digest": draft.digest,
        "content": draft.content,
        "media_type": draft.media_type,
        "subject_digest": draft.subject_digest,
        "author_kind": author.kind,
        "author": author.name,
        "reason": reason,
        "evidence": evidence,
        "origin": draft.origin,
        "base": draft.base,
        "run": run_id,
        "parents": list(dict.fromkeys(draft.parents)),
        "part_names": [name for name, _ in draft.parts],
        "part_ids": [part for _, part in draft.parts],
        "rollouts": list(draft.rollouts),
        "search": index_words(draft.content if draft.search_text is None else draft.search_text),
        "description": draft.description,
        "job_access": draft.job_access,
    }


def _is_id(name: str) -> bool:
    try:
        UUID(name)
    except ValueError:
        return False
    return True


def _refusal(ref: ArtifactRef, status: str, told: str | None) -> Exception:
    what = f"{ref.kind} {ref.name!r}"
    if status == "archived":
        return ConflictError(f"the {what} was deleted.", remedy="Restore it, or use another name.")
    if status == "read_only":
        return PermissionDenied(
            f"the {what} was made by a person and is read-only to jobs.",
            remedy="Let a person open it to jobs (job_access 'overlay'), or propose a new one.",
        )
    if status == "looks_like":
        return InvalidContent(
            f"{ref.name!r} cannot be the name of a {ref.kind}: it looks like {told!r}, which "
            "exists.",
            remedy="Save a version of that one, or choose a name that differs in more than case, "
            "width or look-alike letters.",
        )
    return NotFoundError(
        f"there is no version {told!r} in this project, which the new version of {what} names as "
        "parent, part or base."
    )
