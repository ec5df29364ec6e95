"""Lineage as data: versions with who made them and what they scored, and how they hang together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import ArtifactRef, resolve
from instar.store.lineage import Direction, Node, Walk, derived_from, walk_lineage
from instar.store.outcomes import Measured, Spent, measured_scores, spent_on
from instar_core.base import Frozen
from instar_core.statistics.beta import beta_quantile

__all__ = ["Lineage", "LineageEdge", "LineageNode", "NodeScore", "read_lineage"]

EdgeName = Literal["parent", "merge", "overlay-base", "derived-from-rollout", "component"]
_LEVEL = 0.95
METHOD = (
    "Mean over tasks of each task's mean reward; 95 % equal-tailed interval of a beta posterior "
    "(Jeffreys prior) with the tasks' means as fractional successes, which is wide enough for "
    "rewards in [0, 1]. Largest measurement of any run, validation before train; never sealed."
)
_MOST_ROLLOUTS = 2_000


class NodeScore(Frozen):
    """What a candidate scored: mean in [0, 1] (higher is better) over ``tasks`` with bounds."""

    mean: float
    lower: float
    upper: float
    tasks: int
    rollouts: int
    split: str
    run_id: str | None = None


class LineageNode(Frozen):
    """One version. ``depth`` is how many edges it is away from the start."""

    id: str
    kind: str
    name: str
    number: int
    depth: int
    origin: str
    author_kind: str
    author: str
    reason: str
    run_id: str | None
    candidate: str
    created_at: datetime
    archived: bool
    score: NodeScore | None = None
    rollouts: int = 0
    cost_usd: float | None = None


class LineageEdge(Frozen):
    """``child`` came from ``parent``: the id of a version, or of a rollout it was derived from."""

    child: str
    parent: str
    kind: EdgeName


class Lineage(Frozen):
    """A graph of versions around one; ``truncated`` says that depth or limit cut something."""

    start: str
    direction: Direction
    truncated: bool
    method: str = METHOD
    nodes: tuple[LineageNode, ...] = ()
    edges: tuple[LineageEdge, ...] = ()


async def read_lineage(
    session: AsyncSession,
    ref: ArtifactRef,
    at: str | int = "latest",
    *,
    direction: Direction = "both",
    depth: int | None = None,
    parts: bool = False,
    most: int = 500,
) -> Lineage:
    """The lineage of a version, with scores and costs of the agent versions in it.

    Args:
        session: A project transaction.
        ref: The artifact.
        at: Its version: a number, a label, or ``latest``.
        direction: ``ancestors``, ``descendants`` or ``both``.
        depth: The most edges away from the start; any depth when left out.
        parts: Follow pinned versions as well (an agent's components and their own lines).
        most: The most nodes, the nearest first.

    Raises:
        NotFoundError: If there is no such artifact, version or label.
    """
    start = (await resolve(session, ref, at)).version.id
    walk = await walk_lineage(session, start, direction, parts=parts, most=most)
    depths = _depths(start, walk)
    kept = [one for one in walk.nodes if depth is None or depths.get(one.id, 0) <= depth]
    digests = sorted({one.subject_digest for one in kept if one.subject_digest})
    scores = await measured_scores(session, ref.project_id, digests)
    spent = await spent_on(session, ref.project_id, digests)
    rollouts = await derived_from(session, [one.id for one in kept], most=_MOST_ROLLOUTS)
    nodes = tuple(_shown(one, depths.get(one.id, 0), scores, spent) for one in kept)
    return Lineage(
        start=start,
        direction=direction,
        truncated=walk.truncated
        or len(kept) < len(walk.nodes)
        or sum(map(len, rollouts.values())) >= _MOST_ROLLOUTS,
        nodes=nodes,
        edges=_edges(walk, kept, rollouts),
    )


def _depths(start: str, walk: Walk) -> dict[str, int]:
    """Edges between the start and each node, whichever way they point."""
    beside: dict[str, list[str]] = {}
    for edge in walk.edges:
        beside.setdefault(edge.child, []).append(edge.parent)
        beside.setdefault(edge.parent, []).append(edge.child)
    depths = {start: 0}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for other in beside.get(here, ()):
            if other not in depths:
                depths[other] = depths[here] + 1
                waiting.append(other)
    return depths


def _shown(
    node: Node, depth: int, scores: Mapping[str, Measured], spent: Mapping[str, Spent]
) -> LineageNode:
    measured = scores.get(node.subject_digest) if node.subject_digest else None
    took = spent.get(node.subject_digest) if node.subject_digest else None
    return LineageNode(
        id=node.id,
        kind=node.kind,
        name=node.name,
        number=node.number,
        depth=depth,
        origin=node.origin,
        author_kind=node.author_kind,
        author=node.author,
        reason=node.reason,
        run_id=node.run_id,
        candidate=node.subject_digest,
        created_at=node.created_at,
        archived=node.archived,
        score=None if measured is None else _score(measured),
        rollouts=0 if took is None else took.rollouts,
        cost_usd=None if took is None else took.cost_usd,
    )


def _score(measured: Measured) -> NodeScore:
    means = list(measured.by_task.values())
    total = math.fsum(means) if means else measured.mean * measured.rollouts
    tasks = len(means) or measured.rollouts
    lower, upper = _interval(round(min(max(total, 0.0), float(tasks)), 9), tasks)
    return NodeScore(
        mean=measured.mean,
        lower=lower,
        upper=upper,
        tasks=tasks,
        rollouts=measured.rollouts,
        split=measured.split,
        run_id=measured.run_id,
    )


@lru_cache(maxsize=4096)
def _interval(total: float, tasks: int) -> tuple[float, float]:
    tail = (1.0 - _LEVEL) / 2.0
    a, b = total + 0.5, tasks - total + 0.5
    # At the ends the interval reaches them: no number of perfect tasks shows that all are.
    lower = 0.0 if total <= 0.0 else beta_quantile(tail, a, b)
    upper = 1.0 if total >= tasks else beta_quantile(1.0 - tail, a, b)
    return lower, upper


def _edges(
    walk: Walk, kept: Sequence[Node], rollouts: Mapping[str, Sequence[str]]
) -> tuple[LineageEdge, ...]:
    known = {one.id: one for one in kept}
    found: list[LineageEdge] = []
    for edge in walk.edges:
        if edge.child not in known or edge.parent not in known:
            continue
        name: EdgeName = "component"
        if edge.kind == "base":
            name = "overlay-base"
        elif edge.kind == "parent":
            merged = known[edge.child].origin in ("merge", "rebase")
            name = "merge" if merged else "parent"
        found.append(LineageEdge(child=edge.child, parent=edge.parent, kind=name))
    for child, sources in rollouts.items():
        found += [
            LineageEdge(child=child, parent=one, kind="derived-from-rollout") for one in sources
        ]
    found.sort(key=lambda edge: (edge.child, edge.kind, edge.parent))
    return tuple(found)
