"""Agents: bundles that pin a version of each component, and the harness, as one version.

A candidate and an agent version are two forms of one thing: saved and loaded again, the digest is
the same, byte for byte. A component whose content did not change keeps its version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import (
    JSON,
    ArtifactRef,
    Draft,
    create_version,
    encode_content,
    put_blobs,
    read_artifact,
    read_content,
    read_version,
    resolve,
)
from instar.store.audit import Author
from instar.store.saving import JobAccess, Origin, audit_stream
from instar.store.tables import ArtifactRow, VersionPartRow, VersionRow
from instar_core.base import JsonValue, canonical_json
from instar_core.candidates import ARTIFACT_KINDS, Candidate, Component, Harness
from instar_core.errors import InvalidContent, NotFoundError, StoreError

__all__ = [
    "AGENT",
    "AgentNote",
    "AgentVersion",
    "PartLine",
    "find_agent_version",
    "list_closed_parts",
    "list_component_versions",
    "load_candidate",
    "load_candidate_version",
    "read_agent",
    "rollouts_shown",
    "save_agent",
    "save_agent_as",
]

AGENT = "agent"
_FORMAT = 2
# Format 1 named the pinned versions by id. Both are loaded through the table that pins them, so a
# project that was exported and imported has the same bytes and the same hashes.
_READABLE = (1, 2)


class AgentVersion(NamedTuple):
    """One version of an agent: its id, number, and the digest of the candidate that it is."""

    id: str
    agent: str
    version: int
    digest: str


class PartLine(NamedTuple):
    """What a changed component came from: its parents, and the person's version it lies on."""

    parents: tuple[str, ...]
    base: str


@dataclass(frozen=True, slots=True)
class AgentNote:
    """What goes with an agent version: who saved it, why, on what evidence, from what.

    ``parents`` are ids of versions of this agent; left out, they are found by the digests that the
    candidate names as its parents. A learned version has a ``base``; ``lines`` are those of its
    changed components, by the id of the component's artifact.
    """

    author: Author
    reason: str = ""
    evidence: JsonValue = None
    parents: Sequence[str] = ()
    origin: Origin = "save"
    rollouts: Sequence[str] = ()
    description: str | None = None
    base: str | None = None
    lines: Mapping[str, PartLine] = field(default_factory=dict)


async def save_agent(
    session: AsyncSession,
    project_id: str,
    name: str,
    candidate: Candidate,
    *,
    author: Author,
    reason: str = "",
    evidence: JsonValue = None,
) -> AgentVersion:
    """Saves a candidate as a new version of an agent, changed components as versions of theirs.

    Args:
        session: A project transaction; all of it is saved, or nothing.
        project_id: The project.
        name: The agent's name.
        candidate: What to save.
        author: The person or run that made it.
        reason: Why, in words.
        evidence: What speaks for it.

    Returns:
        The agent version. Its parents are the versions of this agent that the candidate names as
        its own parents.

    Raises:
        UserError: If a name cannot be stored, or a content is no JSON.
    """
    note = AgentNote(author, reason, evidence)
    return await save_agent_as(session, ArtifactRef(project_id, AGENT, name), candidate, note)


async def save_agent_as(
    session: AsyncSession, ref: ArtifactRef, candidate: Candidate, note: AgentNote
) -> AgentVersion:
    """Saves a candidate as :func:`save_agent` does, with all that can go with a version.

    Raises:
        InvalidContent: If the name cannot be an agent's, or a content cannot be stored.
        PermissionDenied: If the author is a run and the agent, or what changed of it, is closed to
            jobs.
    """
    if "/" in ref.name:
        raise InvalidContent(
            f"{ref.name!r} cannot be an agent's name: '/' separates its components.",
            remedy="Choose a name without '/'.",
        )
    # Jobs may overlay a new agent; what a person has said about it since stays.
    known = await _is_known(session, ref)
    pinned = await _save_components(session, ref, candidate, note)
    pins = {part: (version.number, version.blob_digest) for part, version in pinned.items()}
    bundle = canonical_json(agent_bundle(ref.name, candidate, pins))
    row = await create_version(
        session,
        ref,
        Draft(
            bundle,
            JSON,
            note.author,
            note.reason,
            note.evidence,
            parents=note.parents or await _parents(session, ref, candidate),
            subject_digest=candidate.digest,
            parts=[(part, pinned[part].id) for part in candidate.components],
            origin=note.origin,
            base=note.base,
            rollouts=note.rollouts,
            search_text=_search_text(candidate),
            description=note.description,
            job_access=None if known else "overlay",
        ),
    )
    return AgentVersion(row.id, ref.name, row.number, candidate.digest)


async def _is_known(session: AsyncSession, ref: ArtifactRef) -> bool:
    try:
        await read_artifact(session, ref, deleted=True)
    except NotFoundError:
        return False
    return True


