"""Audit of a night: starts it through REST, watches it, and reads what it left in the database."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.evolution import service
from instar.evolution.facts import OVER
from instar.store.agents import save_agent
from instar.store.artifacts import ArtifactRef
from instar.store.audit import SYSTEM
from instar.store.labels import LabelMove, move_label
from instar.store.projects import ensure_project
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar_core.base import content_hash
from instar_core.errors import StoreError
from instar_core.usage import Remaining
from instar_evolvers.worlds import open_world

__all__ = ["Night", "audit", "fingerprint", "register_agent"]

_STEPS = 3
_LATENCY_MS = 25


class Night:
    """The database and the API of one stack.

    Args:
        url: The database, as the service's own role.
        api: Address of the API.
        key: An API key.
    """

    def __init__(self, url: str, api: str, key: str) -> None:
        self.db = Database(url)
        self.project = ""
        self.most_in_flight = 0
        self._client = httpx.AsyncClient(
            base_url=api, headers={"Authorization": f"Bearer {key}"}, timeout=30.0, trust_env=False
        )

    async def close(self) -> None:
        """Closes connections."""
        await self._client.aclose()
        await self.db.close()

    async def start(self, seed: int) -> str:
        """Starts a night through REST; its run's id."""
        spec = {
            "agent": "router",
            "task_set": "requests",
            "evolver": "tf_grpo",
            "evolver_config": {"search_rollouts": 700},
            "acceptance": {"max_pairs": 160},
            "validation_tasks": 32,
            "promotion": "auto",
            "limit": {"rollouts": 4000, "tokens": 4_000_000},
            "seed": seed,
            "seconds_per_rollout": 0.05,
        }
        answer = await self._client.post("/v1/evolution/runs", json=spec)
        if answer.status_code != 201:
            raise RuntimeError(f"the run did not start: {answer.status_code} {answer.text}")
        return str(answer.json()["id"])

    async def watch(self, run_id: str) -> None:
        """Asks the API for the run's state until it is over; the API may be away meanwhile."""
        while True:
            await asyncio.sleep(0.25)
            try:
                answer = await self._client.get(f"/v1/evolution/runs/{run_id}")
                await self._sample(run_id)
            except (httpx.HTTPError, StoreError):
                continue
            if answer.status_code == 200 and answer.json()["state"] in OVER:
                return

    async def _sample(self, run_id: str) -> None:
        now = await self.scalar(
            "select count(*) from instar.effect where run_id = cast(:run as uuid)"
            " and status = 'started' and kind in ('model_call', 'tool_call')",
            run=run_id,
        )
        self.most_in_flight = max(self.most_in_flight, int(now))

    async def rows(self, statement: str, **values: Any) -> list[Any]:
        """Rows of a statement in the project."""
        async with self.db.transaction(self.project) as session:
            return list((await session.execute(text(statement), values)).all())

    async def scalar(self, statement: str, **values: Any) -> Any:
        """The one value of a statement."""
        return (await self.rows(statement, **values))[0][0]

    async def effects_after(self, run_id: str, moment: float) -> int:
        """Effects that were finished after a moment."""
        found = await self.scalar(
            "select count(*) from instar.effect where run_id = cast(:run as uuid)"
            " and status = 'finished' and finished_at > to_timestamp(:moment)",
            run=run_id,
            moment=moment,
        )
        return int(found)


async def register_agent(night: Night, seed: int) -> None:
    """An agent of a planted world, its tasks, and budgets above the run."""
    world = open_world(f"world:planted:seed={seed},steps={_STEPS},latency_ms={_LATENCY_MS}")
    tasks = world.tasks()
    night.project = await ensure_project(night.db)
    async with night.db.transaction(night.project) as session:
        await _save(session, night.project, world, tasks)
    for kind, subject in (("project", night.project), ("agent", "router")):
        limit = Remaining(rollouts=4500, tokens=5_000_000)
        await service.set_budget(night.db, night.project, kind, subject, limit, by="bench")


