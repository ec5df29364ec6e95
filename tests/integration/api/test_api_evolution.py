"""A night over REST: quote, start, follow, approve, roll back; on a world with a known answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from instar.api import visible
from instar.jobs.runner import run_claimed
from instar.settings import Settings
from instar.store.audit import SYSTEM
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar_evolvers.worlds import open_world

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
WORLD = "world:planted:seed=7,train=160,validation=64,sealed=300"


class Night:
    """An agent in a world, its tasks, and the means to run what was started."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.admin: httpx.Client = api.client("admin")
        self.world = open_world(WORLD)
        seed = self.world.seed_candidate().model_dump(mode="json")
        body = {key: seed[key] for key in ("components", "harness")}
        made = self.admin.post("/v1/agents", json={"name": "router", "label": "production", **body})
        assert made.status_code == 201, made.text
        api.database.run(self._save_tasks)

    async def _save_tasks(self, db: Database) -> None:
        tasks = [task for split in self.world.tasks() for task in split]
        async with db.transaction(self.api.project_id) as session:
            await create_task_set(session, self.api.project_id, "cases", tasks, author=SYSTEM)

    @property
    def spec(self) -> dict[str, Any]:
        """The body that asks for a run."""
        return {
            "agent": "router",
            "task_set": "cases",
            "evolver": "tf_grpo",
            "evolver_config": {"search_rollouts": 1600},
            "seed": 3,
        }

    def start(self, key: str) -> dict[str, Any]:
        """Starts a run."""
        answer = self.admin.post(
            "/v1/evolution/runs", json=self.spec, headers={"Idempotency-Key": key}
        )
        assert answer.status_code == 201, answer.text
        run: dict[str, Any] = answer.json()
        return run

    def work(self, run_id: str) -> None:
        """Does the run's job, as a worker would."""
        job = self.api.database.query("select job_id from evolution_run where id = %s", run_id)
        settings = Settings(app_database_url=self.api.database.app_url)
        asyncio.run(run_claimed(str(job[0][0]), settings))

    def read(self, path: str) -> Any:
        """The JSON answer to a GET."""
        answer = self.admin.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def production(self) -> int:
        """The version that the production label names."""
        number: int = self.read("/v1/agents/router")["labels"]["production"]
        return number


@pytest.fixture
def night(api: Any) -> Night:
    """A night about to begin."""
    return Night(api)


def test_a_night_from_quote_to_roll_back(night: Night) -> None:
    quote = night.admin.post("/v1/evolution/quote", json=night.spec)
    assert quote.status_code == 200, quote.text
    assert quote.json()["sealed_pairs"] == 200
    assert 0.0 < quote.json()["smallest_detectable_effect"] < 0.5
    assert quote.json()["alpha_t"] == pytest.approx(1 / 77, rel=0.01)

    run = night.start("night-1")
    assert run["state"] == "queued"
    assert night.start("night-1")["id"] == run["id"]
    assert len(night.read("/v1/evolution/runs")["data"]) == 1
    night.work(run["id"])

    path = f"/v1/evolution/runs/{run['id']}"
    done = night.read(path)
    assert (done["state"], done["verdict"]) == ("succeeded", "accepted"), done
    assert done["best_mean"] > done["baseline_mean"]
    events = night.read(f"{path}/events?limit=200")
    assert [event["seq"] for event in events[:5]] == [1, 2, 3, 4, 5]
    later = night.read(f"{path}/events?after=3&limit=1")
    assert [event["seq"] for event in later] == [4]
    candidates = night.read(f"{path}/candidates")
    assert any(part["components"]["lessons"]["content"]["entries"] for part in candidates)

    (proposal,) = night.read("/v1/proposals?state=waiting")["data"]
    assert proposal["outcome"]["verdict"] == "accepted"
    assert "Better than the current version" in proposal["outcome"]["words"]
    assert night.production() == 1
    _estimates_are_for_approvers(night, path, proposal)
    decide = f"/v1/proposals/{proposal['id']}/approve"
    assert night.api.client("operator").post(decide, json={}).status_code == 403
    approved = night.admin.post(decide, json={"note": "looks right"})
    assert approved.status_code == 200, approved.text
    assert (approved.json()["from_version"], approved.json()["state"]) == (1, "watching")
    assert night.production() == approved.json()["to_version"]

    (promotion,) = night.read("/v1/promotions")["data"]
    undo = f"/v1/promotions/{promotion['id']}/rollback"
    back = night.admin.post(undo, json={"reason": "only a drill"})
    assert back.status_code == 200, back.text
    assert (back.json()["state"], back.json()["cause"]) == ("rolled_back", "only a drill")
    assert night.production() == 1
    assert night.read(f"/v1/promotions/{promotion['id']}")["state"] == "rolled_back"


