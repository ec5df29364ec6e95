"""The registry's speed, as ratios to raw SQL that does the same work on the same server.

Both sides of a ratio run in the same kind of transaction (the project set, row-level policies on,
the application's role), one after the other in turns, on an embedded server with its default
durability; a ratio is one of medians, so what else the machine does hits both sides alike.

``python -m benchmarks.registry --json`` prints the ratios; ``make bench`` calls ``measure()``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from benchmarks import registry_lineage
from instar.store.artifacts import (
    ArtifactFilter,
    ArtifactRef,
    Draft,
    create_version,
    encode_content,
    list_artifacts,
    list_versions,
    resolve,
)
from instar.store.audit import Author
from instar.store.labels import LabelMove, move_label
from instar.store.session import Database
from instar.store.testing import MigratedDatabase, PostgresCluster, create_database, start_cluster
from instar_core.base import new_id

__all__ = ["LIMITS", "MEASURES", "Bench", "main", "measure", "ratio_of"]

LIMITS = {"resolve": 1.5, "save": 3.0, "list": 1.3}
"""The largest ratio of each measure that is good enough (lower is better)."""
SMALL, LARGE = 10_000, 1_000_000
_TURNS = 300
_WARM = 30
_PERSON = Author("person", "benchmark")
_SELECT = text(
    "select id, artifact_id, number, blob_digest, media_type, subject_digest, author_kind, author, "
    "reason, evidence, created_at from instar.version "
    "where artifact_id = cast(:artifact as uuid) and number = :number"
)
_INSERT = text(
    "insert into instar.version (id, project_id, artifact_id, number, blob_digest, media_type, "
    "author_kind, author) values (cast(:id as uuid), cast(:project as uuid), "
    "cast(:artifact as uuid), :number, :digest, :media_type, 'person', 'benchmark')"
)
Work = Callable[[AsyncSession], Awaitable[object]]


@dataclass(frozen=True)
class Bench:
    """A server for all measures; each makes the databases that it needs."""

    cluster: PostgresCluster
    turns: int = _TURNS
    small: int = SMALL
    large: int = LARGE


async def ratio_of(
    sides: Sequence[tuple[Database, str, Callable[[], Work]]], turns: int
) -> tuple[float, ...]:
    """Median seconds of each side's whole transaction, measured in turns.

    Args:
        sides: Of each side the database, the project and what makes the next piece of work.
        turns: How often each runs.
    """
    seconds: list[list[float]] = [[] for _ in sides]
    for turn in range(_WARM + turns):
        # Who goes first changes from turn to turn, so that neither has the warmer caches.
        for place in range(len(sides)):
            which = (turn + place) % len(sides)
            db, project, make = sides[which]
            work = make()
            started = time.perf_counter()
            async with db.transaction(project) as session:
                await work(session)
            if turn >= _WARM:
                seconds[which].append(time.perf_counter() - started)
    return tuple(median(each) for each in seconds)


async def _save(db: Database, ref: ArtifactRef, content: str) -> Any:
    async with db.transaction(ref.project_id) as session:
        return await create_version(session, ref, Draft(*encode_content(content), _PERSON))


def measure_resolve(bench: Bench) -> dict[str, Any]:
    """Resolving a label, over a single indexed SELECT of a version."""
    house = create_database(bench.cluster)
    ref = ArtifactRef(house.project_id, "prompt", "greeting")

    async def go(db: Database) -> tuple[float, ...]:
        saved = await _save(db, ref, "Hello.")
        for number in range(19):
            await _save(db, ref, f"Hello {number}.")
        async with db.transaction(ref.project_id) as session:
            await move_label(session, ref, LabelMove("staging", 10, None), _PERSON)

        async def raw(session: AsyncSession) -> object:
            values = {"artifact": saved.artifact_id, "number": 10}
            return (await session.execute(_SELECT, values)).mappings().one()

        async def ours(session: AsyncSession) -> object:
            return await resolve(session, ref, "staging")

        sides = [(db, ref.project_id, lambda: raw), (db, ref.project_id, lambda: ours)]
        return await ratio_of(sides, bench.turns)

    return _told(house.run(go), LIMITS["resolve"])


def measure_save(bench: Bench) -> dict[str, Any]:
    """Saving a version (blob, number, search words, audit and all), over a bare INSERT of one."""
    house = create_database(bench.cluster)
    ref = ArtifactRef(house.project_id, "prompt", "greeting")
    beside = ref._replace(name="bare")

    async def go(db: Database) -> tuple[float, ...]:
        count = itertools.count(2)
        first = await _save(db, beside, "Hello.")
        await _save(db, ref, "Hello.")

        def insert() -> Work:
            values = {
                "id": new_id(),
                "project": ref.project_id,
                "artifact": first.artifact_id,
                "number": next(count),
                "digest": first.blob_digest,
                "media_type": first.media_type,
            }

            async def work(session: AsyncSession) -> object:
                return await session.execute(_INSERT, values)

            return work

        def save() -> Work:
            words = f"Be kind and brief; version {next(count)}. " * 20
            draft = Draft(*encode_content(words), _PERSON, reason="kinder")
            return lambda session: create_version(session, ref, draft)

        sides = [(db, ref.project_id, insert), (db, ref.project_id, save)]
        return await ratio_of(sides, bench.turns)

    return _told(house.run(go), LIMITS["save"])


def measure_list(bench: Bench) -> dict[str, Any]:
    """A page of a list in a project of many versions, over the same page in one of few."""
    houses = [create_database(bench.cluster), create_database(bench.cluster)]
    for house, versions in zip(houses, (bench.small, bench.large), strict=True):
        _fill(house, versions)

    async def go() -> dict[str, tuple[float, ...]]:
        dbs = [house.open() for house in houses]
        try:
            return {
                name: await ratio_of(
                    [
                        (db, house.project_id, await _page(db, house.project_id, name))
                        for db, house in zip(dbs, houses, strict=True)
                    ],
                    bench.turns // 3,
                )
                for name in ("versions", "versions_deep", "artifacts", "artifacts_deep")
            }
        finally:
            for db in dbs:
                await db.close()

    found = {name: _told(pair, LIMITS["list"]) for name, pair in asyncio.run(go()).items()}
    worst = max(found.values(), key=lambda each: float(each["ratio"]))
    return {**worst, "small": bench.small, "large": bench.large, "pages": found}


async def _page(db: Database, project: str, name: str) -> Callable[[], Work]:
    """What reads one page of the named list."""
    ref = ArtifactRef(project, "prompt", "prompt-1")
    only = ArtifactFilter(kind="prompt")
    if name.startswith("versions"):
        async with db.transaction(project) as session:
            newest = (await list_versions(session, ref, limit=1))[0].number
        before = newest // 2 if name.endswith("deep") else None
        return lambda: lambda session: list_versions(session, ref, limit=50, before=before)
    cursor: str | None = None
    if name.endswith("deep"):
        async with db.transaction(project) as session:
            cursor = (await list_artifacts(session, project, where=only, limit=49)).next_cursor
    return lambda: lambda session: list_artifacts(session, project, where=only, cursor=cursor)


def _fill(house: MigratedDatabase, versions: int) -> None:
    """Many artifacts with 50 versions each, and one with the rest, about half of them all."""
    artifacts = max(versions // 100, 10)
    house.query(
        "insert into artifact (id, project_id, kind, name, skeleton, search, last_version, "
        "created_at) select gen_random_uuid(), %s, 'prompt', 'prompt-' || i, 'prompt-' || i, "
        "to_tsvector('simple', 'prompt ' || i), 50, clock_timestamp() - i * interval '1 second' "
        "from generate_series(1, %s) i",
        house.project_id,
        artifacts,
    )
    house.query(
        "insert into blob (project_id, digest, size, content) values (%s, repeat('0', 64), 1, 'x')",
        house.project_id,
    )
    # References are right by construction; checking a million of them takes a minute.
    house.query(
        "set session_replication_role = replica; insert into version (id, project_id, artifact_id, "
        "number, blob_digest, media_type, author_kind, author, created_at) "
        "select gen_random_uuid(), a.project_id, a.id, n, repeat('0', 64), "
        "'text/plain; charset=utf-8', 'person', 'benchmark', a.created_at "
        "from artifact a cross join lateral generate_series(1, case when a.name = 'prompt-1' then "
        f"{int(versions) - 50 * (artifacts - 1)} else 50 end) n"
    )
    house.query(
        "update artifact a set last_version = (select max(number) from version v "
        "where v.artifact_id = a.id) where name = 'prompt-1'"
    )
    house.query("vacuum analyze artifact")
    house.query("vacuum analyze version")


def _told(pair: Sequence[float], limit: float) -> dict[str, Any]:
    raw, ours = pair
    return {
        "ratio": round(ours / raw, 3),
        "limit": limit,
        "baseline_ms": round(1000 * raw, 3),
        "ms": round(1000 * ours, 3),
        "ok": ours / raw <= limit,
    }


MEASURES: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "resolve": measure_resolve,
    "save": measure_save,
    "list": measure_list,
    "lineage": lambda bench: registry_lineage.measure_on(bench.cluster),
}
"""What is measured, by name; each gets the server and returns ratio, limit and ``ok``."""


def measure(names: Sequence[str] = (), **sizes: int) -> dict[str, Any]:
    """The ratios of every measure (or the named ones) to raw SQL; lower is better.

    Args:
        names: Measures of :data:`MEASURES`; all when left out.
        sizes: Fields of :class:`Bench`, for a smaller run.
    """
    # A short path: a socket's may have 107 characters at most.
    directory = Path(tempfile.mkdtemp(prefix="instar-bench-"))
    try:
        directory.chmod(0o755)
        cluster = start_cluster(directory, durable=True)
        try:
            bench = Bench(cluster, **sizes)
            return {name: MEASURES[name](bench) for name in names or MEASURES}
        finally:
            cluster.server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    """Prints the ratios; the exit code is 1 if one is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASURES)}; all when left out")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    unknown = set(options.names) - set(MEASURES)
    if unknown:
        print(f"No measure is named {sorted(unknown)}; there are {sorted(MEASURES)}.")
        return 2
    found = measure(options.names)
    if options.json:
        print(json.dumps(found))
    else:
        for name, result in found.items():
            print(f"{name}: {result['ratio']} times the baseline (limit {result['limit']})")
    return 0 if all(result["ok"] for result in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
