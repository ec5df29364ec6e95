"""Planning: compares a package with what a project has, and says what is missing, or in the way.

An artifact that is there already goes on where the two histories part only if one is the beginning
of the other. Labels follow the same rule, move by move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from instar.registry.transfer.manifest import ArtifactFacts, LabelMoveFacts
from instar.registry.transfer.package import Package, VersionItem
from instar.registry.transfer.report import ArtifactChange
from instar.store.tables import ArtifactRow, LabelEventRow, LabelRow, VersionRow
from instar.store.transfer import RegistryRows
from instar_core.base import short

__all__ = ["ArtifactPlan", "plan_import"]


@dataclass(slots=True)
class ArtifactPlan:
    """What is to be done with one artifact of a package.

    Attributes:
        facts: The artifact as it came.
        name: What it is called here.
        action: ``create`` it, ``extend`` it, ``keep`` it as it is, or nothing: ``conflict``.
        items: The versions to add, in the order of numbers.
        moves: The moves of labels that are new here.
        labels: The labels to place where they are in the package.
        placed: Where the labels are here.
        known: The versions that are here already, by number.
        reason: Why it conflicts.
    """

    facts: ArtifactFacts
    name: str
    action: Literal["create", "extend", "keep", "conflict"] = "create"
    items: list[VersionItem] = field(default_factory=list)
    moves: list[LabelMoveFacts] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    placed: dict[str, int] = field(default_factory=dict)
    known: dict[int, VersionRow] = field(default_factory=dict)
    reason: str = ""

    def change(self) -> ArtifactChange:
        """The plan as the report tells it."""
        return ArtifactChange(
            kind=self.facts.kind,
            name=self.name,
            came_as=self.facts.name,
            action=self.action,
            versions=tuple(item.facts.number for item in self.items),
            labels=tuple(self.labels),
            reason=self.reason,
        )


def plan_import(package: Package, here: RegistryRows, prefix: str = "") -> list[ArtifactPlan]:
    """What an import has to do, artifact by artifact.

    Args:
        package: What came.
        here: What the project has.
        prefix: Put before every name.
    """
    items: dict[tuple[str, str], list[VersionItem]] = {}
    for item in package.versions:
        items.setdefault((item.artifact.kind, item.artifact.name), []).append(item)
    rows = {(row.kind, row.name): row for row in here.artifacts}
    plans: list[ArtifactPlan] = []
    for facts in package.manifest.artifacts:
        plan = ArtifactPlan(facts, prefix + facts.name)
        arriving = sorted(items[facts.kind, facts.name], key=lambda item: item.facts.number)
        row = rows.get((facts.kind, plan.name))
        if row is None:
            plan.items, plan.moves = arriving, list(facts.label_history)
            plan.labels = [label.name for label in facts.labels]
        else:
            _compare(plan, arriving, row, here)
        plans.append(plan)
    return plans


def _compare(
    plan: ArtifactPlan, arriving: list[VersionItem], row: ArtifactRow, here: RegistryRows
) -> None:
    """Plans for an artifact that is there: what is missing at its end, or why it conflicts."""
    present = here.versions[row.id]
    plan.known = {version.number: version for version in present}
    for version, item in zip(present, arriving, strict=False):
        if not _same(version, item):
            plan.action = "conflict"
            plan.reason = (
                f"version {version.number} here is {version.blob_digest[:12]}…, in the export "
                f"{item.facts.digest[:12]}…"
            )
            return
    plan.items = arriving[len(present) :]
    plan.action = "extend" if plan.items else "keep"
    if row.deleted_at is not None and not plan.facts.archived:
        plan.action, plan.items = "conflict", []
        plan.reason = "it was archived here; restore it first"
        return
    plan.reason = _compare_labels(plan, here.labels[row.id], here.moves[row.id])
    if plan.reason:
        plan.action, plan.items, plan.moves, plan.labels = "conflict", [], [], []
    elif plan.labels:
        plan.action = "extend"


def _same(version: VersionRow, item: VersionItem) -> bool:
    facts = item.facts
    return (version.blob_digest, version.media_type, version.subject_digest) == (
        facts.digest,
        facts.media_type,
        facts.subject_digest,
    )


def _compare_labels(
    plan: ArtifactPlan, labels: Sequence[LabelRow], moves: Sequence[LabelEventRow]
) -> str:
    """Takes the moves that are new here; says why a label that went another way conflicts."""
    placed = plan.placed = {label.name: label.number for label in labels}
    wanted = {label.name: label.number for label in plan.facts.labels}
    names = dict.fromkeys(move.label for move in plan.facts.label_history)
    for name in dict.fromkeys([*names, *wanted]):
        mine = [(move.from_number, move.to_number) for move in moves if move.label == name]
        theirs = [move for move in plan.facts.label_history if move.label == name]
        path = [(move.from_number, move.to_number) for move in theirs]
        if mine[: len(path)] == path:
            # All of it happened here already, and maybe more since.
            if len(mine) == len(path) and placed.get(name) != wanted.get(name):
                return _conflict(name, placed.get(name), wanted.get(name))
        elif path[: len(mine)] == mine and wanted.get(name) is not None:
            plan.moves += theirs[len(mine) :]
            plan.labels.append(name)
        elif placed.get(name) != wanted.get(name):
            return _conflict(name, placed.get(name), wanted.get(name))
    # In the order in which they happened, all labels together.
    order = {id(move): place for place, move in enumerate(plan.facts.label_history)}
    plan.moves.sort(key=lambda move: order[id(move)])
    return ""


def _conflict(label: str, mine: int | None, theirs: int | None) -> str:
    return (
        f"the label {short(label, 63)!r} is {_place(mine)} here and {_place(theirs)} in the "
        "export, and neither is the other's past"
    )


def _place(number: int | None) -> str:
    return "absent" if number is None else f"at version {number}"