def _estimates_are_for_approvers(night: Night, path: str, proposal: dict[str, Any]) -> None:
    """Whoever may not approve reads the verdict, and no number of the sealed test, anywhere."""
    operator = night.api.client("operator")
    outcome = proposal["outcome"]
    shown = [
        operator.get(one).text
        for one in (
            path,
            "/v1/evolution/runs",
            f"{path}/events?limit=200",
            f"{path}/events/stream",
            "/v1/proposals",
            f"/v1/proposals/{proposal['id']}",
        )
    ]
    assert '"accepted"' in shown[0] and '"outcome":null' in shown[-1]
    known = night.admin.get("/v1/proposals").text
    for estimate in (outcome["words"], f'"evidence":{json.dumps(outcome["evidence"])}'):
        assert estimate in known
        assert not any(estimate in text for text in shown), estimate


def test_a_proposal_is_stale_once_the_label_has_moved(night: Night) -> None:
    run = night.start("night-2")
    night.work(run["id"])
    (proposal,) = night.read("/v1/proposals")["data"]
    seed = night.read("/v1/agents/router/versions/1")
    body = {"name": "router", "components": seed["components"], "harness": seed["harness"]}
    night.admin.post("/v1/agents", json={**body, "label": "production"}).raise_for_status()
    moved = night.production()
    answer = night.admin.post(f"/v1/proposals/{proposal['id']}/approve")
    assert answer.status_code == 409, answer.text
    assert answer.json()["type"] == "urn:instar:problem:stale-proposal"
    assert night.production() == moved
    assert night.read(f"/v1/proposals/{proposal['id']}")["state"] == "stale"
    assert night.read("/v1/promotions")["data"] == []


def test_s93_the_stream_of_a_finished_run_replays_and_ends(night: Night) -> None:
    run = night.start("night-3")
    cancelled = night.admin.post(f"/v1/evolution/runs/{run['id']}/cancel")
    assert cancelled.status_code == 200, cancelled.text
    assert cancelled.json()["state"] == "cancelled"
    path = f"/v1/evolution/runs/{run['id']}/events/stream"
    with night.admin.stream("GET", path) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        lines = list(answer.iter_lines())
    assert lines.count("event: end") == 1
    end = json.loads(lines[lines.index("event: end") + 1].removeprefix("data: "))
    assert end["state"] == "cancelled"


def test_a33_a_stream_ends_with_the_right_to_it(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible, "LOOK_S", 0.0)
    run = night.start("night-5")
    made = night.admin.post("/v1/api-keys", json={"name": "screen", "role": "viewer"}).json()
    path = f"/v1/evolution/runs/{run['id']}/events/stream"
    reader = night.api.bare()
    reader.headers["Authorization"] = f"Bearer {made['key']}"
    with reader.stream("GET", path) as answer:
        assert answer.status_code == 200
        night.admin.delete(f"/v1/api-keys/{made['id']}").raise_for_status()
        # The run waits for a worker that never comes: only the lost right can end this.
        assert "event: end" not in list(answer.iter_lines())
    assert reader.get(path).status_code == 401


def test_a_forced_restore_undoes_no_move_that_its_caller_could_not_make(night: Night) -> None:
    run = night.start("night-6")
    night.admin.post(f"/v1/evolution/runs/{run['id']}/cancel").raise_for_status()
    seed = night.read("/v1/agents/router/versions/1")
    body = {"name": "router", "components": seed["components"], "harness": seed["harness"]}
    for _ in range(2):
        night.admin.post("/v1/agents", json={**body, "label": "production"}).raise_for_status()
    # As if the first of these two moves had been the run's, and the second the admin's own.
    night.api.database.query(
        "update label_event set run_id = %s where to_number = 2 returning id", run["id"]
    )
    path = f"/v1/evolution/runs/{run['id']}/restore"
    approver = night.api.client("approver")
    seen = approver.post(path, json={"force": True, "dry_run": True})
    assert [one["to"] for one in seen.json()["labels"]] == [1]
    refused = approver.post(path, json={"force": True})
    assert refused.status_code == 403, refused.text
    assert "moves for the role 'admin'" in refused.json()["detail"]
    unforced = approver.post(path, json={})
    assert [one["state"] for one in unforced.json()["labels"]] == ["moved_since"]
    assert night.production() == 3
    night.admin.post(path, json={"force": True}).raise_for_status()
    assert night.production() == 1


def test_what_cannot_be_run_is_refused_before_anything_is_spent(night: Night) -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({"agent": "nobody"}, 404),
        ({"task_set": "nothing"}, 404),
        ({"evolver": "magic"}, 400),
        ({"target_effect": 0.001}, 400),
        ({"limit": {"rollouts": 10}}, 400),
        ({"surprise": 1}, 422),
    ]
    for change, status in cases:
        answer = night.admin.post("/v1/evolution/runs", json={**night.spec, **change})
        assert answer.status_code == status, (change, answer.text)
        assert answer.json()["detail"]
    assert night.read("/v1/evolution/runs")["data"] == []
    other = night.api.client("other")
    assert other.post("/v1/evolution/quote", json=night.spec).status_code == 404
    started = night.start("night-4")
    again = night.admin.post(
        "/v1/evolution/runs",
        json={**night.spec, "seed": 4},
        headers={"Idempotency-Key": "night-4"},
    )
    assert again.status_code == 422
    assert other.get(f"/v1/evolution/runs/{started['id']}").status_code == 404
