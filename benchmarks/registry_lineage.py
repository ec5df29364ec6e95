"""Lineage speed: a whole lineage of 10,000 versions, as a ratio to a bare recursive SELECT.

The bare recursive SELECT walks ``version_parent`` and reads the version of each edge, in the same
kind of transaction (project set, row-level policies on): raw SQL that does the same work. Instar's
gives the same versions, each once, the nearest first, with the edges between them. Both fetch
everything; the fastest of several rounds, taken in turns, are compared. ``over_edges`` and
``over_ids`` are the ratios to walks that read no version and give bare edges, or bare ids; they are
told for comparison.

Run: ``python -m benchmarks.registry_lineage --json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

__all__ = ["LIMIT", "measure", "measure_lineage", "measure_on", "plant_lineage"]

VERSIONS = 10_000
ROUNDS = 15
LIMIT = 3.0
_WALK = (
    "with recursive walk(version_id, parent_id) as (select version_id, parent_id"
    " from instar.version_parent where version_id = cast(:start as uuid) union"
    " select p.version_id, p.parent_id from instar.version_parent p join walk w"
    " on p.version_id = w.parent_id)"
)
_BARE = (
    f"{_WALK} select w.parent_id, v.id, v.artifact_id, v.number, v.origin, v.base_id, v.run_id,"
    " v.author_kind, v.author, v.reason, v.subject_digest, v.created_at"
    " from walk w join instar.version v on v.id = w.version_id"
)
_EDGES = f"{_WALK} select version_id, parent_id from walk"
_IDS = (
    "with recursive walk(id) as (select cast(:start as uuid) union select p.parent_id"
    " from instar.version_parent p join walk on p.version_id = walk.id) select id from walk"
)


def plant_lineage(query: Callable[..., Any], project_id: str, versions: int = VERSIONS) -> str:
    """Writes one artifact with a long line of versions, every tenth of them a merge.

    Args:
        query: Runs a statement as the owner.
        project_id: The project.
        versions: How many.

    Returns:
        The id of the newest version.
    """
    query(
        "insert into artifact (id, project_id, kind, name, last_version)"
        " values (gen_random_uuid(), %s, 'prompt', 'long-line', %s)",
        project_id,
        versions,
    )
    query(
        "insert into blob (project_id, digest, size, content) values (%s, 'long-line', 2, '{}')",
        project_id,
    )
    query(
        "insert into version (id, project_id, artifact_id, number, blob_digest, media_type,"
        " author_kind, author, reason, evidence) select gen_random_uuid(), a.project_id, a.id, n,"
        " 'long-line', 'text/plain', 'person', 'anna', 'because ' || n,"
        " json_build_object('n', n) from artifact a, generate_series(1, %s) n"
        " where a.name = 'long-line' and a.project_id = %s",
        versions,
        project_id,
    )
    for step, which in ((1, "true"), (7, "v.number %% 10 = 0")):
        query(
            "insert into version_parent (version_id, parent_id, project_id)"
            " select v.id, p.id, v.project_id from version v join version p"
            f" on p.artifact_id = v.artifact_id and p.number = v.number - {step}"
            f" where v.project_id = %s and v.blob_digest = 'long-line' and {which}",
            project_id,
        )
    query("analyze version")
    query("analyze version_parent")
    newest = query(
        "select id from version where blob_digest = 'long-line' and number = %s", versions
    )
    return str(newest[0][0])


async def measure_lineage(
    db: Any, project_id: str, start: str, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Milliseconds of both statements and their ratio (lower is better; 3 is the limit)."""
    from sqlalchemy import text

    from instar.store.lineage import walk_lineage

    async def walk(session: Any) -> int:
        return len((await walk_lineage(session, start, "ancestors", most=100_000)).nodes)

    def bare(statement: str) -> Callable[[Any], Awaitable[int]]:
        async def read(session: Any) -> int:
            return len((await session.execute(text(statement), {"start": start})).all())

        return read

    sides = {
        "bare": bare(_BARE),
        "edges": bare(_EDGES),
        "ids": bare(_IDS),
        "lineage": walk,
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    counts: dict[str, int] = {}
    for _ in range(rounds):
        for name, work in sides.items():
            counts[name] = await _timed(db, project_id, work, times[name])
    best = {name: min(found) for name, found in times.items()}
    ratio = best["lineage"] / best["bare"]
    return {
        "versions": counts["lineage"],
        "edges": counts["edges"],
        "bare_ms": round(1000 * best["bare"], 1),
        "lineage_ms": round(1000 * best["lineage"], 1),
        "ratio": round(ratio, 2),
        "limit": LIMIT,
        "ok": ratio <= LIMIT,
        "over_edges": round(best["lineage"] / best["edges"], 2),
        "over_ids": round(best["lineage"] / best["ids"], 2),
    }


async def _timed(
    db: Any, project_id: str, work: Callable[[Any], Awaitable[int]], into: list[float]
) -> int:
    started = time.perf_counter()
    async with db.transaction(project_id) as session:
        found = await work(session)
    into.append(time.perf_counter() - started)
    return found


def measure_on(cluster: Any) -> dict[str, Any]:
    """The same in a new database of a server that runs already."""
    from instar.store.testing import create_database

    database = create_database(cluster)
    start = plant_lineage(database.query, database.project_id)
    return database.run(lambda db: measure_lineage(db, database.project_id, start))


def measure() -> dict[str, Any]:
    """Plants a lineage in a database of its own and measures it there."""
    from instar.store.testing import start_cluster

    with tempfile.TemporaryDirectory(prefix="instar-b") as directory:
        Path(directory).chmod(0o711)
        cluster = start_cluster(Path(directory))
        try:
            return measure_on(cluster)
        finally:
            cluster.server.stop(timeout_s=0.0)


if __name__ == "__main__":
    print(json.dumps(measure()))
    sys.exit(0)
