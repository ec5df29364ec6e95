"""The registry over REST: every verb, its ETags and roles, and what archiving leaves alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.postgres

SKILL = (
    "---\nname: triage\ndescription: Sorts incoming tickets by queue and urgency. Use it when a "
    "ticket comes in.\n---\n# Triage\n\nRead the whole ticket. Name the queue that owns the "
    "product. Ask for the order number where a refund is wanted. Never promise a date.\n"
)


def put(client: Any, path: str, body: Any, method: str = "PUT") -> Any:
    """A change of whatever is there now."""
    return client.request(method, path, json=body, headers={"If-Match": "*"})


def make(client: Any, kind: str, name: str, content: Any, **more: Any) -> Any:
    body = {"kind": kind, "name": name, "content": content, **more}
    answer = client.post("/v1/artifacts", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.mark.slow
def test_every_kind_goes_through_every_verb(api: Any) -> None:
    client = api.client("admin")
    kinds = client.get("/v1/kinds").json()
    assert len(kinds) == 14
    for kind in kinds:
        name, path = f"it-{kind['name'].replace('_', '-')}", f"/v1/artifacts/{kind['name']}"
        first, second = kind["examples"]
        made = make(client, kind["name"], name, first, description="for the tour", tags=["tour"])
        assert made["number"] == 1
        again = client.post(
            "/v1/artifacts", json={"kind": kind["name"], "name": name, "content": first}
        )
        assert again.status_code == 409
        path = f"{path}/{name}"
        seen = client.get(path).headers["etag"]
        updated = client.put(path, json={"content": second}, headers={"If-Match": seen})
        assert (updated.status_code, updated.json()["number"]) == (200, 2), updated.text
        assert updated.json()["parents"] == [made["id"]]
        assert client.get(f"{path}/versions/1/diff/2").json()["equal"] is False
        put(client, f"{path}/labels/staging", {"version": 1})
        put(client, f"{path}/labels/staging", {"version": 2, "cause": "better"})
        back = client.post(f"{path}/rollback", json={"label": "staging", "reason": "worse"})
        assert back.json()["version"] == 1
        moves = client.get(f"{path}/labels/staging/history").json()
        assert [move["cause"] for move in moves] == ["moved by API", "better", "worse"]
        parts = client.get(f"{path}/components").json()
        assert {"name", "owner", "trainable", "tokens", "budget_tokens"} <= set(
            parts[0] if parts else {"name", "owner", "trainable", "tokens", "budget_tokens"}
        )
        copied = client.post(f"{path}/copy", json={"to": f"{name}-copy", "version": "staging"})
        assert (copied.status_code, copied.json()["origin"]) == (201, "copy"), copied.text
        contract = client.get("/v1/contract", params={"kind": kind["name"]}).json()
        assert {name, f"{name}-copy"} <= {entry["name"] for entry in contract["entries"]}
        gone = client.delete(f"{path}-copy", params={"versions": "all"})
        assert (gone.status_code, gone.json()["count"]) == (200, 1), gone.text
        assert client.get(f"{path}-copy").status_code == 404
        restored = client.post(f"{path}-copy/restore", json={})
        assert restored.status_code == 200 and client.get(f"{path}-copy").status_code == 200
        found = client.get("/v1/artifacts", params={"q": "tour", "kind": kind["name"]}).json()
        assert {row["name"] for row in found["data"]} == {name, f"{name}-copy"}
    assert len(client.get("/v1/artifacts", params={"tag": "tour"}).json()["data"]) == 14


def test_a_reader_who_has_the_present_state_gets_no_body(api: Any) -> None:
    client = api.client("admin")
    make(client, "prompt", "greeting", "Be kind.")
    path = "/v1/artifacts/prompt/greeting"
    put(client, f"{path}/labels/staging", {"version": 1})
    for where in (path, f"{path}/versions/1", f"{path}/versions/staging"):
        first = client.get(where)
        again = client.get(where, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), where
        assert again.headers["etag"] == first.headers["etag"]
        assert "no-cache" in again.headers["cache-control"]
    assert client.get(f"{path}/labels/staging").headers["cache-control"] == "no-store"


def test_s7_any_change_of_what_a_read_gives_changes_its_etag(api: Any) -> None:
    client = api.client("admin")
    make(client, "prompt", "greeting", "Be kind.")
    path = "/v1/artifacts/prompt/greeting"
    client.put(f"{path}/labels/staging", json={"version": 1})
    put(client, path, {"content": "Be brief."})
    seen: set[str] = set()

    def changed(where: str) -> bool:
        etag = client.get(where).headers["etag"]
        fresh = etag not in seen
        seen.add(etag)
        return fresh

    label, newest = f"{path}/versions/staging", f"{path}/versions/latest"
    assert changed(label) and changed(newest) and changed(path)
    put(client, path, {"description": "new words"}, "PATCH")
    assert changed(label) and changed(newest) and changed(path)
    put(client, f"{path}/labels/staging", {"version": 2})
    assert changed(label) and changed(path)
    put(client, path, {"tags": ["x"]}, "PATCH")
    assert changed(label) and changed(newest) and changed(path)
    client.delete(f"{path}/labels/staging")
    assert changed(path) and client.get(label).status_code == 404


def test_s5_an_archived_version_is_not_read_even_by_who_has_it(api: Any) -> None:
    client = api.client("admin")
    make(client, "prompt", "greeting", "Be kind.")
    path = "/v1/artifacts/prompt/greeting"
    put(client, path, {"content": "Be brief."})
    etag = client.get(f"{path}/versions/1").headers["etag"]
    assert client.delete(f"{path}/versions/1").status_code == 204
    kept = client.get(f"{path}/versions/1", headers={"If-None-Match": etag})
    assert kept.status_code == 404
    assert [row["number"] for row in client.get(f"{path}/versions").json()["data"]] == [2]
    assert client.post(f"{path}/restore", json={"version": 1}).status_code == 200
    assert client.get(f"{path}/versions/1").json()["content"] == "Be kind."


def test_s11_archiving_needs_its_scope_and_refuses_what_is_in_use(api: Any) -> None:
    client = api.client("admin")
    make(client, "prompt", "greeting", "Be kind.")
    path = "/v1/artifacts/prompt/greeting"
    unsaid = client.delete(path)
    assert unsaid.status_code == 400 and "versions=all" in unsaid.json()["detail"]
    client.put(f"{path}/labels/staging", json={"version": 1})
    held = client.delete(path, params={"versions": "all"})
    assert held.status_code == 409 and "'staging'" in held.json()["detail"]
    assert client.delete(f"{path}/versions/1").status_code == 409
    client.delete(f"{path}/labels/staging")
    assert api.client("operator").delete(path, params={"versions": "all"}).status_code == 403
    assert client.delete(path, params={"versions": "all"}).status_code == 200
    listed = client.get("/v1/artifacts", params={"archived": "true"}).json()["data"]
    assert [row["name"] for row in listed] == ["greeting"]


def test_s107_archiving_many_spells_out_its_scope_and_counts_first(api: Any) -> None:
    client, names = api.client("admin"), ["a1", "b2"]
    for name in names:
        make(client, "prompt", name, f"Prompt {name}.")
    put(client, "/v1/artifacts/prompt/a1", {"content": "Another."})
    whole = {
        "project": api.project_id,
        "kind": "prompt",
        "names": names,
        "versions": "all",
    }
    for field in whole:
        part = {key: value for key, value in whole.items() if key != field}
        assert client.post("/v1/artifacts/archive", json=part).status_code == 422, field
    preview = client.post("/v1/artifacts/archive", json=whole).json()
    assert preview == {
        "kind": "prompt",
        "versions": {"a1": 2, "b2": 1},
        "count": 3,
        "archived": False,
    }
    assert client.get("/v1/artifacts/prompt/a1").status_code == 200
    wrong = client.post("/v1/artifacts/archive", json={**whole, "count": 2})
    assert wrong.status_code == 409 and "3 versions" in wrong.json()["detail"]
    other = api.client("other").post("/v1/artifacts/archive", json={**whole, "count": 3})
    assert other.status_code == 404
    assert client.get("/v1/artifacts/prompt/b2").status_code == 200
    assert client.post("/v1/artifacts/archive", json={**whole, "count": 3}).json()["archived"]
    assert client.get("/v1/artifacts/prompt/b2").status_code == 404


def test_s112_archiving_an_agent_leaves_its_shared_parts(api: Any, agent_body: Any) -> None:
    client = api.client("admin")
    assert client.post("/v1/agents", json=agent_body()).status_code == 201
    part = "/v1/artifacts/prompt/desk/instructions"
    pinned = client.delete(part, params={"versions": "all"})
    assert pinned.status_code == 409 and "'desk' pins it" in pinned.json()["detail"]
    gone = client.delete("/v1/artifacts/agent/desk", params={"versions": "all"})
    assert gone.status_code == 200, gone.text
    assert client.get(f"{part}/versions/1").json()["content"] == "You are version one."
    client.post("/v1/artifacts/agent/desk/restore", json={})
    assert client.get("/v1/agents/desk/versions/1").status_code == 200


def test_s111_names_and_labels_are_unique(api: Any) -> None:
    client = api.client("admin")

    def save(number: int) -> int:
        body = {"kind": "prompt", "name": "one", "content": f"Prompt {number}."}
        return int(client.post("/v1/artifacts", json=body).status_code)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(save, range(4))) == [201, 409, 409, 409]
    path = "/v1/artifacts/prompt/one/labels/staging"
    client.put(path, json={"version": 1})
    assert client.put(path, json={"version": 1}).status_code == 428
    assert len(client.get("/v1/artifacts/prompt/one/labels").json()) == 1


def test_s21_a_near_duplicate_is_told_and_the_catalogue_is_cut_in_words(api: Any) -> None:
    client = api.client("admin")
    first = make(client, "skill", "triage", {"files": {"SKILL.md": SKILL}})
    assert first["notices"] == []
    near = SKILL.replace("Never promise a date", "Never promise any date")
    told = make(client, "skill", "sorting", {"files": {"SKILL.md": near}})
    assert any("improve 'triage' instead" in notice for notice in told["notices"])
    assert any("not that of its folder" in notice for notice in told["notices"])
    kept = make(client, "skill", "third", {"files": {"SKILL.md": near}}, allow_similar=True)
    assert not any("resembles" in notice for notice in kept["notices"])
    other = SKILL.split("# Triage")[0] + "# Other\n\nPlay a tune on the piano, then bow twice.\n"
    fresh = make(client, "skill", "piano", {"files": {"SKILL.md": other}})
    assert not any("resembles" in notice for notice in fresh["notices"])
    full = client.get("/v1/contract", params={"kind": "skill"}).json()
    assert full["text"].startswith("Skills:\n- piano: Sorts incoming tickets")
    cut = client.get("/v1/contract", params={"kind": "skill", "budget_tokens": 40}).json()
    assert len(cut["entries"]) + len(cut["cut"]) == 4 and cut["cut"]
    assert "not listed, because this catalogue may take 40 tokens" in cut["text"]


def test_an_agent_has_one_contract_of_what_it_is_beside_its_prompt(
    api: Any, agent_body: Any
) -> None:
    client = api.client("admin")
    body = agent_body()
    body["components"]["triage"] = {"kind": "skill", "content": {"files": {"SKILL.md": SKILL}}}
    body["components"]["notes"] = {
        "kind": "memory",
        "content": {"entries": [{"id": "M1", "text": "The office closes at five."}]},
    }
    assert client.post("/v1/agents", json=body).status_code == 201
    found = client.get("/v1/artifacts/agent/desk/contract").json()
    assert [entry["kind"] for entry in found["entries"]] == ["memory_bank", "skill"]
    assert "- triage: Sorts incoming tickets" in found["text"] and "(version 1)" in found["text"]
    parts = client.get("/v1/artifacts/agent/desk/components").json()
    assert {part["name"]: part["kind"] for part in parts} == {
        "instructions": "instructions",
        "triage": "skill",
        "notes": "memory",
    }


def test_labels_and_jobs_access_change_by_role(api: Any) -> None:
    admin, operator, approver = (api.client(one) for one in ("admin", "operator", "approver"))
    make(admin, "prompt", "greeting", "Be kind.")
    path = "/v1/artifacts/prompt/greeting"
    put(operator, f"{path}/labels/live", {"version": 1})
    assert operator.put(f"{path}/labels/live2", json={"version": 1}).status_code == 200
    refused = put(operator, f"{path}/labels/live2", {"move_role": "admin"}, "PATCH")
    assert refused.status_code == 403
    done = put(admin, f"{path}/labels/live2", {"move_role": "approver"}, "PATCH").json()
    assert (done["move_role"], done["protected"]) == ("approver", True)
    put(admin, path, {"content": "Be brief."})
    assert put(operator, f"{path}/labels/live2", {"version": 2}).status_code == 403
    assert operator.delete(f"{path}/labels/live2").status_code == 403
    assert put(approver, f"{path}/labels/live2", {"version": 2}).status_code == 200
    assert put(operator, path, {"job_access": "overlay"}, "PATCH").status_code == 403
    opened = put(approver, path, {"job_access": "overlay"}, "PATCH")
    assert opened.json()["job_access"] == "overlay"
    assert operator.get(path).json()["job_access"] == "overlay"


def test_what_says_what_runs_here_takes_an_admin(api: Any) -> None:
    operator, admin = api.client("operator"), api.client("admin")
    binding = {"command": "true"}
    tasks = [
        {
            "id": f"t{number}",
            "input": f"question {number}",
            "split": split,
            "group": f"g{number}",
            "verifier": {"name": "exact", "config": {"answer": "x"}},
        }
        for number, split in enumerate(("train", "validation", "sealed"))
    ]
    content = {"tasks": tasks, "bindings": {"desk": binding}}
    body = {"kind": "task_set", "name": "sums", "content": content}
    refused = operator.post("/v1/artifacts", json=body)
    assert refused.status_code == 403, refused.text
    assert operator.get("/v1/artifacts/task_set/sums").status_code == 404
    world = {"servers": {"desk": {"by": "sandbox", "binding": {"command": "true"}}}}
    body = {"kind": "environment", "name": "w", "content": world}
    assert operator.post("/v1/artifacts", json=body).status_code == 403
    assert admin.post("/v1/artifacts", json=body).status_code == 201
    # Sealed tasks come in by the registry too, and no route gives them back.
    secret = [*tasks[:2], {**tasks[2], "input": "the secret question"}]
    make(admin, "task_set", "sums", {"tasks": secret})
    for path in ("versions/1", "versions/1/diff/1", "components", ""):
        text = admin.get(f"/v1/artifacts/task_set/sums/{path}".rstrip("/")).text
        assert "secret question" not in text
    copied = admin.post("/v1/artifacts/task_set/sums/copy", json={"to": "more"})
    assert "secret question" not in copied.text
    assert admin.get("/v1/task-sets/more").json()["counts"]["sealed"] == 1
    assert api.database.query("select count(*) from instar.sealed_task") == [(2,)]


def test_a_merge_that_somebody_wrote_brings_no_commands_either(api: Any) -> None:
    operator, admin = api.client("operator"), api.client("admin")
    path = "/v1/artifacts/environment/w"
    for binding in ("copy", "other"):
        content = {"servers": {"desk": {"binding": binding}}}
        operator.post(f"{path}/versions", json={"content": content}).raise_for_status()
    world = {"servers": {"desk": {"binding": {"command": "true"}}}}
    wish = {"ours": "1", "theirs": "2", "content": world, "dry_run": False}
    assert operator.post(f"{path}/merge", json=wish).status_code == 403
    assert operator.get(path).json()["last_version"] == 2
    # What it does not bring is merged as before, and an admin may bring it.
    named = {**wish, "content": {"servers": {"desk": {"binding": "third"}}}}
    assert operator.post(f"{path}/merge", json=named).json()["version"] == 3
    assert admin.post(f"{path}/merge", json=wish).json()["version"] == 4
