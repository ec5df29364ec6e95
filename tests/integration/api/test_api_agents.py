"""Agents, runs, artifacts and labels through a live API on real Postgres."""

from __future__ import annotations

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.postgres
NOTES = Path(__file__).parents[1] / "servers" / "notes_server.py"


def test_an_agent_is_saved_labelled_run_and_read(api: Any, agent_body: Any) -> None:
    client = api.client("admin")
    made = client.post("/v1/agents", json=agent_body(label="production"))
    assert made.status_code == 201, made.text
    assert made.json()["version"] == 1
    run = client.post("/v1/agents/desk/runs", json={"input": "who are you?"})
    assert run.status_code == 200, run.text
    body = run.json()
    assert body["answer"] == "I am version one."
    assert (body["state"], body["version"], body["stop"]) == ("succeeded", 1, "answered")
    assert body["usage"]["model_calls"] == 1
    again = client.get(f"/v1/runs/{body['id']}").json()
    assert again["steps"][0]["message"]["content"] == "I am version one."
    assert again["input"][0]["content"] == "who are you?"
    listed = client.get("/v1/agents/desk/runs").json()
    assert [entry["id"] for entry in listed["data"]] == [body["id"]]
    read = client.get("/v1/agents/desk/versions/production").json()
    assert read["components"]["instructions"]["content"] == "You are version one."


def test_s1_s7c_a_moved_label_counts_from_the_next_run_on(api: Any, agent_body: Any) -> None:
    client = api.client("admin")
    client.post("/v1/agents", json=agent_body(label="production"))
    client.post("/v1/agents", json=agent_body(version="two"))
    url = "/v1/artifacts/agent/desk/labels/production"
    for target, words in ((1, "one"), (2, "two"), (1, "one"), (2, "two")):
        client.put(url, json={"version": target}, headers={"If-Match": "*"}).raise_for_status()
        run = client.post("/v1/agents/desk/runs", json={"input": "hello"}).json()
        assert (run["answer"], run["version"]) == (f"I am version {words}.", target)


def test_s1_if_match_moves_a_label_only_from_where_it_was_seen(api: Any, agent_body: Any) -> None:
    client = api.client("admin")
    client.post("/v1/agents", json=agent_body(label="staging"))
    client.post("/v1/agents", json=agent_body(version="two"))
    url = "/v1/artifacts/agent/desk/labels/staging"
    seen = client.get(url).headers["ETag"]
    moved = client.put(url, json={"version": 2}, headers={"If-Match": seen})
    assert moved.status_code == 200
    assert moved.headers["ETag"] != seen
    late = client.put(url, json={"version": 1}, headers={"If-Match": seen})
    assert late.status_code == 412
    assert late.json()["type"] == "urn:instar:problem:precondition-failed"
    assert client.get(url).json()["version"] == 2


def test_tools_that_no_model_would_be_shown_are_refused(api: Any, agent_body: Any) -> None:
    body = agent_body()
    body["harness"]["tools"] = [{"name": "notes"}]
    answer = api.client("admin").post("/v1/agents", json=body)
    assert answer.status_code == 422
    assert "tool_protocol to 'native'" in answer.json()["detail"]


def test_half_a_character_is_refused_wherever_it_stands(api: Any) -> None:
    client = api.client("admin")
    turns = rb'"messages": [{"role": "user", "content": "hello"}]}'
    requests = [
        ("POST", "/v1/task-sets", rb'{"name": "t", "jsonl": "\ud800"}'),
        ("POST", "/v1/chat/completions", rb'{"model": "agent/\ud800", ' + turns),
        ("POST", "/v1/chat/completions", rb'{"model": "agent/\u0000", ' + turns),
        ("PUT", "/v1/mcp-servers/s", rb'{"name": "s", "command": "x", "args": ["\u0000"]}'),
        ("PUT", "/v1/mcp-servers/s", rb'{"name": "s", "command": "x", "args": ["\ud800"]}'),
    ]
    for method, path, raw in requests:
        answer = client.request(
            method, path, content=raw, headers={"Content-Type": "application/json"}
        )
        # No agent can be called so: it is not found, before anything else is wrong with the call.
        assert answer.status_code in (400, 404, 422), (raw, answer.text)


