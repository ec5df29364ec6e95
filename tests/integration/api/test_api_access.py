"""Who may do what: people, keys and projects over REST, and what nobody may give away."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from instar.store.audit import SYSTEM
from instar.store.projects import NewKey, create_api_key

pytestmark = pytest.mark.postgres
PASSWORD = "plum kettle orbit 7"


def with_key(api: Any, key: str) -> httpx.Client:
    """A client with any key."""
    client: httpx.Client = api.bare()
    client.headers["Authorization"] = f"Bearer {key}"
    return client


def instance(api: Any) -> httpx.Client:
    """A client with the right over the installation."""

    async def make(db: Any) -> str:
        async with db.transaction(api.project_id) as session:
            new = NewKey("root", "admin", instance=True)
            return (await create_api_key(session, api.project_id, new, SYSTEM)).key

    return with_key(api, api.database.run(make))


def made_key(client: httpx.Client, **wanted: Any) -> dict[str, Any]:
    """A new key's answer."""
    answer = client.post("/v1/api-keys", json={"name": "k", **wanted})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_a_key_is_shown_once_even_to_who_asks_again(api: Any) -> None:
    admin = api.client("admin")
    headers = {"Idempotency-Key": "one key"}
    body = {"name": "laptop", "role": "viewer", "scopes": ["runs:read"]}
    first = admin.post("/v1/api-keys", json=body, headers=headers)
    again = admin.post("/v1/api-keys", json=body, headers=headers)
    assert first.json()["id"] == again.json()["id"]
    assert first.json()["key"].startswith("instar_") and again.json()["key"] is None
    secret = first.json()["key"].removeprefix("instar_")
    for table in ("api_key", "idempotency_key", "audit_event"):
        assert secret not in str(api.database.query(f"select cast(t as text) from {table} t"))
    listed = {one["id"]: one for one in admin.get("/v1/api-keys").json()["data"]}
    shown = listed[first.json()["id"]]
    assert shown["scopes"] == ["runs:read"] and shown["created_by"].startswith("key:")
    assert "hash" not in shown and secret not in str(shown)


def test_scopes_hold_on_every_route_and_reading_is_no_writing(api: Any, agent_body: Any) -> None:
    admin = api.client("admin")
    key = made_key(admin, role="admin", scopes=["agents:read", "artifacts", "api-keys"])
    client = with_key(api, key["key"])
    assert client.get("/v1/agents").status_code == 200
    assert client.post("/v1/agents", json=agent_body()).status_code == 403
    saved = client.post("/v1/artifacts/prompt/p/versions", json={"content": "x"})
    assert saved.status_code == 201
    for path in ("/v1/runs/" + key["id"], "/v1/project", "/v1/users", "/v1/audit", "/v1/models"):
        assert client.get(path).status_code == 403, path
    assert client.get("/v1/auth/session").json()["scopes"] == key_scopes(admin, key["id"])
    unknown = admin.post("/v1/api-keys", json={"name": "k", "scopes": ["agnets"]})
    assert unknown.status_code == 400 and "agents" in unknown.json()["detail"]


def key_scopes(client: httpx.Client, key_id: str) -> list[str]:
    """A key's scopes as they are listed."""
    scopes: list[str] = client.get(f"/v1/api-keys/{key_id}").json()["scopes"]
    return scopes


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ({"scopes": ["api-keys", "agents:read"]}, {"scopes": []}),
        ({"scopes": ["api-keys", "agents:read"]}, {"scopes": ["agents"]}),
        ({"scopes": ["api-keys", "agents:read"]}, {"scopes": ["api-keys", "runs:read"]}),
        ({}, {"instance": True}),
        ({"expires_at": "soon"}, {"expires_at": None}),
        ({"expires_at": "soon"}, {"expires_at": "later"}),
    ],
)
def test_a_key_makes_no_key_that_may_do_more(
    api: Any, held: dict[str, Any], wanted: dict[str, Any]
) -> None:
    moments = {
        "soon": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        "later": (datetime.now(UTC) + timedelta(hours=2)).isoformat(),
    }

    def body(part: dict[str, Any]) -> dict[str, Any]:
        filled = {"name": "k", "role": "admin", **part}
        if filled.get("expires_at"):
            filled["expires_at"] = moments[filled["expires_at"]]
        return filled

    made = made_key(api.client("admin"), **body(held))
    client = with_key(api, made["key"])
    refused = client.post("/v1/api-keys", json=body(wanted))
    assert refused.status_code == 403, refused.text
    assert "more than you can" in refused.json()["detail"]
    assert client.post("/v1/api-keys", json=body({**held, "role": "viewer"})).status_code == 201


