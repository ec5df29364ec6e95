"""Lineage: every ancestor and descendant is found once, nearest first, whatever the shape."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content
from instar.store.audit import SYSTEM
from instar.store.lineage import Direction, Edge, walk_lineage
from instar.store.overlays import is_ancestor
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import new_id

pytestmark = pytest.mark.postgres


async def _grow(
    session: Any, project: str, rng: random.Random, versions: int
) -> tuple[list[str], set[Edge]]:
    """Versions with up to three earlier ones as parents, some of them on a base."""
    ref = ArtifactRef(project, "prompt", "tangle")
    ids: list[str] = []
    edges: set[Edge] = set()
    for number in range(versions):
        parents = rng.sample(ids, min(len(ids), rng.randrange(4)))
        base = rng.choice(ids) if ids and rng.random() < 0.3 else None
        draft = Draft(*encode_content(f"v{number}"), SYSTEM, parents=parents, base=base)
        row = await create_version(session, ref, draft)
        ids.append(row.id)
        edges |= {Edge(row.id, parent, "parent") for parent in parents}
        edges |= {Edge(row.id, base, "base")} if base else set()
    return ids, edges


def _reached(start: str, edges: set[Edge], direction: Direction) -> dict[str, int]:
    """Id → distance, by a plain walk."""
    depths = {start: 0}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        for edge in edges:
            near, far = edge.child, edge.parent
            if direction == "descendants":
                near, far = far, near
            if near == here and far not in depths:
                depths[far] = depths[here] + 1
                waiting.append(far)
    return depths


def test_walks_agree_with_a_plain_one_on_tangled_histories(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        rng = random.Random(11)
        async with db.transaction(project) as session:
            ids, edges = await _grow(session, project, rng, 40)
            for start in rng.sample(ids, 8):
                up = _reached(start, edges, "ancestors")
                down = _reached(start, edges, "descendants")
                for direction, expected in (
                    ("ancestors", up),
                    ("descendants", down),
                    ("both", {**up, **down}),
                ):
                    walk = await walk_lineage(session, start, direction)  # type: ignore[arg-type]
                    found = [node.id for node in walk.nodes]
                    assert found[0] == start
                    assert sorted(found) == sorted(expected)
                    if direction != "both":
                        depths = [expected[one] for one in found]
                        assert depths == sorted(depths)
                    inside = {
                        edge for edge in edges if edge.child in expected and edge.parent in expected
                    }
                    assert set(walk.edges) == inside
                    assert len(walk.edges) == len(inside) and not walk.truncated
                for other in rng.sample(ids, 5):
                    parents = {edge for edge in edges if edge.kind == "parent"}
                    came = other != start and other in _reached(start, parents, "ancestors")
                    assert await is_ancestor(session, other, start) == came

    database.run(work)


def test_lines_that_part_and_meet_a_thousand_times_stay_linear(database: MigratedDatabase) -> None:
    # Each version has the two before it as parents: paths grow like Fibonacci's numbers.
    project = database.project_id
    database.query(
        "insert into artifact (id, project_id, kind, name, last_version)"
        " values (gen_random_uuid(), %s, 'prompt', 'braid', 1000)",
        project,
    )
    database.query(
        "insert into blob (project_id, digest, size, content) values (%s, 'braid', 2, '{}')",
        project,
    )
    database.query(
        "insert into version (id, project_id, artifact_id, number, blob_digest, media_type,"
        " author_kind) select gen_random_uuid(), a.project_id, a.id, n, 'braid', 'text/plain',"
        " 'system' from artifact a, generate_series(1, 1000) n"
    )
    database.query(
        "insert into version_parent select v.id, p.id, v.project_id from version v join version p"
        " on p.number in (v.number - 1, v.number - 2)"
    )
    ((newest,),) = database.query("select id from version where number = 1000")

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            walk = await walk_lineage(session, str(newest), "ancestors", most=5_000)
            assert [node.number for node in walk.nodes[:1]] == [1000]
            assert {node.number for node in walk.nodes[1:3]} == {999, 998}
            assert len(walk.nodes) == 1000 and len(walk.edges) == 1997
            few = await walk_lineage(session, str(newest), "ancestors", most=10)
            # Ten of the nearest: five steps down there are eleven.
            assert {node.number for node in few.nodes} < set(range(990, 1001))
            assert len(few.nodes) == 10
            assert few.truncated

    database.run(work)


def test_s107_a_walk_stays_in_its_project(database: MigratedDatabase) -> None:
    project, other = database.project_id, new_id()
    database.query("insert into project (id, name) values (%s, 'other')", other)

    async def work(db: Database) -> None:
        async with db.transaction(project) as session:
            ids, _ = await _grow(session, project, random.Random(3), 5)
        async with db.transaction(other) as session:
            assert (await walk_lineage(session, ids[-1])).nodes == []

    database.run(work)