def test_s3_a_label_of_digits_is_refused(api: Any, agent_body: Any) -> None:
    client = api.client("admin")
    client.post("/v1/agents", json=agent_body())
    answer = client.put("/v1/artifacts/agent/desk/labels/3", json={"version": 1})
    assert answer.status_code == 400
    assert "v3" in answer.json()["detail"]


def test_s4_a33_names_and_ids_of_one_project_mean_nothing_in_another(
    api: Any, agent_body: Any
) -> None:
    ours, theirs = api.client("admin"), api.client("other")
    ours.post("/v1/agents", json=agent_body(label="production"))
    run = ours.post("/v1/agents/desk/runs", json={"input": "hi"}).json()
    for path in (
        "/v1/agents/desk",
        "/v1/agents/desk/versions",
        "/v1/agents/desk/versions/1",
        f"/v1/runs/{run['id']}",
        "/v1/artifacts/agent/desk",
        "/v1/artifacts/agent/desk/versions/1",
        "/v1/artifacts/agent/desk/labels/production",
        "/v1/artifacts/prompt/desk/instructions/versions/1",
    ):
        assert ours.get(path).status_code == 200, path
        answer = theirs.get(path)
        assert answer.status_code == 404, path
    assert theirs.get("/v1/agents").json()["data"] == []
    assert theirs.get("/v1/models").json()["data"] == []
    theirs.post("/v1/agents", json=agent_body(version="theirs", label="production"))
    for client, words in ((ours, "one"), (theirs, "theirs"), (ours, "one")):
        answer = client.post("/v1/agents/desk/runs", json={"input": "hi"}).json()["answer"]
        assert answer == f"I am version {words}."


def test_s7_s7b_every_change_of_what_is_resolved_changes_its_etag(
    api: Any, agent_body: Any
) -> None:
    client = api.client("admin")
    client.post("/v1/agents", json=agent_body())
    path = "/v1/artifacts/agent/desk/labels/blue"
    etags = []
    for target in (1, 1):
        client.put(path, json={"version": target}, headers={"If-Match": "*"})
        etags.append(client.get(path).headers["ETag"])
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert client.get("/v1/artifacts/agent/desk/versions/blue").status_code == 404
    client.put(path, json={"version": 1}, headers={"If-Match": "*"})
    etags.append(client.get(path).headers["ETag"])
    assert len(set(etags)) == 3


def test_s9_parallel_saves_give_consecutive_versions(api: Any) -> None:
    clients = [api.client("operator") for _ in range(8)]

    def save(number: int) -> int:
        answer = clients[number].post(
            "/v1/artifacts/prompt/greeting/versions", json={"content": f"hello {number}"}
        )
        assert answer.status_code == 201, answer.text
        found: int = answer.json()["number"]
        return found

    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(save, range(8)))
    assert sorted(numbers) == list(range(1, 9))


def test_a_component_with_a_slash_in_its_name_is_read_and_compared(
    api: Any, agent_body: Any
) -> None:
    client = api.client("admin")
    client.post("/v1/agents", json=agent_body())
    client.post("/v1/agents", json=agent_body(version="two"))
    path = "/v1/artifacts/prompt/desk/instructions"
    assert client.get(path).json()["last_version"] == 2
    content = client.get(f"{path}/versions/latest").json()["content"]
    assert content == "You are version two."
    diff = client.get(f"{path}/versions/1/diff/2").json()
    assert [(part["op"], part["text"]) for part in diff["text"] if part["op"] != "keep"] == [
        ("remove", "one"),
        ("add", "two"),
    ]
    agent = client.get("/v1/artifacts/agent/desk/versions/1/diff/2").json()
    assert [change["path"] for change in agent["json_changes"]] == [
        "/components/instructions/content"
    ]


