"""Contract of a project or an agent: what there is, as the one text that an agent is shown."""

from __future__ import annotations

from collections import Counter

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry.kinds import open_kind
from instar.registry.verbs import known_kind, resolve_known
from instar.store.agents import AGENT, list_component_versions, load_candidate_version
from instar.store.artifacts import ArtifactRef
from instar.store.catalogue import count_newest, list_newest
from instar.store.task_sets import TASK_SET
from instar_core.base import JsonValue
from instar_core.candidates import ARTIFACT_KINDS, Candidate
from instar_core.errors import InvalidContent
from instar_core.registry.contract import (
    DEFAULT_BUDGET,
    Contract,
    ContractEntry,
    build_contract,
)

__all__ = ["agent_contract", "agent_entries", "project_contract"]

# Of an agent's components these stand in its prompt already; listing them would say it twice.
_IN_PROMPT = frozenset({"instructions", "lessons", "demonstrations"})


async def project_contract(
    session: AsyncSession,
    project_id: str,
    kind: str | None = None,
    *,
    budget_tokens: int = DEFAULT_BUDGET,
) -> Contract:
    """What a project has (of one kind), each with its newest version, within a budget.

    Raises:
        NotFoundError: If there is no such kind; names the nearest.
    """
    newest = await list_newest(session, project_id, kind)
    if kind is not None and not newest:
        open_kind(kind)  # says so where the kind itself is unknown
    entries = [
        ContractEntry(
            kind=one.artifact.kind,
            name=one.artifact.name,
            version=one.number,
            line=_line(one.artifact.kind, one.artifact.name, one.artifact.description, one.content),
        )
        for one in newest
    ]
    there = await count_newest(session, project_id, kind)
    return build_contract(entries, budget_tokens=budget_tokens, unread=max(there - len(entries), 0))


async def agent_contract(
    session: AsyncSession,
    ref: ArtifactRef,
    at: str | int = "latest",
    *,
    budget_tokens: int = DEFAULT_BUDGET,
) -> Contract:
    """What an agent version has beside its prompt: skills, tools, memory …, as it is pinned.

    Args:
        session: A project transaction.
        ref: The agent.
        at: A version number, a label or ``latest``.
        budget_tokens: Most tokens of the entries.

    Raises:
        NotFoundError: If there is no such agent or version; names the nearest.
    """
    found = await resolve_known(session, ref._replace(kind=AGENT), at)
    candidate = await load_candidate_version(session, found.version.id)
    pinned = await list_component_versions(session, found.version.id)
    numbers = {name: version.number for name, version in pinned}
    return build_contract(agent_entries(candidate, numbers), budget_tokens=budget_tokens)


def agent_entries(
    candidate: Candidate, numbers: dict[str, int] | None = None
) -> list[ContractEntry]:
    """The catalogue's entries for a candidate: its components in order, then its tool servers.

    Args:
        candidate: The agent version.
        numbers: Component → number of the version that is pinned, where there is one.
    """
    entries = [
        ContractEntry(
            kind=ARTIFACT_KINDS[part.kind],
            name=name,
            version=(numbers or {}).get(name),
            line=_line(ARTIFACT_KINDS[part.kind], name, "", part.content),
        )
        for name, part in candidate.components.items()
        if part.kind not in _IN_PROMPT
    ]
    for server in candidate.harness.tools:
        offers = f": {', '.join(server.allow)}" if server.allow else ""
        entries.append(
            ContractEntry(kind="tool_server", name=server.name, line=f"{server.name}{offers}")
        )
    return sorted(entries, key=lambda entry: entry.kind)


def _line(kind: str, name: str, description: str, content: JsonValue) -> str:
    """What the kind says; only the name where a content is older than its kind's check."""
    known = known_kind(kind)
    if known is None or kind in (AGENT, TASK_SET):
        # Stored as references: what can be said without loading what they point to.
        words = " ".join((description or _outline(kind, content)).split())
        return f"{name}: {words}" if words else name
    try:
        return known.listing(name, description, known.check(content))
    except InvalidContent:
        return name


def _outline(kind: str, stored: JsonValue) -> str:
    """A few words on an agent's bundle or a task set's manifest."""
    if not isinstance(stored, dict):
        return ""
    if kind == TASK_SET:
        tasks = stored.get("tasks")
        splits = Counter(
            str(one.get("split"))
            for one in (tasks if isinstance(tasks, list) else ())
            if isinstance(one, dict)
        )
        return ", ".join(f"{count} {split}" for split, count in sorted(splits.items()))
    harness, parts = stored.get("harness"), stored.get("components")
    model = harness.get("model") if isinstance(harness, dict) else ""
    names = [
        str(one["name"])
        for one in (parts if isinstance(parts, list) else ())
        if isinstance(one, dict)
    ]
    return f"{model}: {', '.join(names) or 'no components'}" if model else ""
