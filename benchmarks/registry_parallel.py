"""Many writers at once: parallel saves and label moves from real processes, and what must hold.

Saves of one artifact queue on its row: none is lost and the numbers have no gap. Label moves are
compare-and-swap: in every round all processes try to move the label from where it is to a version
of their own, and one wins. Afterwards the audit chain still verifies.

``python -m benchmarks.registry_parallel --json`` runs 200 saves and 200 moves from 8 processes on
an embedded server of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content
from instar.store.audit import Author, first_broken_link
from instar.store.labels import LabelMove, list_label_events, list_labels, move_label
from instar.store.session import Database
from instar.store.testing import MigratedDatabase, create_database, start_cluster
from instar_core.errors import ConflictError

__all__ = ["main", "measure", "run_parallel"]

SAVES, MOVES, PROCESSES = 200, 200, 8
_LABEL = "staging"
_PATIENCE_S = 120.0
_barrier: Barrier | None = None


class Share(NamedTuple):
    """What one process does: its number, and how many saves and rounds of moves."""

    url: str
    project: str
    process: int
    processes: int
    saves: int
    rounds: int


class Done(NamedTuple):
    """What one process saw: the numbers it was given, and the rounds in which it won."""

    numbers: list[int]
    won: list[int]


def run_parallel(
    database: MigratedDatabase,
    *,
    saves: int = SAVES,
    moves: int = MOVES,
    processes: int = PROCESSES,
) -> dict[str, Any]:
    """Runs the saves and moves, and says what held.

    Args:
        database: A fresh database.
        saves: How many saves, a multiple of ``processes``.
        moves: How many attempts to move the label, a multiple of ``processes``.
        processes: How many processes share them.
    """
    context = multiprocessing.get_context("spawn")
    rounds = moves // processes
    shares = [
        Share(
            database.app_url,
            database.project_id,
            process,
            processes,
            saves // processes,
            rounds,
        )
        for process in range(processes)
    ]
    with ProcessPoolExecutor(
        processes,
        mp_context=context,
        initializer=_join,
        initargs=(context.Barrier(processes),),
    ) as pool:
        done = list(pool.map(_work, shares))
    return database.run(lambda db: _judge(db, database, done, rounds))


async def _judge(
    db: Database, database: MigratedDatabase, done: list[Done], rounds: int
) -> dict[str, Any]:
    given = sorted(number for one in done for number in one.numbers)
    ref = _ref(database.project_id)
    stored = [row[0] for row in database.query("select number from version order by number")]
    async with db.transaction(ref.project_id) as session:
        events = await list_label_events(session, ref, _LABEL)
        label = (await list_labels(session, ref))[0]
        broken = await first_broken_link(session, ref.project_id)
    # One win in each round, each from where the win before had put the label.
    line = [None, *(event.to_number for event in events)]
    chained = [event.from_number for event in events] == line[:-1]
    won = sorted(which for one in done for which in one.won)
    return {
        "processes": len(done),
        "saves": len(given),
        "versions": len(stored),
        "consecutive": given == stored == list(range(1, len(given) + 1)),
        "moves": rounds * len(done),
        "winners": len(won),
        "winners_ok": won == list(range(rounds)) and chained and label.number == line[-1],
        "audit_ok": broken is None,
    }


def _ref(project: str) -> ArtifactRef:
    return ArtifactRef(project, "prompt", "greeting")


def _join(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _work(share: Share) -> Done:
    return asyncio.run(_act(share))


async def _act(share: Share) -> Done:
    assert _barrier is not None, "the pool's initializer sets it"
    ref = _ref(share.project)
    by = Author("person", f"process {share.process}")
    db = Database(share.url)
    try:
        _barrier.wait(_PATIENCE_S)
        numbers = await asyncio.gather(
            *(_save(db, ref, by, f"{by.name}, text {index}") for index in range(share.saves))
        )
        won: list[int] = []
        for which in range(share.rounds):
            # Nobody reads where the label is before everybody has tried the round before.
            _barrier.wait(_PATIENCE_S)
            async with db.transaction(ref.project_id) as session:
                found = {row.name: row.number for row in await list_labels(session, ref)}
            _barrier.wait(_PATIENCE_S)
            target = 1 + which * share.processes + share.process
            if await _move(db, ref, by, (found.get(_LABEL), target)):
                won.append(which)
        return Done(list(numbers), won)
    finally:
        await db.close()


async def _save(db: Database, ref: ArtifactRef, by: Author, words: str) -> int:
    async with db.transaction(ref.project_id) as session:
        return (await create_version(session, ref, Draft(*encode_content(words), by))).number


async def _move(db: Database, ref: ArtifactRef, by: Author, swap: tuple[int | None, int]) -> bool:
    expected, target = swap
    try:
        async with db.transaction(ref.project_id) as session:
            move = LabelMove(_LABEL, target, expected, "a round of many")
            await move_label(session, ref, move, by)
    except ConflictError:
        return False
    return True


def measure(saves: int = SAVES, moves: int = MOVES, processes: int = PROCESSES) -> dict[str, Any]:
    """The run on a server of its own, with the durability of an installation."""
    directory = Path(tempfile.mkdtemp(prefix="instar-par-"))
    try:
        directory.chmod(0o755)
        cluster = start_cluster(directory, durable=True)
        try:
            house = create_database(cluster)
            return run_parallel(house, saves=saves, moves=moves, processes=processes)
        finally:
            cluster.server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main(argv: list[str] | None = None) -> int:
    """Prints what held; the exit code is 1 if something did not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    found = measure()
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name}: {value}" for name, value in found.items()))
    held = found["consecutive"] and found["winners_ok"] and found["audit_ok"]
    return 0 if held and found["saves"] == found["versions"] else 1


if __name__ == "__main__":
    sys.exit(main())