def test_lists_are_paged_by_key(api: Any) -> None:
    client = api.client("operator")
    for number in range(5):
        client.post(f"/v1/artifacts/prompt/p{number}/versions", json={"content": "x"})
    names: list[str] = []
    after: str | None = None
    while True:
        parameters: dict[str, Any] = {"limit": 2, "kind": "prompt"}
        if after:
            parameters["after"] = after
        page = client.get("/v1/artifacts", params=parameters).json()
        names += [entry["name"] for entry in page["data"]]
        after = page["next"]
        if after is None:
            break
    assert names == ["p4", "p3", "p2", "p1", "p0"]
    broken = client.get("/v1/artifacts", params={"after": "nonsense"})
    assert broken.status_code == 400


def test_a_failed_model_is_a_502_and_the_run_is_kept(api: Any, agent_body: Any) -> None:
    client = api.client("admin")
    client.post("/v1/agents", json=agent_body(label="production"))
    answer = client.post("/v1/agents/desk/runs", json={"input": "fail please"})
    assert answer.status_code == 502
    assert answer.json()["type"] == "urn:instar:problem:model"
    runs = client.get("/v1/agents/desk/runs").json()["data"]
    assert [(run["state"], "out of order" in run["error"]) for run in runs] == [("failed", True)]


def test_protected_labels_take_an_admin(api: Any, agent_body: Any) -> None:
    admin, member = api.client("admin"), api.client("operator")
    admin.post("/v1/agents", json=agent_body(label="production"))
    member.post("/v1/agents", json=agent_body(version="two"))
    url = "/v1/artifacts/agent/desk/labels/production"
    refused = member.put(url, json={"version": 2}, headers={"If-Match": "*"})
    assert refused.status_code == 403
    assert admin.get(url).json()["version"] == 1


def test_a_label_goes_back_to_where_it_was(api: Any, agent_body: Any) -> None:
    client = api.client("admin")
    client.post("/v1/agents", json=agent_body(label="production"))
    path = "/v1/artifacts/agent/desk"
    first = client.post(f"{path}/rollback", json={"label": "production"})
    assert first.status_code == 409
    client.post("/v1/agents", json=agent_body(version="two", label="production"))
    back = client.post(f"{path}/rollback", json={"label": "production"})
    assert back.status_code == 200, back.text
    assert back.json()["version"] == 1
    assert client.get(f"{path}/labels").json()[0]["version"] == 1


def test_s101b_s109_servers_take_an_admin_and_hide_their_environment(api: Any) -> None:
    admin, member = api.client("admin"), api.client("operator")
    config = {
        "name": "desk",
        "command": "{python}",
        "args": ["server.py"],
        "env": {"DESK_TOKEN": "canary-secret"},
    }
    assert member.put("/v1/mcp-servers/desk", json=config).status_code == 403
    made = admin.put("/v1/mcp-servers/desk", json=config)
    assert made.status_code == 200, made.text
    for path in ("/v1/mcp-servers", "/v1/mcp-servers/desk"):
        answer = member.get(path)
        assert answer.status_code == 200
        assert "DESK_TOKEN" in answer.text and "canary" not in answer.text
    assert admin.put("/v1/mcp-servers/other", json=config).status_code == 400
    assert api.client("other").get("/v1/mcp-servers/desk").status_code == 404
    assert admin.delete("/v1/mcp-servers/desk").status_code == 204
    assert member.get("/v1/mcp-servers/desk").status_code == 404


