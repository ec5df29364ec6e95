"""A driver process is killed with SIGKILL in the middle of a night; another one ends the night."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from instar.evolution import service
from instar.evolution.schemas import EvolutionSpec
from instar.settings import Settings
from instar.store.agents import save_agent
from instar.store.artifacts import ArtifactRef
from instar.store.audit import SYSTEM
from instar.store.labels import LabelMove, move_label
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar_core.evolution import AcceptanceConfig
from instar_evolvers.worlds import open_world

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

_DRIVER = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from instar.evolution.context import JobContext
    from instar.evolution.driver import execute
    from instar.settings import Settings, WorkerSettings
    from instar.store.evolution import read_evolution_run
    from instar.store.session import Database
    from instar.store.system import claim_job

    async def main(url, project, run_id, tally):
        db = Database(url)
        async with db.transaction(project) as session:
            job_id = str((await read_evolution_run(session, run_id)).job_id)
        async with db.system() as session:
            claim = await claim_job(session, job_id, worker="chaos", lease_s=60.0)
        settings = Settings(worker=WorkerSettings(call_tally=Path(tally)))
        print("claimed", flush=True)
        await execute(JobContext(db, project, run_id, job_id, claim.fencing_token, settings))
        await db.close()

    asyncio.run(main(*sys.argv[1:]))
    """
)
_SPEC = EvolutionSpec(
    agent="desk",
    task_set="requests",
    evolver="bootstrap",
    evolver_config={"search_rollouts": 120},
    acceptance=AcceptanceConfig(max_pairs=60),
    validation_tasks=24,
    promotion="auto",
)


async def _begin(db: Database, project: str) -> str:
    world = open_world("world:planted:seed=3,steps=3,latency_ms=5")
    tasks = world.tasks()
    async with db.transaction(project) as session:
        version = await save_agent(session, project, "desk", world.seed_candidate(), author=SYSTEM)
        move = LabelMove("production", version.version, None)
        await move_label(session, ArtifactRef(project, "agent", "desk"), move, SYSTEM)
        everything = (*tasks.train, *tasks.validation, *tasks.sealed)
        await create_task_set(session, project, "requests", everything, author=SYSTEM)
    return (await service.start_run(db, project, _SPEC, by="anna", settings=Settings())).id


def _driver(database: Any, run_id: str, tally: Path) -> subprocess.Popen[bytes]:
    words = [database.app_url, database.project_id, run_id, str(tally)]
    return subprocess.Popen([sys.executable, "-c", _DRIVER, *words], stdout=subprocess.PIPE)


def _performed(tally: Path) -> list[str]:
    if not tally.exists():
        return []
    return [json.loads(line)["call"] for line in tally.read_text().splitlines()]


def test_a_killed_driver_costs_at_most_what_was_in_flight(database: Any, tmp_path: Path) -> None:
    tally = tmp_path / "calls.jsonl"
    run_id: str = database.run(lambda db: _begin(db, database.project_id))
    for place in (60, 250):
        driver = _driver(database, run_id, tally)
        while len(_performed(tally)) < place and driver.poll() is None:
            os.sched_yield()
        assert driver.poll() is None, "the night was over before the kill"
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
        database.query("update job set lease_until = now() - interval '1 second'")
    last = _driver(database, run_id, tally)
    last.communicate(timeout=300)
    assert last.returncode == 0

    async def status(db: Database) -> Any:
        return await service.read_run(db, database.project_id, run_id)

    ended = database.run(status)
    assert (ended.state, ended.verdict) == ("succeeded", "accepted"), ended
    assert ended.attempts == 3 and ended.promotion_id is not None
    twice = sum(count - 1 for count in Counter(_performed(tally)).values())
    assert twice <= ended.in_flight_lost <= 2 * 24
    budgets = database.query("select reserved_rollouts, reserved_tokens from budget")
    assert budgets == [(0, 0)]
    statuses = dict(database.query("select status, count(*) from effect group by status"))
    assert "started" not in statuses
    _check_events(database, run_id)


def _check_events(database: Any, run_id: str) -> None:
    async def read(db: Database) -> Any:
        return await service.list_events(db, database.project_id, run_id)

    events = database.run(read)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    kinds = Counter(event.kind for event in events)
    assert kinds["resumed"] == 2 and kinds["ended"] == 1