async def _trainable_now(session: AsyncSession, ref: ArtifactRef) -> dict[str, bool]:
    """Component → whether it may be trained, of the agent's newest version; empty without one."""
    try:
        newest = (await resolve(session, ref)).version
    except NotFoundError:
        return {}
    bundle = await read_content(session, newest)
    parts = bundle.get("components") if isinstance(bundle, dict) else None
    return {
        str(one["name"]): bool(one["trainable"])
        for one in (parts if isinstance(parts, list) else ())
        if isinstance(one, dict) and {"name", "trainable"} <= one.keys()
    }


async def _save_components(
    session: AsyncSession, ref: ArtifactRef, candidate: Candidate, note: AgentNote
) -> dict[str, VersionRow]:
    """The version of each component: the one there is where its content did not change."""
    contents = {
        part: encode_content(component.content) for part, component in candidate.components.items()
    }
    before = await _trainable_now(session, ref)
    blobs = [content for content, _ in contents.values()]
    await put_blobs(session, ref.project_id, blobs, stream=audit_stream(note.author))
    pinned: dict[str, VersionRow] = {}
    # In the order of names, so that two savers lock the components' rows in the same order.
    for part in sorted(contents):
        content, media_type = contents[part]
        component = candidate.components[part]
        own = _component_ref(ref, part, component)
        access: JobAccess | None = "overlay" if component.trainable else "none"
        if before.get(part) == component.trainable:
            # What a person has said about it since stays.
            access = None
        line = await _line_of(session, own, note)
        # A run names rollouts in contents as it counts them; in its note they are as stored.
        shown = () if note.author.kind == "run" else rollouts_shown(component)
        pinned[part] = await create_version(
            session,
            own,
            Draft(
                content,
                media_type,
                note.author,
                note.reason,
                note.evidence,
                parents=() if line is None else line.parents,
                origin="save" if line is None and note.base else note.origin,
                base=None if line is None else line.base,
                rollouts=[*note.rollouts, *shown],
                job_access=access,
            ),
            reuse=True,
        )
    return pinned


async def _line_of(session: AsyncSession, ref: ArtifactRef, note: AgentNote) -> PartLine | None:
    """What a component's version lies on; ``None`` for one that the learned version brought in."""
    if not note.lines:
        return None
    try:
        artifact = await read_artifact(session, ref)
    except NotFoundError:
        return None
    return note.lines.get(artifact.id)


def rollouts_shown(component: Component) -> list[str]:
    """Ids of the rollouts from which a component's demonstrations were taken."""
    if component.kind != "demonstrations" or not isinstance(component.content, dict):
        return []
    pool = component.content.get("pool")
    sources = [
        one.get("source")
        for one in (pool if isinstance(pool, list) else ())
        if isinstance(one, dict)
    ]
    return list(dict.fromkeys(str(source) for source in sources if _is_id(source)))


def _is_id(value: object) -> bool:
    try:
        return isinstance(value, str) and str(UUID(value)) == value
    except ValueError:
        return False


def _component_ref(agent: ArtifactRef, part: str, component: Component) -> ArtifactRef:
    kind = ARTIFACT_KINDS[component.kind]
    return ArtifactRef(agent.project_id, kind, f"{agent.name}/{part}")


async def read_agent(
    session: AsyncSession, project_id: str, name: str, ref: str | int = "latest"
) -> AgentVersion:
    """The agent version that a reference (number, label or ``latest``) means now.

    Raises:
        NotFoundError: If there is no such agent, version or label.
    """
    found = await resolve(session, ArtifactRef(project_id, AGENT, name), ref)
    version = found.version
    return AgentVersion(version.id, name, version.number, version.subject_digest)


async def load_candidate(
    session: AsyncSession, project_id: str, name: str, ref: str | int = "latest"
) -> Candidate:
    """The candidate that an agent's version holds.

    Args:
        session: A project transaction.
        project_id: The project.
        name: The agent's name.
        ref: A version number, a label, or ``latest``.

    Raises:
        NotFoundError: If there is no such agent, version or label.
        StoreError: If what is stored is not what was saved.
    """
    agent = await read_agent(session, project_id, name, ref)
    return await load_candidate_version(session, agent.id)


