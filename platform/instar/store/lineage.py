"""Lineage: what a version came from and what came from it, to any depth, in one statement.

The walk keeps edges, each once, so that it stays linear however often lines part and meet again; it
finds what is nearest first. Depths are counted afterwards over the edges that were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncSession

__all__ = ["Direction", "Edge", "EdgeKind", "Node", "Walk", "derived_from", "walk_lineage"]

Direction = Literal["ancestors", "descendants", "both"]
EdgeKind = Literal["parent", "base", "part"]

_EDGES_PER_NODE = 20
_LINKS: dict[str, tuple[EdgeKind, bool]] = {
    "ap": ("parent", True),
    "ab": ("base", True),
    "ac": ("part", True),
    "dp": ("parent", False),
    "db": ("base", False),
    "dc": ("part", False),
}
"""First letters of a link → what it is, and whether it leads from a child to its parent."""
_STEPS = {
    "ancestors": (
        "select p.parent_id, 'p' from instar.version_parent p where p.version_id = w.id",
        "select v.base_id, 'b' from instar.version v where v.id = w.id and v.base_id is not null",
        "select c.part_id, 'c' from instar.version_part c where c.version_id = w.id",
    ),
    "descendants": (
        "select p.version_id, 'p' from instar.version_parent p where p.parent_id = w.id",
        "select v.id, 'b' from instar.version v where v.base_id = w.id",
        "select c.version_id, 'c' from instar.version_part c where c.part_id = w.id",
    ),
}
# One string of edges per node: casting and splitting it is far cheaper than an array of ids.
_NODES = """
select f.links, v.id::text, v.artifact_id::text, v.number, v.origin, v.base_id::text,
  v.run_id::text, v.author_kind, v.author, v.reason, v.subject_digest, v.created_at,
  v.deleted_at is not null
from found f join instar.version v on v.id = f.id
order by f.place
"""
_NAMES = text(
    "select id::text, kind, name from instar.artifact where id = any(cast(:ids as uuid[]))"
)
_PARENTS = text(
    "select version_id::text, parent_id::text from instar.version_parent"
    " where version_id = any(cast(:ids as uuid[])) and parent_id = any(cast(:ids as uuid[]))"
)
_ROLLOUTS = text(
    "select version_id::text, rollout_id::text from instar.version_rollout"
    " where version_id = any(cast(:ids as uuid[])) order by 1, 2 limit :most"
)


class Node(NamedTuple):
    """One version of a lineage."""

    id: str
    kind: str
    name: str
    number: int
    origin: str
    base_id: str | None
    run_id: str | None
    author_kind: str
    author: str
    reason: str
    subject_digest: str
    created_at: datetime
    archived: bool


class Edge(NamedTuple):
    """A version points to one that it came from: a parent, the base it lies on, a part it pins."""

    child: str
    parent: str
    kind: EdgeKind


class Walk(NamedTuple):
    """The versions that were reached, nearest first, and whether more could have been."""

    nodes: list[Node]
    edges: list[Edge]
    truncated: bool


async def walk_lineage(
    session: AsyncSession,
    version_id: str,
    direction: Direction = "both",
    *,
    parts: bool = False,
    most: int = 500,
) -> Walk:
    """The versions around one, along parents and bases, by one recursive statement.

    Args:
        session: A project transaction; versions of other projects are not seen.
        version_id: Where to start; it is the first node.
        direction: ``ancestors``, ``descendants``, or ``both`` (each by itself: what else came from
            an ancestor is neither).
        parts: Follow what a version pins as well, such as an agent's components.
        most: The most nodes that are given, the start and the nearest first.

    Returns:
        The nodes, and the edges between them.
    """
    most_edges = _EDGES_PER_NODE * (most + 1)
    values = {"start": version_id, "most": most + 1, "most_edges": most_edges}
    rows = (await session.execute(_statement(direction, parts), values)).tuples().all()
    kept = rows[:most]
    found = await session.execute(_NAMES, {"ids": _array(sorted({row[2] for row in kept}))})
    names = {own: rest for own, *rest in found.tuples()}
    nodes = [Node._make((own, *names[artifact], *facts)) for _, own, artifact, *facts in kept]
    known = {node.id for node in nodes}
    edges: list[Edge] = []
    met = 0
    for links, own, *_ in kept:
        for link in links.split():
            met += 1
            other = link[2:]
            if other in known:
                kind, upwards = _LINKS[link[:2]]
                edges.append(Edge._make((other, own, kind) if upwards else (own, other, kind)))
    if direction == "both":
        # An ancestor may be a parent of a descendant as well: neither walk has that edge.
        across = await session.execute(_PARENTS, {"ids": _array(sorted(known))})
        edges += [Edge(child, parent, "parent") for child, parent in across.tuples()]
        edges += [
            Edge(one.id, one.base_id, "base")
            for one in nodes
            if one.base_id and one.base_id in known
        ]
        edges = list(dict.fromkeys(edges))
    return Walk(nodes, edges, len(rows) > most or met >= most_edges - 1)


async def derived_from(
    session: AsyncSession, version_ids: Sequence[str], *, most: int = 5_000
) -> dict[str, list[str]]:
    """Version id → ids of the rollouts that it was derived from; at most ``most`` in all."""
    values = {"ids": _array(version_ids), "most": most}
    found: dict[str, list[str]] = {}
    for version, rollout in (await session.execute(_ROLLOUTS, values)).tuples():
        found.setdefault(version, []).append(rollout)
    return found


def _array(ids: Sequence[str]) -> str:
    """Ids as PostgreSQL writes an array: one parameter instead of thousands."""
    return "{" + ",".join(ids) + "}"


def _statement(direction: Direction, parts: bool) -> TextClause:
    """A walk yields edges in order of distance, and the limit ends it there."""
    ways = ["ancestors", "descendants"] if direction == "both" else [direction]
    walks = ", ".join(
        f"{way}(near, id, kind) as (select null::uuid, cast(:start as uuid), '' union "
        f"select w.id, s.* from {way} w cross join lateral "
        f"({' union all '.join(_STEPS[way][: 3 if parts else 2])}) s)"
        for way in ways
    )
    reached = " union all ".join(
        f"select '{way[0]}' as way, near, id, kind, row_number() over () as place from ("
        f"select * from {way} limit :most_edges) {way[0]}"
        for way in ways
    )
    return text(
        f"with recursive {walks}, found as ("
        "select id, min(place) as place, coalesce(string_agg(way || kind || near::text, ' '), '')"
        f" as links from ({reached}) r group by id order by 2, 1 limit :most) {_NODES}"
    )
