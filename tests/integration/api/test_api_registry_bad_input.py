"""Bad input to the registry over REST: a clear problem with the limit or the nearest names, and
nothing stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.postgres

TABLES = ("artifact", "version", "blob", "label", "label_event", "audit_event")
LOOKALIKE = "gr\u0435eting"  # with a Cyrillic letter


@pytest.fixture
def client(api: Any) -> Any:
    """An operator's client of a project with the prompt 'greeting' in two versions."""
    client = api.client("operator")
    for content in ("Be kind.", "Be kind, and brief."):
        made = client.post("/v1/artifacts/prompt/greeting/versions", json={"content": content})
        assert made.status_code == 201, made.text
    put = client.put("/v1/artifacts/prompt/greeting/labels/staging", json={"version": 1})
    assert put.status_code == 200, put.text
    return client


def rows(api: Any) -> dict[str, int]:
    return {
        table: api.database.query(f"select count(*) from instar.{table}")[0][0] for table in TABLES
    }


def problem(answer: Any, status: int, code: str) -> str:
    """The words of a problem of that status and code."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == f"urn:instar:problem:{code}"
    return str(answer.json()["detail"])


def test_what_is_missing_is_not_found_with_the_nearest_names(api: Any, client: Any) -> None:
    before = rows(api)
    cases = [
        ("GET", "/v1/artifacts/promt/greeting", None, "'prompt'"),
        ("GET", "/v1/artifacts/promt/greeting/versions/1", None, "'prompt'"),
        ("GET", "/v1/artifacts/promt/greeting/labels", None, "'prompt'"),
        ("GET", "/v1/artifacts/promt/greeting/versions", None, "'prompt'"),
        ("POST", "/v1/artifacts/promt/greeting/versions", {"content": "x"}, "'prompt'"),
        ("POST", "/v1/artifacts", {"kind": "promt", "name": "a", "content": "x"}, "'prompt'"),
        ("PUT", "/v1/artifacts/promt/greeting", {"content": "x"}, "'prompt'"),
        ("PATCH", "/v1/artifacts/promt/greeting", {"description": "x"}, "'prompt'"),
        ("GET", "/v1/artifacts?kind=promt", None, "'prompt'"),
        ("GET", "/v1/contract?kind=promt", None, "'prompt'"),
        ("GET", "/v1/artifacts/prompt/greting", None, "'greeting'"),
        ("GET", "/v1/artifacts/prompt/greting/versions/latest", None, "'greeting'"),
        ("GET", "/v1/artifacts/prompt/greting/components", None, "'greeting'"),
        ("PATCH", "/v1/artifacts/prompt/greting", {"description": "x"}, "'greeting'"),
        ("PUT", "/v1/artifacts/prompt/greting/labels/staging", {"version": 1}, "'greeting'"),
        ("POST", "/v1/artifacts/prompt/greting/copy", {"to": "b"}, "'greeting'"),
        ("POST", "/v1/artifacts/prompt/greting/rollback", {"label": "staging"}, "'greeting'"),
        ("GET", "/v1/artifacts/prompt/greeting/versions/3", None, "2"),
        ("GET", "/v1/artifacts/prompt/greeting/versions/1/diff/9", None, "2"),
        ("PUT", "/v1/artifacts/prompt/greeting/labels/live", {"version": 7}, "version 7"),
        ("GET", "/v1/artifacts/prompt/greeting/versions/stagin", None, "'staging'"),
        ("GET", "/v1/artifacts/prompt/greeting/labels/stagin", None, "'staging'"),
        ("GET", "/v1/artifacts/prompt/greeting/labels/stagin/history", None, "'staging'"),
        ("POST", "/v1/artifacts/prompt/greeting/rollback", {"label": "stagin"}, "'staging'"),
        ("GET", "/v1/artifacts/agent/greeting/contract", None, "agent"),
    ]
    for method, path, body, named in cases:
        headers = {"If-Match": "*"} if method in ("PUT", "PATCH") and "promt" not in path else {}
        answer = client.request(method, path, json=body, headers=headers)
        assert named in problem(answer, 404, "not-found"), (method, path, answer.text)
    assert rows(api) == before


def test_content_beyond_its_limits_is_refused_with_the_limit(api: Any, client: Any) -> None:
    before = rows(api)
    deep = "[" * 100_000 + "]" * 100_000
    bodies: list[tuple[bytes, int, str, str]] = [
        (json.dumps({"content": "x" * 1_048_577}).encode(), 422, "validation", "1,048,576"),
        (b'{"content": "a\\u0000b"}', 422, "validation", "NUL"),
        (b'{"content": "a\\ud800b"}', 422, "validation", "surrogate"),
        (b'{"content": "\xff\xfe"}', 422, "validation", "UTF-8"),
        (f'{{"content": {deep}}}'.encode(), 422, "validation", "200"),
        (f'{{"content": {"[" * 100 + "]" * 100}}}'.encode(), 422, "validation", "64"),
        (b'{"content": NaN}', 422, "validation", ""),
        (b'{"content": ["no prompt"]}', 422, "validation", "a prompt is a text"),
        (b'{"content": {"txt": "x"}}', 422, "validation", "'text'"),
        (b'{"content": "x", "reson": ""}', 422, "validation", "reson"),
        (
            json.dumps({"content": "x", "reason": "r" * 20_001}).encode(),
            422,
            "validation",
            "20,000",
        ),
        (b'{"content": "x", "reason": "a\\u0000"}', 422, "validation", "NUL"),
    ]
    headers = {"Content-Type": "application/json", "If-Match": "*"}
    for raw, status, code, words in bodies:
        for method, path in (
            ("POST", "/v1/artifacts/prompt/greeting/versions"),
            ("PUT", "/v1/artifacts/prompt/greeting"),
            ("POST", "/v1/artifacts/prompt/fresh/versions"),
        ):
            sent = headers if "greeting" in path else {"Content-Type": "application/json"}
            answer = client.request(method, path, content=raw, headers=sent)
            assert words in problem(answer, status, code), (raw[:80], answer.text)
    assert rows(api) == before


def test_a23_a_name_used_as_a_path_or_a_look_alike_is_refused(api: Any, client: Any) -> None:
    before = rows(api)
    names = [
        "../../x",
        "..",
        ".git",
        "/etc/passwd",
        "a/../b",
        "a\\b",
        "C:x",
        "con",
        "x" * 300,
        "a b",
        "a\u202eb",
        "\uff0e\uff0e/x",
        LOOKALIKE,
        "GREETING",
        "\uff47reeting",
        "gree\u200bting",
    ]
    for name in names:
        answer = client.post(
            "/v1/artifacts", json={"kind": "prompt", "name": name, "content": "x y z"}
        )
        words = problem(answer, 422, "validation")
        assert "cannot be the name" in words or "at most" in words, (name, words)
        copied = client.post("/v1/artifacts/prompt/greeting/copy", json={"to": name})
        assert copied.status_code == 422, (name, copied.text)
    skill = {"files": {"SKILL.md": "---\nname: a\ndescription: b\n---\n", "../../x": "y"}}
    answer = client.post("/v1/artifacts", json={"kind": "skill", "name": "a", "content": skill})
    assert "leads out of its folder" in problem(answer, 422, "validation")
    assert rows(api) == before


def test_a_change_without_the_state_it_changes_is_refused(api: Any, client: Any) -> None:
    path = "/v1/artifacts/prompt/greeting"
    before = rows(api)
    changes = [
        ("PUT", path, {"content": "new"}),
        ("PATCH", path, {"description": "new"}),
        ("PUT", f"{path}/labels/staging", {"version": 2}),
    ]
    for method, where, body in changes:
        words = problem(client.request(method, where, json=body), 428, "precondition-required")
        assert "If-Match" in words
        for stale in ('"0"', '"abc", "def"', 'W/"1"'):
            answer = client.request(method, where, json=body, headers={"If-Match": stale})
            problem(answer, 412, "precondition-failed")
    admin = api.client("admin")
    put = admin.patch(f"{path}/labels/staging", json={"move_role": "admin"})
    problem(put, 428, "precondition-required")
    for where, one in (("/v1/project", {"promotion": "auto"}),):
        problem(admin.put(where, json=one), 428, "precondition-required")
        stale = admin.put(where, json=one, headers={"If-Match": '"0"'})
        problem(stale, 412, "precondition-failed")
    assert rows(api) == before
    server = {"name": "desk", "command": "true"}
    assert admin.put("/v1/mcp-servers/desk", json=server).status_code == 200
    problem(admin.put("/v1/mcp-servers/desk", json=server), 428, "precondition-required")
    seen = admin.get("/v1/mcp-servers/desk").headers["etag"]
    again = admin.put("/v1/mcp-servers/desk", json=server, headers={"If-Match": seen})
    assert again.status_code == 200, again.text


def test_of_two_changes_from_one_state_one_wins(api: Any, client: Any) -> None:
    path = "/v1/artifacts/prompt/greeting"
    for read in (path, f"{path}/versions/latest"):
        seen = client.get(read).headers["etag"]
        first = client.put(path, json={"content": f"one {read}"}, headers={"If-Match": seen})
        assert first.status_code == 200, first.text
        late = client.put(path, json={"content": "two"}, headers={"If-Match": seen})
        problem(late, 412, "precondition-failed")
    assert client.get(path).json()["last_version"] == 4
    seen = client.get(f"{path}/labels/staging").headers["etag"]
    moved = client.put(f"{path}/labels/staging", json={"version": 2}, headers={"If-Match": seen})
    assert moved.status_code == 200 and moved.headers["etag"] != seen
    late = client.put(f"{path}/labels/staging", json={"version": 3}, headers={"If-Match": seen})
    problem(late, 412, "precondition-failed")
    assert client.get(f"{path}/labels/staging").json()["version"] == 2


def test_s109a_a_write_that_is_reported_failed_is_not_stored(api: Any, client: Any) -> None:
    before = rows(api)
    huge = {"content": "Be kind. " * 150_000}
    answer = client.put("/v1/artifacts/prompt/greeting", json=huge, headers={"If-Match": "*"})
    problem(answer, 422, "validation")
    # The last part of an agent is broken: no part of it is stored.
    components = {
        "a": {"kind": "instructions", "content": "fine"},
        "b": {"kind": "lessons", "content": {"entries": [{"id": "L1", "txt": "?"}]}},
    }
    agent = {"components": components, "harness": {"model": "scripted/tell"}}
    words = problem(client.post("/v1/agents", json={"name": "desk", **agent}), 422, "validation")
    assert "'b'" in words and "'text'" in words
    made = client.post("/v1/artifacts", json={"kind": "agent", "name": "desk", "content": agent})
    problem(made, 422, "validation")
    assert rows(api) == before
    assert client.get("/v1/artifacts/prompt/greeting/versions/latest").json()["number"] == 2


def test_labels_that_cannot_be_are_refused(api: Any, client: Any) -> None:
    before = rows(api)
    for label in ("3", "007", "latest", "Big", "a b", "x" * 64):
        answer = client.put(f"/v1/artifacts/prompt/greeting/labels/{label}", json={"version": 1})
        assert answer.status_code in (400, 422), answer.text
        assert "cannot be a label" in answer.json()["detail"]
    assert rows(api) == before


def test_a_number_with_more_digits_than_any_is_a_version_that_is_not_there(
    api: Any, client: Any
) -> None:
    path, long = "/v1/artifacts/prompt/greeting", "9" * 5_000
    for answer in (
        client.get(f"{path}/versions/{long}"),
        client.get(f"{path}/versions/{long}/diff/1"),
        client.post(f"{path}/copy", json={"to": "other", "version": long}),
    ):
        assert "The nearest: 2." in problem(answer, 404, "not-found")
    gone = api.client("admin").delete(f"{path}/versions/{long}")
    assert "is no version number" in problem(gone, 400, "invalid")
    assert len(gone.json()["detail"]) < 300
    assert client.get(f"{path}/versions/{'0' * 5_000}1").json()["number"] == 1


def test_a_copied_task_set_is_found_by_what_can_be_seen_of_it(api: Any) -> None:
    admin = api.client("admin")
    tasks = [
        {
            "id": f"unguessable{split}",
            "input": f"visible{split}",
            "split": split,
            "group": split,
            "verifier": {"name": "exact", "config": {"answer": "x"}},
        }
        for split in ("train", "validation", "sealed")
    ]
    body = {"kind": "task_set", "name": "sums", "content": {"tasks": tasks}}
    assert admin.post("/v1/artifacts", json=body).status_code == 201
    made = admin.post("/v1/artifacts/task_set/sums/copy", json={"to": "more"})
    assert made.status_code == 201, made.text

    def found(words: str) -> list[str]:
        listed = admin.get("/v1/artifacts", params={"q": words}).json()["data"]
        return [one["name"] for one in listed]

    assert found("visibletrain") == ["more", "sums"]
    assert found("visiblesealed") == found("unguessablesealed") == []
