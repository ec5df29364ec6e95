"""How the API behaves whatever is asked: keys, problems, idempotency, limits, OpenAPI."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from instar.api.app import create_app
from instar.api.declared import PUBLIC
from instar.settings import ApiSettings, Settings
from instar_core.base import new_id

pytestmark = pytest.mark.postgres
PROBLEM = "application/problem+json"


def routes(api: Any) -> list[tuple[str, str]]:
    """Every method and path of the OpenAPI document."""
    paths = api.bare().get("/openapi.json").json()["paths"]
    return [(method, path) for path, methods in paths.items() for method in methods]


def filled(path: str) -> str:
    """A path with something in each of its places."""
    for part in ("run_id", "proposal_id", "promotion_id", "user_id", "key_id", "project_id"):
        path = path.replace("{" + part + "}", "01890000-0000-7000-8000-000000000000")
    return path.replace("{", "").replace("}", "")


@pytest.mark.slow
def test_s108_every_route_but_health_needs_a_key(api: Any) -> None:
    bare = api.bare()
    wrong = {"Authorization": "Bearer instar_not-a-key"}
    checked = 0
    for method, path in routes(api):
        if not path.startswith("/v1") or path in PUBLIC:
            continue
        for headers in ({}, wrong, {"Authorization": "Basic x"}):
            answer = bare.request(method, filled(path), headers=headers, json={})
            assert answer.status_code == 401, (method, path)
            assert answer.headers["content-type"] == PROBLEM or "chat" in path
            assert answer.headers["www-authenticate"].startswith("Bearer")
        checked += 1
    assert checked >= 30
    assert bare.get("/healthz").json() == {"status": "ok"}
    assert bare.get("/version").json()["version"]


def test_s108_a_bind_to_other_machines_without_any_key_is_refused(database: Any) -> None:
    import asyncio

    from instar_core.errors import PrerequisiteError

    settings = Settings(app_database_url=database.app_url, api=ApiSettings(host="0.0.0.0"))
    app = create_app(settings)

    async def start() -> None:
        async with app.router.lifespan_context(app):
            raise AssertionError("it started")

    with pytest.raises(PrerequisiteError, match=r"0\.0\.0\.0"):
        asyncio.run(start())


def test_a_key_that_may_read_can_write_nothing(api: Any) -> None:
    reader, member = api.client("viewer"), api.client("operator")
    written = [
        (method, path)
        for method, path in routes(api)
        if method != "get" and not path.startswith("/v1/auth/")
    ]
    assert len(written) > 10
    for method, path in written:
        answer = reader.request(method, filled(path), json={})
        assert answer.status_code == 403, (method, path, answer.text)
    for path in ("/v1/mcp-servers/name", "/v1/project"):
        assert member.put(path, json={}).status_code == 403, path
    for path in ("/v1/proposals/{id}/approve", "/v1/promotions/{id}/rollback"):
        answer = member.post(path.replace("{id}", new_id()), json={})
        assert answer.status_code == 403, path


def test_only_who_may_approve_starts_a_run_that_promotes_by_itself(api: Any) -> None:
    spec = {"agent": "none", "task_set": "none", "promotion": "auto"}
    member, admin = api.client("operator"), api.client("admin")
    refused = member.post("/v1/evolution/runs", json=spec)
    assert refused.status_code == 403 and "asks a person" in refused.json()["detail"]
    # Whoever may approve gets as far as the agent that does not exist.
    assert admin.post("/v1/evolution/runs", json=spec).status_code == 404
    assert member.post("/v1/evolution/runs", json={**spec, "promotion": "ask"}).status_code == 404
    rule = {"promotion": "auto"}
    admin.put("/v1/project", json=rule, headers={"If-Match": "*"}).raise_for_status()
    assert member.post("/v1/evolution/runs", json=spec).status_code == 404
    laxer = admin.post("/v1/evolution/runs", json={**spec, "acceptance": {"alpha": 0.9}})
    assert laxer.status_code == 422 and "stricter" in laxer.text


def test_errors_are_problems_with_a_stable_type_and_a_remedy(api: Any) -> None:
    client = api.client("admin")
    cases = [
        (client.get("/v1/agents/none"), 404, "not-found"),
        (client.get("/nowhere"), 404, "not-found"),
        (client.patch("/v1/agents"), 405, "method-not-allowed"),
        (client.post("/v1/agents", json={}), 422, "validation"),
        (client.post("/v1/agents", content=b"{"), 422, "validation"),
        (client.get("/v1/runs/7"), 422, "validation"),
        (client.get("/v1/agents?limit=0"), 422, "validation"),
        (client.post("/v1/artifacts/agent/x/versions", json={"content": 1}), 422, "validation"),
        (api.client("viewer").post("/v1/agents", json={}), 403, "forbidden"),
    ]
    for answer, status, code in cases:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == PROBLEM
        body = answer.json()
        assert body["type"] == f"urn:instar:problem:{code}"
        assert body["status"] == status
        assert body["title"] and body["detail"]
        assert body["instance"] == answer.request.url.path


def test_the_same_key_and_request_get_the_same_answer_and_do_it_once(
    api: Any, agent_body: Any
) -> None:
    client = api.client("admin")
    headers = {"Idempotency-Key": "save-1"}
    first = client.post("/v1/agents", json=agent_body(), headers=headers)
    again = client.post("/v1/agents", json=agent_body(), headers=headers)
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    assert client.get("/v1/agents/desk").json()["last_version"] == 1
    other = client.post("/v1/agents", json=agent_body(version="two"), headers=headers)
    assert other.status_code == 422
    assert other.json()["type"] == "urn:instar:problem:idempotency-key-reused"
    # Another project's keys are its own.
    theirs = api.client("other").post("/v1/agents", json=agent_body(), headers=headers)
    assert theirs.status_code == 201
    assert "Idempotency-Replayed" not in theirs.headers


def test_a_refused_request_may_be_sent_again_under_its_key(api: Any, agent_body: Any) -> None:
    client = api.client("admin")
    headers = {"Idempotency-Key": "run-early"}
    run = {"input": "hello"}
    assert client.post("/v1/agents/desk/runs", json=run, headers=headers).status_code == 404
    client.post("/v1/agents", json=agent_body(label="production")).raise_for_status()
    assert client.post("/v1/agents/desk/runs", json=run, headers=headers).status_code == 200
    long = client.post("/v1/agents", json={}, headers={"Idempotency-Key": "k" * 201})
    assert long.status_code == 400


def test_a_server_error_is_not_kept_so_that_trying_again_can_succeed(
    api: Any, agent_body: Any, scripts: Any
) -> None:
    client = api.client("admin")
    client.post("/v1/agents", json=agent_body(label="production"))
    headers = {"Idempotency-Key": "run-1"}
    body = {"input": "fail please"}
    assert client.post("/v1/agents/desk/runs", json=body, headers=headers).status_code == 502
    assert client.post("/v1/agents/desk/runs", json=body, headers=headers).status_code == 502
    assert len(client.get("/v1/agents/desk/runs").json()["data"]) == 2


def test_the_same_key_at_once_does_the_work_once(api: Any, agent_body: Any) -> None:
    clients = [api.client("admin") for _ in range(6)]

    def save(client: Any) -> int:
        headers = {"Idempotency-Key": "together"}
        status: int = client.post("/v1/agents", json=agent_body(), headers=headers).status_code
        return status

    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(save, clients))
    assert set(statuses) <= {201, 409}
    assert 201 in statuses
    assert clients[0].get("/v1/agents/desk").json()["last_version"] == 1


def test_a_body_beyond_the_limit_is_refused(api: Any) -> None:
    pieces = iter([b"x" * 2**20] * 65)
    answer = api.client("admin").post(
        "/v1/task-sets", content=pieces, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413
    assert answer.headers["content-type"] == PROBLEM


def test_text_that_postgres_cannot_hold_is_refused_or_kept_never_a_500(api: Any) -> None:
    client = api.client("admin")
    for content in ("a\x00b", {"k": "\x00"}, "ünï ✓ 🦋", {"b": 1, "a": [None, 1.5]}):
        answer = client.post("/v1/artifacts/prompt/odd/versions", json={"content": content})
        assert answer.status_code in (201, 400, 422), answer.text
        if answer.status_code == 201:
            read = client.get("/v1/artifacts/prompt/odd/versions/latest").json()
            assert read["content"] == content
    raw = client.post(
        "/v1/artifacts/prompt/odd/versions",
        content=b'{"content": "\\ud800"}',
        headers={"Content-Type": "application/json"},
    )
    assert raw.status_code in (400, 422)
    for path in ("/v1/agents/a%00b", "/v1/artifacts/prompt/%00", "/v1/artifacts?kind=%00"):
        assert client.get(path).status_code in (400, 404, 422), path


def test_s27_readiness_names_what_is_missing(api: Any) -> None:
    answer = api.bare().get("/readyz")
    assert answer.status_code == 503
    checks = answer.json()["checks"]
    assert checks["database"] == "ok"
    assert "broker" in checks["broker"]


def test_s116_another_schema_is_not_served(database: Any) -> None:
    from fastapi.testclient import TestClient

    database.query("update instar.alembic_version set version_num = 'v0000_other'")
    app = create_app(Settings(app_database_url=database.app_url))
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["checks"]["database"] != "ok"
        answer = client.get("/v1/agents", headers={"Authorization": "Bearer instar_x"})
        assert answer.status_code == 503
        assert answer.json()["type"] == "urn:instar:problem:not-ready"
        assert answer.headers["Retry-After"]


def test_s116_a_schema_that_changes_meanwhile_is_served_no_more(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from instar.api import service

    monkeypatch.setattr(service, "_LOOK_AGAIN_S", -1.0)
    admin = api.client("admin")
    assert admin.get("/v1/agents").status_code == 200
    query = "update instar.alembic_version set version_num = %s"
    (current,) = api.database.query("select version_num from instar.alembic_version")[0]
    api.database.query(query, "9999")
    answer = admin.get("/v1/agents")
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:instar:problem:not-ready"
    assert "'9999'" in answer.json()["detail"]
    api.database.query(query, current)
    monkeypatch.setattr(service, "_CHECK_EVERY_S", -1.0)
    assert admin.get("/v1/agents").status_code == 200


def test_openapi_documents_every_error_as_a_problem(api: Any) -> None:
    document = api.bare().get("/openapi.json").json()
    assert "HTTPValidationError" not in document["components"]["schemas"]
    ids = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            ids.append(operation["operationId"])
            if not path.startswith("/v1") or path in PUBLIC:
                continue
            responses = operation["responses"]
            assert {"401", "403", "422", "500", "503"} <= set(responses), (method, path)
            for status, response in responses.items():
                if int(status) >= 400:
                    assert list(response["content"]) == [PROBLEM], (method, path, status)
            # An export streams and changes nothing, so there is no answer to keep.
            if method == "post" and not path.startswith(("/v1/auth/", "/v1/users", "/v1/export")):
                names = [entry["name"] for entry in operation["parameters"]]
                assert "Idempotency-Key" in names
            assert operation["security"], (method, path)
    assert len(set(ids)) == len(ids)
