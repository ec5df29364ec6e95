"""Provenance: what a version or a move of a label was where it first happened.

An imported version is saved here by the importer; what it was elsewhere stands in its evidence,
apart from what this installation knows by itself. An export writes the original facts again, so
that a project travels on without losing them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NamedTuple

from instar.registry.transfer.manifest import LabelMoveFacts, Manifest, VersionFacts
from instar.store.tables import LabelEventRow, VersionRow
from instar_core.base import JsonValue

__all__ = ["Facts", "facts_of_move", "facts_of_version", "wrap_move", "wrap_version"]

_KEY = "imported"


class Facts(NamedTuple):
    """Who, when, how and on what grounds, as it was first."""

    author_kind: Any
    author: str
    at: str
    origin: str = ""
    run: str | None = None
    rollouts: tuple[str, ...] = ()
    evidence: JsonValue = None


def wrap_version(facts: VersionFacts, manifest: Manifest) -> JsonValue:
    """The evidence of an imported version: what others say about it, marked as theirs."""
    return {
        _KEY: {
            "from": {"project": manifest.project, "instar": manifest.instar},
            "author": [facts.author.kind, facts.author.name],
            "at": facts.created_at,
            "origin": facts.origin,
            "run": facts.run,
            "rollouts": list(facts.rollouts),
            "evidence": facts.evidence,
        }
    }


def wrap_move(facts: LabelMoveFacts) -> JsonValue:
    """What a move of a label was elsewhere."""
    return {"actor": [facts.actor.kind, facts.actor.name], "at": facts.at, "run": facts.run}


def facts_of_version(row: VersionRow, rollouts: list[str]) -> Facts:
    """What a version was where it was first saved."""
    evidence = row.evidence
    if row.origin == "import" and isinstance(evidence, dict) and set(evidence) == {_KEY}:
        found = evidence[_KEY]
        kind, name = found["author"]
        return Facts(
            kind,
            name,
            found["at"],
            found["origin"],
            found["run"],
            tuple(found["rollouts"]),
            found["evidence"],
        )
    return Facts(
        row.author_kind,
        row.author,
        _moment(row.created_at),
        row.origin,
        row.run_id,
        tuple(rollouts),
        evidence,
    )


def facts_of_move(row: LabelEventRow) -> Facts:
    """What a move of a label was where it took place."""
    if isinstance(row.imported, dict):
        kind, name = row.imported["actor"]
        return Facts(kind, name, row.imported["at"], run=row.imported["run"])
    return Facts(row.actor_kind, row.actor, _moment(row.created_at), run=row.run_id)


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
