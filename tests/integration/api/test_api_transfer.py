"""Export and import over REST: who may, what streams, what a dry run and a bad body answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from instar_skills.archives import pack_tar, read_archive

pytestmark = pytest.mark.slow

ARCHIVE = {"Content-Type": "application/gzip"}
TASKS = "\n".join(
    json.dumps(
        {
            "id": f"t{n}",
            "input": f"{n}?",
            "split": split,
            "group": f"g{n}",
            "verifier": {"name": "exact", "config": {"answer": "yes"}},
        }
    )
    for n, split in enumerate(["train", "train", "validation", "sealed"])
)


@pytest.fixture
def client(api: Any, agent_body: Any) -> Any:
    """An admin's client of a project with an agent, a task set and a prompt."""
    client = api.client()
    for version in ("one", "two"):
        assert client.post("/v1/agents", json=agent_body(version=version)).status_code == 201
    moved = client.put("/v1/artifacts/agent/desk/labels/production", json={"version": 2})
    assert moved.status_code == 200, moved.text
    body = {"name": "even", "jsonl": TASKS}
    assert client.post("/v1/task-sets", json=body).status_code == 201
    return client


def test_a_project_streams_out_and_into_another(api: Any, client: Any) -> None:
    answer = client.post("/v1/export", json={})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/gzip"
    other = api.client("other")
    dry = other.post("/v1/import?dry_run=true", content=answer.content, headers=ARCHIVE)
    assert dry.status_code == 200, dry.text
    assert dry.json()["dry_run"] is True and dry.json()["versions"] > 4
    assert other.get("/v1/artifacts").json()["data"] == []
    done = other.post("/v1/import", content=answer.content, headers=ARCHIVE)
    assert done.status_code == 200, done.text
    again = other.post("/v1/import", content=answer.content, headers=ARCHIVE)
    assert (again.json()["versions"], again.json()["labels"]) == (0, 0)
    back = read_archive(other.post("/v1/export", json={}).content)
    first = read_archive(answer.content)
    one, two = json.loads(first.pop("manifest.json")), json.loads(back.pop("manifest.json"))
    assert first == back
    for manifest in (one, two):
        del manifest["moment"], manifest["project"]
    assert one == two
    said = other.post("/v1/agents/desk/runs", json={"input": "version"})
    assert said.status_code in (200, 201), said.text
    assert "two" in said.text


def test_operators_export_and_only_admins_import(api: Any, client: Any) -> None:
    data = client.post("/v1/export", json={}).content
    assert api.client("viewer").post("/v1/export", json={}).status_code == 403
    assert api.client("operator").post("/v1/export", json={}).status_code == 200
    for role in ("viewer", "operator", "approver"):
        answer = api.client(role).post("/v1/import", content=data, headers=ARCHIVE)
        assert answer.status_code == 403
    assert api.bare().post("/v1/export", json={}).status_code == 401
    answer = api.bare().post("/v1/import", content=data, headers=ARCHIVE)
    assert answer.status_code == 401, answer.text


def test_a_conflict_is_409_and_names_what_is_in_the_way(client: Any, agent_body: Any) -> None:
    data = client.post("/v1/export", json={}).content
    files = read_archive(data)
    assert client.post("/v1/agents", json=agent_body(version="three")).status_code == 201
    # Ahead of the export: nothing to add, nothing in the way.
    assert client.post("/v1/import", content=data, headers=ARCHIVE).json()["versions"] == 0
    changed = json.loads(files["manifest.json"])
    for artifact in changed["artifacts"]:
        for version in artifact["versions"]:
            version["subject_digest"] = "0" * 64 if artifact["kind"] == "agent" else ""
    body = pack_tar({**files, "manifest.json": json.dumps(changed).encode()})
    answer = client.post("/v1/import", content=body, headers=ARCHIVE)
    assert answer.status_code == 409 and "desk" in answer.json()["detail"]
    prefixed = client.post("/v1/import?prefix=x-", content=body, headers=ARCHIVE)
    # Under another name it is no conflict, but it does not read as what its digest says.
    assert prefixed.status_code == 422, prefixed.text
    assert client.get("/v1/agents").json()["data"][0]["name"] == "desk"


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"PK\x03\x04broken", b"\x1f\x8bbroken", b"\x00" * 600]
)
def test_a_body_that_is_no_export_is_422(client: Any, body: bytes) -> None:
    answer = client.post("/v1/import", content=body, headers=ARCHIVE)
    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_export_and_an_import_are_audited(api: Any, client: Any) -> None:
    client.post("/v1/export", json={})
    rows = api.database.query(
        "select count(*) from instar.audit_event where action = 'project.export'"
    )
    assert rows[0][0] == 1