async def load_candidate_version(session: AsyncSession, version_id: str) -> Candidate:
    """The candidate of the agent version with that id.

    Raises:
        NotFoundError: If there is no such version.
        StoreError: If what is stored is not what was saved.
    """
    version = await read_version(session, version_id)
    bundle = cast("dict[str, JsonValue]", await read_content(session, version))
    if not isinstance(bundle, dict) or bundle.get("format") not in _READABLE:
        raise StoreError(
            f"version {version_id} is not an agent version that this Instar can read.",
            remedy="Use the version of Instar that wrote it.",
        )
    pins = dict(await list_component_versions(session, version_id))
    components: dict[str, Component] = {}
    for raw in cast("list[dict[str, JsonValue]]", bundle["components"]):
        name = str(raw["name"])
        pinned = pins.get(name)
        if pinned is None or pinned.blob_digest != raw["digest"]:
            raise StoreError(
                f"agent version {version_id} does not pin what it was saved with as {name!r}.",
                remedy="Do not run it. Restore the database from a backup.",
            )
        content = await read_content(session, pinned)
        fields = {key: raw[key] for key in ("kind", "trainable", "owner", "budget_tokens")}
        components[name] = Component.model_validate({**fields, "content": content})
    candidate = Candidate(
        components=components,
        harness=Harness.model_validate(bundle["harness"]),
        parents=tuple(str(parent) for parent in cast("list[JsonValue]", bundle["parents"])),
        note=str(bundle["note"]),
    )
    if candidate.digest != version.subject_digest:
        raise StoreError(
            f"agent version {version_id} was saved as {version.subject_digest} and reads as "
            f"{candidate.digest}.",
            remedy="Do not run it: what was tested would not be what runs. Restore a backup.",
        )
    return candidate


async def find_agent_version(
    session: AsyncSession, project_id: str, name: str, digest: str
) -> AgentVersion | None:
    """The newest version of an agent that holds the candidate with that digest, if there is one."""
    row = await session.scalar(
        select(VersionRow)
        .join(ArtifactRow, ArtifactRow.id == VersionRow.artifact_id)
        .where(
            ArtifactRow.project_id == project_id,
            ArtifactRow.kind == AGENT,
            ArtifactRow.name == name,
            VersionRow.subject_digest == digest,
            VersionRow.deleted_at.is_(None),
        )
        .order_by(VersionRow.number.desc())
        .limit(1)
    )
    return None if row is None else AgentVersion(row.id, name, row.number, digest)


async def list_closed_parts(
    session: AsyncSession, agent_version_id: str, names: Collection[str]
) -> list[str]:
    """Which of an agent version's components runs may not lay versions on; '' is the agent itself.

    Args:
        session: A project transaction.
        agent_version_id: The agent version.
        names: The components that are asked about.
    """
    version = await read_version(session, agent_version_id)
    pinned = select(VersionPartRow.name, VersionRow.artifact_id).join(
        VersionRow, VersionRow.id == VersionPartRow.part_id
    )
    rows = await session.execute(pinned.where(VersionPartRow.version_id == version.id))
    owners = {"": version.artifact_id}
    owners.update((name, artifact) for name, artifact in rows if name in names)
    closed = await session.scalars(
        select(ArtifactRow.id).where(
            ArtifactRow.id.in_(owners.values()),
            ArtifactRow.owner_kind != "run",
            ArtifactRow.job_access != "overlay",
        )
    )
    shut = set(closed)
    return sorted(name for name, artifact in owners.items() if artifact in shut)


async def list_component_versions(
    session: AsyncSession, agent_version_id: str
) -> list[tuple[str, VersionRow]]:
    """Name and pinned version of each component of an agent version, in the agent's order."""
    rows = await session.execute(
        select(VersionPartRow.name, VersionRow)
        .join(VersionRow, VersionRow.id == VersionPartRow.part_id)
        .where(VersionPartRow.version_id == agent_version_id)
        .order_by(VersionPartRow.ordinal)
    )
    return [(name, version) for name, version in rows]


def agent_bundle(
    agent: str, candidate: Candidate, pins: Mapping[str, tuple[int, str]]
) -> JsonValue:
    """What the agent version's blob holds: a list, because JSON objects have no order.

    Components are pinned by kind, name, number and digest, which an export and an import keep.
    """
    components: list[JsonValue] = []
    for name, component in candidate.components.items():
        number, digest = pins[name]
        components.append(
            {
                "name": name,
                "artifact": {"kind": ARTIFACT_KINDS[component.kind], "name": f"{agent}/{name}"},
                "version": number,
                "digest": digest,
                **component.model_dump(mode="json", exclude={"content"}),
            }
        )
    return {
        "format": _FORMAT,
        "candidate": candidate.digest,
        "components": components,
        "harness": candidate.harness.model_dump(mode="json"),
        "parents": list(candidate.parents),
        "note": candidate.note,
    }


def _search_text(candidate: Candidate) -> str:
    """The words by which an agent is found: its model, tools, and the names of its components."""
    tools = [tool.name for tool in candidate.harness.tools]
    return " ".join((candidate.harness.model, *tools, *candidate.components))


async def _parents(session: AsyncSession, ref: ArtifactRef, candidate: Candidate) -> list[str]:
    try:
        artifact = await read_artifact(session, ref)
    except NotFoundError:
        return []
    rows = await session.execute(
        select(VersionRow.subject_digest, VersionRow.id)
        .where(
            VersionRow.artifact_id == artifact.id,
            VersionRow.subject_digest.in_(candidate.parents),
        )
        .order_by(VersionRow.number)
    )
    # The newest version of each parent: later rows win.
    return list(dict(rows.tuples().all()).values())