async def _save(session: AsyncSession, project: str, world: Any, tasks: Any) -> None:
    version = await save_agent(session, project, "router", world.seed_candidate(), author=SYSTEM)
    await move_label(
        session,
        ArtifactRef(project, "agent", "router"),
        LabelMove("production", version.version, None),
        SYSTEM,
    )
    everything = (*tasks.train, *tasks.validation, *tasks.sealed)
    await create_task_set(session, project, "requests", everything, author=SYSTEM)


async def audit(night: Night, run_id: str, tally: Path) -> dict[str, Any]:
    """What the run's record says, held against the world's own account of performed calls."""
    status = await service.read_run(night.db, night.project, run_id)
    lost: Counter[str] = Counter()
    most_lost = 0
    for (data,) in await night.rows(
        "select data from instar.run_event where run_id = cast(:run as uuid)"
        " and kind = 'resumed' order by seq",
        run=run_id,
    ):
        most_lost = max(most_lost, len(data["in_flight_lost"]))
        lost.update(item["content"] for item in data["in_flight_lost"])
    recorded: Counter[str] = Counter()
    for content, count in await night.rows(
        "select content, count(*) from instar.effect where run_id = cast(:run as uuid)"
        " and status = 'finished' and kind in ('model_call', 'tool_call') group by content",
        run=run_id,
    ):
        recorded[content] = int(count)
    lines = (await asyncio.to_thread(tally.read_text)).splitlines()
    performed = Counter(json.loads(line)["call"] for line in lines)
    # A call may be performed once for each record of it, and once more for each time that a crash
    # caught it in flight. Anything beyond was paid for although its result had been recorded.
    repaid = sum(
        max(0, count - recorded[content] - lost[content]) for content, count in performed.items()
    )
    overshoot = await night.scalar(
        "select coalesce(sum(greatest(0, spent_rollouts + reserved_rollouts - limit_rollouts)"
        " + greatest(0, spent_tokens + reserved_tokens - limit_tokens)), 0) from instar.budget"
    )
    effects = await night.scalar(
        "select count(*) from instar.effect where run_id = cast(:run as uuid)", run=run_id
    )
    return {
        "state": status.state,
        "verdict": status.verdict,
        "rollouts": status.rollouts_done,
        "recorded_repaid": repaid,
        "in_flight_lost": status.in_flight_lost,
        "most_lost_at_once": most_lost,
        "overshoot": float(overshoot),
        "effects": int(effects),
        "most_in_flight": night.most_in_flight,
    }


async def fingerprint(night: Night, run_id: str) -> dict[str, Any]:
    """Hashes over what the night chose: candidates, scores, events, verdict, versions; no ids."""
    run = {"run": run_id}
    parts: dict[str, Any] = {
        "candidates": await night.rows(
            "select digest, cast(parents as text), cast(note as text) from instar.candidate"
            " where run_id = cast(:run as uuid) order by digest",
            **run,
        ),
        "scores": await night.rows(
            "select candidate_digest, split, rollouts, mean, cast(scores as text)"
            " from instar.evaluation where run_id = cast(:run as uuid)"
            " order by candidate_digest, split",
            **run,
        ),
        "events": await night.rows(
            "select source_seq, kind, cast(message as text) from instar.run_event"
            " where run_id = cast(:run as uuid) and source_seq is not null order by source_seq",
            **run,
        ),
        "outcome": await night.rows(
            "select r.state, r.reason, r.best_digest, p.state, p.verdict,"
            " cast(p.outcome as text), p.candidate_digest from instar.evolution_run r"
            " left join instar.proposal p on p.run_id = r.id where r.id = cast(:run as uuid)",
            **run,
        ),
        "versions": await night.rows(
            "select a.kind, a.name, v.number, v.blob_digest is not null, v.subject_digest"
            " from instar.version v join instar.artifact a on a.id = v.artifact_id"
            " order by a.kind, a.name, v.number"
        ),
        "labels": await night.rows(
            "select a.name, l.name, l.number from instar.label l"
            " join instar.artifact a on a.id = l.artifact_id order by a.name, l.name"
        ),
    }
    hashes = {
        name: content_hash([list(map(str, row)) for row in rows]) for name, rows in parts.items()
    }
    return {**hashes, "hash": content_hash(hashes)}