def test_an_agents_key_never_approves_even_if_an_admin_wants_it(api: Any) -> None:
    admin = api.client("admin")
    for role in ("approver", "admin"):
        answer = admin.post("/v1/api-keys", json={"name": "k", "role": role, "agent": "desk"})
        assert answer.status_code == 400 and "never approves" in answer.json()["detail"]
    made = made_key(admin, role="operator", agent="desk")
    # Not even where the row says so.
    api.database.query(
        "update api_key set role = 'admin', instance = true where id = %s", made["id"]
    )
    client = with_key(api, made["key"])
    told = client.get("/v1/auth/session").json()
    assert (told["agent"], told["project"]["role"], told["instance"]) == ("desk", "operator", False)
    decide = "/v1/proposals/01890000-0000-7000-8000-000000000000/approve"
    refused = client.post(decide, json={})
    assert refused.status_code == 403 and "agent's key" in refused.json()["detail"]
    assert admin.post(decide, json={}).status_code == 404
    assert client.post("/v1/api-keys", json={"name": "k"}).status_code == 403
    assert client.put("/v1/project", json={"promotion": "auto"}).status_code == 403


def test_a_project_keeps_somebody_in_charge(api: Any) -> None:
    admin = api.client("admin")
    listed = admin.get("/v1/api-keys").json()["data"]
    (mine,) = [one for one in listed if one["role"] == "admin"]
    path = f"/v1/api-keys/{mine['id']}"
    # Keys that are narrow or run out, and agents', are nobody in charge.
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    made_key(admin, role="admin", expires_at=soon)
    made_key(admin, role="admin", scopes=["agents"])
    refused = admin.delete(path)
    assert refused.status_code == 409 and "without an administrator" in refused.json()["detail"]
    second = made_key(admin, role="admin")
    assert admin.delete(path).status_code == 204
    assert admin.get("/v1/api-keys").status_code == 401
    after = with_key(api, second["key"])
    assert after.delete(f"/v1/api-keys/{second['id']}").status_code == 409
    assert after.delete(path).status_code == 204, "revoked twice is revoked"


def test_people_are_made_by_the_installation_and_led_by_the_project(api: Any) -> None:
    root, admin = instance(api), api.client("admin")
    body = {"email": "Bo@Example.org", "name": "Bo", "role": "admin", "password": PASSWORD}
    assert admin.post("/v1/users", json=body).status_code == 403
    made = root.post("/v1/users", json=body).json()
    path = f"/v1/users/{made['id']}"
    assert admin.get(path).headers["etag"] == '"admin"'
    role = {"role": "viewer"}
    assert admin.put(f"{path}/role", json=role).status_code == 428
    stale = {"If-Match": '"operator"'}
    assert admin.put(f"{path}/role", json=role, headers=stale).status_code == 412
    fresh = {"If-Match": '"admin"'}
    assert admin.put(f"{path}/role", json=role, headers=fresh).json()["role"] == "viewer"
    # Nobody is made twice, and who somebody is elsewhere is not changed from here.
    assert root.post("/v1/users", json={**body, "email": "bo@example.ORG"}).status_code == 409
    weak = {**body, "email": "new@example.org", "password": "password1234"}
    assert root.post("/v1/users", json=weak).status_code == 400
    assert root.post("/v1/users", json={**weak, "email": "no address"}).status_code == 400
    assert admin.post(f"{path}/disable").status_code == 403
    assert root.post(f"{path}/disable").json()["disabled"] is True
    login = {"email": "bo@example.org", "password": PASSWORD}
    assert api.bare().post("/v1/auth/login", json=login).status_code == 401
    assert admin.delete(path).status_code == 204
    assert admin.get(path).status_code == 404
    actions = api.database.query(
        "select action from audit_event where subject = %s order by seq", made["id"]
    )
    wanted = ["user.create", "role.bind", "role.bind", "user.disable", "role.remove"]
    assert [row[0] for row in actions] == wanted
    assert PASSWORD not in str(api.database.query("select cast(a as text) from audit_event a"))


def test_a_narrow_or_passing_key_makes_nobody_more_than_it_is(api: Any) -> None:
    body = {"email": "bo@example.org", "role": "operator", "password": PASSWORD}
    made = instance(api).post("/v1/users", json=body).json()
    path, fresh = f"/v1/users/{made['id']}/role", {"If-Match": "*"}
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for bounds in ({"scopes": ["users"]}, {"expires_at": soon}):
        key = with_key(api, made_key(api.client("admin"), role="admin", **bounds)["key"])
        for role in ("approver", "admin"):
            refused = key.put(path, json={"role": role}, headers=fresh)
            assert refused.status_code == 403, refused.text
            assert "has scopes or an end" in refused.json()["detail"]
        # Taking away is no more than the key may do.
        for role in ("operator", "viewer"):
            assert key.put(path, json={"role": role}, headers=fresh).json()["role"] == role
        raised = api.client("admin").put(path, json={"role": "operator"}, headers=fresh)
        assert raised.json()["role"] == "operator"


