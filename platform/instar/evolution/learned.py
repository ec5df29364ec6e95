"""Learned versions: what a run found, kept as an overlay on the version that it started from."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncSession

from instar.registry.overlay import LearnedNote, save_learned
from instar.store.agents import AGENT, AgentVersion, find_agent_version
from instar.store.artifacts import ArtifactRef
from instar_core.candidates import Candidate
from instar_core.evolution import Evidence

__all__ = ["Find", "keep_candidate", "saved_parents"]

_MOST_ANCESTORS = 200


class Find:
    """What a run found and from what.

    Args:
        run_id: The run.
        incumbent_id: The agent version that it started from.
        because: The evidence, with the ids of rollouts as they are stored.
        known: The candidates that the run looked at, by digest.
    """

    def __init__(
        self, run_id: str, incumbent_id: str, because: Evidence, known: Mapping[str, Candidate]
    ) -> None:
        self.run_id = run_id
        self.incumbent_id = incumbent_id
        self.because = because
        self.known = known


async def keep_candidate(
    session: AsyncSession, ref: ArtifactRef, candidate: Candidate, find: Find
) -> AgentVersion:
    """The agent version of a candidate: the one there is, or a new overlay of this run."""
    found = await find_agent_version(session, ref.project_id, ref.name, candidate.digest)
    if found is not None:
        return found
    note = LearnedNote(
        find.run_id,
        find.because.reason,
        find.because.model_dump(mode="json"),
        find.because.rollout_ids,
        await saved_parents(session, ref, candidate, find.known),
    )
    return await save_learned(session, ref, candidate, find.incumbent_id, note)


async def saved_parents(
    session: AsyncSession, ref: ArtifactRef, candidate: Candidate, known: Mapping[str, Candidate]
) -> list[str]:
    """Ids of the nearest ancestors of a candidate that are versions of the agent.

    A search keeps few of its candidates; the line is followed over those that it did not keep.
    """
    assert ref.kind == AGENT, "candidates are versions of agents"
    parents: list[str] = []
    seen: set[str] = set()
    waiting = list(candidate.parents)
    while waiting and len(seen) < _MOST_ANCESTORS:
        digest = waiting.pop(0)
        if digest in seen:
            continue
        seen.add(digest)
        found = await find_agent_version(session, ref.project_id, ref.name, digest)
        if found is not None:
            parents.append(found.id)
        elif digest in known:
            waiting.extend(known[digest].parents)
    return list(dict.fromkeys(parents))