def test_a_run_calls_the_tools_of_a_registered_mcp_server(
    api: Any, agent_body: Any, scripts: Any, tmp_path: Path
) -> None:
    admin = api.client("admin")
    server = {
        "name": "notes",
        "command": "{python}",
        "args": [str(NOTES)],
        "env": {"NOTES_DB": str(tmp_path / "notes.db")},
    }
    admin.put("/v1/mcp-servers/notes", json=server).raise_for_status()
    call = {"name": "write_note", "arguments": {"id": "a", "text": "kept"}}
    rules = [
        {"match": "remember", "tool_calls": [call]},
        {"match": "note a written", "reply": "Done."},
    ]
    (scripts / "caller.json").write_text(json.dumps({"rules": rules}))
    body = agent_body(name="keeper", label="production")
    body["harness"] = {
        "model": "scripted/caller",
        "tool_protocol": "native",
        "tools": [{"name": "notes"}],
    }
    admin.post("/v1/agents", json=body).raise_for_status()
    run = admin.post("/v1/agents/keeper/runs", json={"input": "remember"})
    assert run.status_code == 200, run.text
    assert [step["kind"] for step in run.json()["steps"]] == ["model", "tool", "model"]
    assert run.json()["answer"] == "Done."
    with closing(sqlite3.connect(tmp_path / "notes.db")) as connection:
        assert connection.execute("select text from notes").fetchall() == [("kept",)]
    # Taken out of use, it is not called any more, though its process may still be there.
    admin.delete("/v1/mcp-servers/notes")
    refused = admin.post("/v1/agents/keeper/runs", json={"input": "remember"})
    assert refused.status_code == 400
    assert "'notes'" in refused.json()["detail"]


def test_the_project_has_a_rule_that_an_admin_sets(api: Any) -> None:
    admin = api.client("admin")
    assert admin.get("/v1/project").json()["promotion"] == "ask"
    assert api.client("operator").put("/v1/project", json={"promotion": "auto"}).status_code == 403
    auto = admin.put("/v1/project", json={"promotion": "auto"}, headers={"If-Match": "*"})
    assert auto.json()["promotion"] == "auto"
    assert admin.get("/v1/project").json()["promotion"] == "auto"
    assert api.client("other").get("/v1/project").json() == {
        **api.client("other").get("/v1/project").json(),
        "name": "other",
        "promotion": "ask",
    }


def test_task_sets_are_imported_whole_and_never_show_what_is_sealed(api: Any) -> None:
    client = api.client("admin")
    lines = []
    for split in ("train", "validation", "sealed"):
        for number in range(3):
            lines.append(
                f'{{"id": "{split}-{number}", "input": "secret {split} {number}", '
                f'"split": "{split}", "group": "{split}-{number}", '
                f'"verifier": {{"name": "exact", "config": {{"answer": "{number}"}}}}}}'
            )
    made = client.post("/v1/task-sets", json={"name": "sums", "jsonl": "\n".join(lines)})
    assert made.status_code == 201, made.text
    assert made.json()["counts"] == {"train": 3, "validation": 3, "sealed": 3}
    assert len(client.get("/v1/task-sets/sums/tasks").json()) == 3
    assert client.get("/v1/task-sets/sums/tasks?split=sealed").status_code == 422
    for path in (
        "/v1/task-sets",
        "/v1/task-sets/sums",
        "/v1/task-sets/sums/tasks",
        "/v1/artifacts/task_set/sums",
        "/v1/artifacts/task_set/sums/versions",
        "/v1/artifacts/task_set/sums/versions/1",
        "/v1/artifacts/task_set/sums/versions/1/diff/1",
    ):
        text = client.get(path).text
        assert "secret sealed" not in text and "sealed-0" not in text, path
    lines[4] = '{"id": "broken"'
    broken = client.post("/v1/task-sets", json={"name": "sums", "jsonl": "\n".join(lines)})
    assert broken.status_code == 422
    assert broken.json()["type"] == "urn:instar:problem:task-file"
    assert "line 5" in broken.json()["detail"]
    assert client.get("/v1/task-sets/sums").json()["version"] == 1