def test_the_last_admin_of_any_project_is_not_disabled(api: Any) -> None:
    root = instance(api)
    body = {"email": "bo@example.org", "role": "admin", "password": PASSWORD}
    made = root.post("/v1/users", json=body).json()
    other = api.database.query("select id from project where name = 'other'")[0][0]
    api.database.query("update api_key set revoked_at = now() where project_id = %s", other)
    bind = "insert into role_binding (project_id, user_id, role) values (%s, %s, 'admin')"
    api.database.query(bind, other, made["id"])
    refused = root.post(f"/v1/users/{made['id']}/disable")
    assert refused.status_code == 409 and "a project" in refused.json()["detail"]
    api.database.query("delete from role_binding where project_id = %s", other)
    assert root.post(f"/v1/users/{made['id']}/disable").status_code == 200


def test_a_reset_password_ends_every_session(api: Any) -> None:
    root = instance(api)
    body = {"email": "bo@example.org", "role": "viewer", "password": PASSWORD}
    made = root.post("/v1/users", json=body).json()
    person = api.bare()
    login = {"email": "bo@example.org", "password": PASSWORD}
    assert person.post("/v1/auth/login", json=login).status_code == 200
    new = {"password": "quiet amber ladder 3"}
    assert root.post(f"/v1/users/{made['id']}/password", json=new).status_code == 204
    assert person.get("/v1/agents").status_code == 401
    assert person.post("/v1/auth/login", json=login).status_code == 401
    assert person.post("/v1/auth/login", json={**login, **new}).status_code == 200


def test_projects_are_made_with_somebody_in_charge_and_archived(api: Any) -> None:
    root, admin = instance(api), api.client("admin")
    assert admin.post("/v1/projects", json={"name": "sales"}).status_code == 403
    made = root.post("/v1/projects", json={"name": "sales"}).json()
    inside = with_key(api, made["key"])
    assert inside.get("/v1/projects").json() == [
        {"id": made["id"], "name": "sales", "role": "admin"}
    ]
    assert root.post("/v1/projects", json={"name": "sales"}).status_code == 409
    assert root.post("/v1/projects", json={"name": "Not A Name"}).status_code == 400
    foreign = admin.delete(f"/v1/projects/{made['id']}")
    unknown = admin.delete(f"/v1/projects/{made['id'][:-1]}0")
    assert foreign.status_code == unknown.status_code == 404
    assert inside.delete(f"/v1/projects/{made['id']}").status_code == 204
    assert inside.get("/v1/projects").status_code == 401
    (count,) = api.database.query(
        "select count(*) from audit_event where action like 'project.%%' and project_id = %s",
        made["id"],
    )
    assert count == (2,)


def test_s109_only_admins_say_what_runs_on_this_machine(api: Any) -> None:
    server = {"name": "s", "command": "python", "args": ["-c", "print()"]}
    for role in ("viewer", "operator", "approver"):
        client = api.client(role)
        assert client.put("/v1/mcp-servers/s", json=server).status_code == 403
        assert client.delete("/v1/mcp-servers/s").status_code == 403
    admin = api.client("admin")
    scoped = with_key(api, made_key(admin, role="admin", scopes=["mcp-servers:read"])["key"])
    assert scoped.put("/v1/mcp-servers/s", json=server).status_code == 403
    assert admin.put("/v1/mcp-servers/s", json=server).status_code == 200
    # A test binding inside a task set is a command too.
    lines: list[dict[str, Any]] = [
        {"task_set": {"name": "cases", "bindings": {"s": {"command": "python"}}}}
    ]
    for number, split in enumerate(("train", "validation", "sealed")):
        verifier = {"name": "exact", "config": {"answer": "1"}}
        task = {"id": f"t{number}", "input": f"x{number}", "split": split, "group": f"g{number}"}
        lines.append({**task, "verifier": verifier})
    body = {"name": "cases", "jsonl": "\n".join(json.dumps(line) for line in lines)}
    refused = api.client("operator").post("/v1/task-sets", json=body)
    assert refused.status_code == 403, refused.text
    assert "what runs on this machine" in refused.json()["detail"]
    assert api.database.query("select count(*) from mcp_server") == [(1,)]
    assert admin.post("/v1/task-sets", json=body).status_code == 201
