"""History over REST: lineage, timelines, merges, conflicts, behaviour and undoing a run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content, resolve
from instar.store.audit import Author
from instar.store.session import Database
from instar_core.base import new_id

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
_TEXT = "Be kind.\nNever guess.\nSign with your name.\n"


def _save(client: Any, name: str, text: str) -> dict[str, Any]:
    """Saves a prompt's next version, or its first."""
    made = client.post(f"/v1/artifacts/prompt/{name}/versions", json={"content": text})
    if made.status_code == 404:
        body = {"kind": "prompt", "name": name, "content": text, "allow_similar": True}
        made = client.post("/v1/artifacts", json=body)
    assert made.status_code == 201, made.text
    found: dict[str, Any] = made.json()
    return found


def _learn(api: Any, name: str, text: str) -> None:
    """What a run adds to a prompt that is open to jobs."""
    ref = ArtifactRef(api.project_id, "prompt", name)
    api.database.query("update artifact set job_access = 'overlay' where name = %s", name)

    async def work(db: Database) -> None:
        async with db.transaction(api.project_id) as session:
            base = (await resolve(session, ref)).version
            draft = Draft(
                *encode_content(text),
                Author("run", new_id()),
                "found",
                parents=[base.id],
                origin="overlay",
                base=base.id,
            )
            await create_version(session, ref, draft)

    api.database.run(work)


def test_s19_a_conflict_is_listed_with_its_places_and_settled_by_a_person(api: Any) -> None:
    client = api.client("operator")
    _save(client, "greeting", _TEXT)
    _learn(api, "greeting", _TEXT.replace("guess.", "guess a price."))
    _save(client, "greeting", _TEXT.replace("guess.", "err."))
    path = "/v1/artifacts/prompt/greeting/conflicts"
    (found,) = client.get(path).json()["data"]
    assert (found["former_base"], found["overlay"], found["base"]) == (1, 2, 3)
    assert found["conflicts"][0]["line"] == 2
    assert client.get("/v1/artifact-conflicts").json()["data"] == [found]
    learned = client.get("/v1/artifacts/prompt/greeting/versions/2")
    assert learned.json()["conflict"] == found["id"]
    listed = client.get("/v1/artifacts/prompt/greeting/versions").json()["data"]
    assert [one["conflict"] for one in listed] == [None, found["id"], None]
    settle = f"{path}/{found['id']}/resolve"
    assert client.post(settle, json={}).status_code == 422
    assert client.post(settle, json={"prefer": "base", "dismiss": True}).status_code == 422
    other = settle.replace("greeting", "farewell")
    _save(client, "farewell", "Bye.\n")
    assert client.post(other, json={"prefer": "base"}).status_code == 404
    assert api.client("viewer").post(settle, json={"prefer": "base"}).status_code == 403
    assert api.client("other").post(settle, json={"prefer": "base"}).status_code == 404
    done = client.post(settle, json={"prefer": "learned", "reason": "tested"})
    assert done.status_code == 200, done.text
    assert (done.json()["resolution"], done.json()["resolved_version"]) == ("merged", 4)
    version = client.get("/v1/artifacts/prompt/greeting/versions/4").json()
    assert version["content"] == _TEXT.replace("guess.", "guess a price.")
    assert client.get(path).json()["data"] == []
    known = {"If-None-Match": learned.headers["ETag"]}
    again = client.get("/v1/artifacts/prompt/greeting/versions/2", headers=known)
    assert again.status_code == 200 and again.json()["conflict"] is None
    assert client.get(path, params={"settled": True}).json()["data"] == [done.json()]
    assert client.post(settle, json={"dismiss": True}).status_code == 409


def test_s20_what_was_in_force_when_and_who_changed_it_why(api: Any) -> None:
    client = api.client("admin")
    _save(client, "greeting", "One.\n")
    second = client.put(
        "/v1/artifacts/prompt/greeting",
        json={"content": "Two.\n", "reason": "shorter", "evidence": {"score": 0.5}},
        headers={"If-Match": "*"},
    )
    assert second.status_code == 200, second.text
    label = "/v1/artifacts/prompt/greeting/labels/staging"
    for number in (1, 2):
        moved = client.put(
            label, json={"version": number, "cause": f"to {number}"}, headers={"If-Match": "*"}
        )
        assert moved.status_code == 200, moved.text
    whole = client.get(f"{label}/timeline").json()
    newest, oldest = whole["changes"]
    assert (newest["before"], newest["after"], newest["cause"]) == (1, 2, "to 2")
    assert newest["actor"].startswith("key:") and newest["actor_kind"] == "person"
    assert newest["version"]["reason"] == "shorter"
    assert newest["version"]["evidence"] == {"score": 0.5}
    assert whole["in_force"] is None
    # Bisect: what did it name at a moment, and what changed after it?
    first_at = datetime.fromisoformat(oldest["at"])
    asked = {"at": oldest["at"], "since": oldest["at"]}
    found = client.get(f"{label}/timeline", params=asked).json()
    assert found["in_force"]["after"] == 1
    assert [one["after"] for one in found["changes"]] == [2]
    before = {"at": (first_at - timedelta(seconds=1)).isoformat(), "until": oldest["at"]}
    found = client.get(f"{label}/timeline", params=before).json()
    assert found["in_force"] is None
    assert [one["after"] for one in found["changes"]] == [1]
    now = {"at": datetime.now(UTC).isoformat()}
    assert client.get(f"{label}/timeline", params=now).json()["in_force"]["after"] == 2
    assert client.get(f"{label}/timeline", params={"at": "2026-11-30T10:00:00"}).status_code == 422
    assert client.get("/v1/artifacts/prompt/none/labels/x/timeline").status_code == 404


