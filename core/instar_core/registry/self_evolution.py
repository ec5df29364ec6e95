"""Self-evolution over a registry: reflect, select, improve, evaluate, commit, and roll back.

The operators are those of the Self-Evolution Protocol Layer of Autogenesis (W. Zhang et al.,
"Autogenesis: A Self-Evolving Agent Protocol", arXiv:2604.15034, 2026); the registry is its resource
layer: prompts, agents, tools, environments and memory as versioned resources. Where ours differs:

* Improve never changes what is in use. It saves a version; only a label's move puts one in force.
* Commit is a compare-and-swap of a label: where somebody else moved it meanwhile, nothing happens,
  and the outcome says so. The evidence of the evaluation stays with the move.
* A protected label is never moved, by the loop or for it: what stands behind one is promoted by an
  acceptance test on tasks that no proposer saw, which this loop is not.
* Rollback is an operator of its own: what was committed is evaluated once more where it is in use,
  and the label goes back if that fails, unless somebody else has moved it since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from instar_core.base import Frozen, JsonValue
from instar_core.errors import ConflictError, NotFoundError, PermissionDenied
from instar_core.registry.protocol import Change, LabelState, Name, Registry, VersionState

__all__ = ["Assessment", "Finding", "Operators", "Outcome", "Target", "evolve", "evolve_once"]


class Target(Frozen):
    """What evolves: an artifact, and the label that says which version is in use."""

    kind: str
    name: str
    label: str = "staging"

    @property
    def ref(self) -> Name:
        """The artifact."""
        return Name(self.kind, self.name)


class Finding(Frozen):
    """What reflection found: a weakness in words, where it is, and the rollouts that show it."""

    text: str
    place: str = ""
    rollouts: tuple[str, ...] = ()


class Assessment(Frozen):
    """What an evaluation says of a version against the one it would replace."""

    better: bool
    evidence: JsonValue = None
    reason: str = ""


class Outcome(Frozen):
    """What one turn of the loop came to.

    ``unchanged``: nothing was found or selected. ``rejected``: the evaluation was against it.
    ``stale``: somebody moved the label meanwhile. ``committed``, ``rolled_back``: as they say.
    """

    state: Literal["unchanged", "rejected", "stale", "committed", "rolled_back"]
    before: int
    proposed: int | None = None
    reason: str = ""


class Operators(Protocol):
    """What a method brings; the loop brings the order, the versions and the labels."""

    async def reflect(self, incumbent: VersionState) -> Sequence[Finding]:
        """Weaknesses of the version in use, from its own work."""
        ...

    async def select(self, incumbent: VersionState, findings: Sequence[Finding]) -> Finding | None:
        """The finding to act on; ``None`` to leave things as they are."""
        ...

    async def improve(self, incumbent: VersionState, finding: Finding) -> JsonValue:
        """A content that does better about the finding."""
        ...

    async def evaluate(self, incumbent: VersionState, proposed: VersionState) -> Assessment:
        """Whether the proposed version is better than the one in use. Called before the commit,
        and once more after it, when the proposed version is in use."""
        ...


async def evolve_once(
    registry: Registry, target: Target, operators: Operators, change: Change
) -> Outcome:
    """One turn of the loop: at most one version is saved, and at most one label is moved.

    Args:
        registry: Where versions and labels are kept.
        target: What evolves. Its label must exist and must not be protected.
        operators: The method.
        change: In whose name versions are saved and the label is moved.

    Returns:
        What came of it; the label names ``before`` again unless the state is ``committed`` or
        ``stale``.

    Raises:
        NotFoundError: If the artifact or its label does not exist.
        PermissionDenied: If the label is protected. Nothing was read or changed by the method.
    """
    await _open_label(registry, target)
    incumbent = await registry.read(target.ref, target.label)
    finding = await operators.select(incumbent, await operators.reflect(incumbent))
    if finding is None:
        return Outcome(state="unchanged", before=incumbent.number, reason="nothing to improve")
    content = await operators.improve(incumbent, finding)
    proposed = await _propose(registry, target, incumbent, finding, content, change)
    verdict = await operators.evaluate(incumbent, proposed)
    numbers = {"before": incumbent.number, "proposed": proposed.number}
    if not verdict.better:
        return Outcome(state="rejected", reason=verdict.reason, **numbers)
    if not await _commit(registry, target, incumbent, proposed, _because(change, verdict)):
        return Outcome(state="stale", reason="the label was moved meanwhile", **numbers)
    in_use = await operators.evaluate(incumbent, await registry.read(target.ref, proposed.number))
    if in_use.better:
        return Outcome(state="committed", reason=verdict.reason, **numbers)
    back = _because(change, in_use)
    if not await _commit(registry, target, proposed, incumbent, back):
        return Outcome(state="stale", reason="the label was moved before a rollback", **numbers)
    return Outcome(state="rolled_back", reason=in_use.reason, **numbers)


async def evolve(
    registry: Registry, target: Target, operators: Operators, change: Change, *, turns: int
) -> list[Outcome]:
    """Turns of the loop (:func:`evolve_once`) until one changes nothing, or there were enough."""
    outcomes: list[Outcome] = []
    for _ in range(turns):
        outcomes.append(await evolve_once(registry, target, operators, change))
        if outcomes[-1].state in ("unchanged", "stale"):
            break
    return outcomes


async def _open_label(registry: Registry, target: Target) -> LabelState:
    labels = await registry.labels(target.ref)
    if target.label not in labels:
        raise NotFoundError(
            f"{target.kind} {target.name!r} has no label {target.label!r}.",
            remedy="Point it at the version to begin with.",
        )
    if labels[target.label].protected:
        raise PermissionDenied(
            f"the label {target.label!r} of {target.kind} {target.name!r} is protected; this loop "
            "moves no such label.",
            remedy="Let it move another one, and promote what stands behind that.",
        )
    return labels[target.label]


async def _propose(  # noqa: PLR0913 - the parts of one version
    registry: Registry,
    target: Target,
    incumbent: VersionState,
    finding: Finding,
    content: JsonValue,
    change: Change,
) -> VersionState:
    because = change.model_copy(
        update={
            "reason": f"improve: {finding.text}",
            "evidence": {"finding": finding.model_dump(mode="json")},
            "parents": (incumbent.number,),
            "rollouts": finding.rollouts,
        }
    )
    return (await registry.update(target.ref, content, because)).version


async def _commit(
    registry: Registry, target: Target, old: VersionState, new: VersionState, change: Change
) -> bool:
    """Moves the label from one version to another, if it still names the first."""
    try:
        await registry.label(
            target.ref, target.label, new.number, expected=old.number, change=change
        )
    except ConflictError:
        return False
    return True


def _because(change: Change, verdict: Assessment) -> Change:
    return change.model_copy(update={"reason": verdict.reason, "evidence": verdict.evidence})