def test_s17_a_merge_shows_both_sources_and_what_it_drops_before_it_is_saved(api: Any) -> None:
    client = api.client("operator")
    _save(client, "refunds", "Ask for the receipt.\nNever promise a date.\n")
    _save(client, "returns", "Ask for the order number.\nSend a label.\n")
    path = "/v1/artifacts/prompt/refunds/merge"
    body = {"ours": "1", "theirs": "1", "other": "returns"}
    shown = client.post(path, json=body).json()
    assert not shown["clean"] and shown["conflicts"]
    content = "Ask for the receipt.\nSend a label.\n"
    shown = client.post(path, json={**body, "content": content}).json()
    assert shown["clean"] and shown["version"] is None
    assert [one["content"] for one in shown["dropped_of_ours"]] == ["Never promise a date.\n"]
    assert [one["content"] for one in shown["dropped_of_theirs"]] == ["Ask for the order number.\n"]
    assert client.get("/v1/artifacts/prompt/refunds").json()["last_version"] == 1
    saved = client.post(path, json={**body, "content": content, "dry_run": False})
    assert saved.json()["version"] == 2
    graph = client.get("/v1/artifacts/prompt/refunds/lineage").json()
    names = {one["id"]: one["name"] for one in graph["nodes"]}
    merged = {names[edge["parent"]] for edge in graph["edges"] if edge["kind"] == "merge"}
    assert merged == {"refunds", "returns"}
    assert api.client("viewer").post(path, json=body).status_code == 403


def test_two_versions_of_one_artifact_are_merged_over_their_ancestor(api: Any) -> None:
    client = api.client("operator")
    _save(client, "greeting", _TEXT)
    path = "/v1/artifacts/prompt/greeting"
    one = _TEXT.replace("kind.", "kind and brief.")
    two = _TEXT + "Say which source you used.\n"
    for text in (one, two):
        made = client.put(path, json={"content": text, "parents": [1]}, headers={"If-Match": "*"})
        assert made.status_code == 200, made.text
    shown = client.post(f"{path}/merge", json={"ours": "2", "theirs": "3"}).json()
    assert shown["base"] == 1 and shown["clean"]
    assert shown["content"] == one + "Say which source you used.\n"
    tasks = client.post("/v1/artifacts/task_set/none/merge", json={"ours": "1", "theirs": "2"})
    assert tasks.status_code == 400 or tasks.status_code == 422


def test_lineage_is_bounded_and_says_so(api: Any) -> None:
    client = api.client("viewer")
    writer = api.client("operator")
    for number in range(6):
        _save(writer, "greeting", f"Version {number}.\n")
    path = "/v1/artifacts/prompt/greeting/lineage"
    whole = client.get(path, params={"version": "6"}).json()
    assert [one["number"] for one in whole["nodes"]] == [6, 5, 4, 3, 2, 1]
    assert [one["depth"] for one in whole["nodes"]] == [0, 1, 2, 3, 4, 5]
    assert not whole["truncated"]
    near = client.get(path, params={"version": "6", "depth": 2}).json()
    assert [one["number"] for one in near["nodes"]] == [6, 5, 4] and near["truncated"]
    few = client.get(path, params={"version": "6", "limit": 2}).json()
    assert [one["number"] for one in few["nodes"]] == [6, 5] and few["truncated"]
    down = client.get(path, params={"version": "3", "direction": "descendants"}).json()
    assert [one["number"] for one in down["nodes"]] == [3, 4, 5, 6]
    up = client.get(path, params={"version": "3", "direction": "ancestors"}).json()
    assert [one["number"] for one in up["nodes"]] == [3, 2, 1]
    assert client.get(path, params={"direction": "sideways"}).status_code == 422
    assert api.client("other").get(path).status_code == 404


def test_behaviour_is_compared_between_agents_only(api: Any, agent_body: Any) -> None:
    client = api.client("operator")
    for version in ("one", "two"):
        assert client.post("/v1/agents", json=agent_body(version=version)).status_code == 201
    found = client.get("/v1/artifacts/agent/desk/versions/1/diff/2/behaviour").json()
    assert (found["shared"], found["tasks"]) == (0, [])
    _save(client, "greeting", "One.\n")
    wrong = client.get("/v1/artifacts/prompt/greeting/versions/1/diff/1/behaviour")
    assert wrong.status_code == 400 or wrong.status_code == 422
    assert "behaviour is compared between versions of agents" in wrong.text


def test_s16_undoing_a_run_takes_an_approver(api: Any) -> None:
    path = f"/v1/evolution/runs/{new_id()}/restore"
    assert api.client("operator").post(path, json={}).status_code == 403
    assert api.client("approver").post(path, json={}).status_code == 404
    both = {"undo": True, "force": True}
    assert api.client("approver").post(path, json=both).status_code == 422
