"""Signing in: sessions by password, their end, what they need to change anything."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from instar.api.app import create_app
from instar.settings import ApiSettings, Settings
from instar.store.audit import SYSTEM
from instar.store.passwords import hash_password
from instar.store.users import NewUser, add_user
from instar_core.errors import PrerequisiteError

pytestmark = pytest.mark.postgres
PASSWORD = "plum kettle orbit 7"
NEW = "quiet amber ladder 3"


def person(api: Any, email: str = "Anna@Example.org", role: str = "operator", **more: Any) -> str:
    """A person in the API's project; returns the id."""

    async def work(db: Any) -> str:
        hashed = await hash_password(PASSWORD)
        async with db.transaction(api.project_id) as session:
            new = NewUser(email, "Anna", hashed, **more)
            return (await add_user(session, api.project_id, new, role, SYSTEM)).id  # type: ignore[arg-type]

    made: str = api.database.run(work)
    return made


def browser(api: Any, email: str = "anna@example.org", password: str = PASSWORD) -> httpx.Client:
    """A client that signed in and repeats its token."""
    client: httpx.Client = api.bare()
    answer = client.post("/v1/auth/login", json={"email": email, "password": password})
    assert answer.status_code == 200, answer.text
    client.headers["X-CSRF-Token"] = answer.json()["csrf_token"]
    return client


def test_a_person_signs_in_works_and_signs_out(api: Any, agent_body: Any) -> None:
    user_id = person(api)
    client = browser(api)
    told = client.get("/v1/auth/session").json()
    assert (told["kind"], told["id"], told["email"]) == ("session", user_id, "Anna@Example.org")
    assert told["project"]["role"] == "operator" and told["instance"] is False
    assert client.post("/v1/agents", json=agent_body()).status_code == 201
    actors = api.database.query("select distinct actor from audit_event where action like 'art%%'")
    assert actors == [(f"user:{user_id}",)]
    assert client.put("/v1/project", json={"promotion": "auto"}).status_code == 403
    assert client.delete("/v1/auth/session").status_code == 204
    assert client.get("/v1/agents").status_code == 401
    actions = api.database.query(
        "select action from audit_event where action like 'session%%' order by seq"
    )
    assert actions == [("session.open",), ("session.end",)]


def test_the_cookie_is_out_of_reach_and_only_its_hash_is_kept(api: Any) -> None:
    person(api)
    login = {"email": "anna@example.org", "password": PASSWORD}
    answer = api.bare().post("/v1/auth/login", json=login)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Path=/" in cookie
    assert "Secure" not in cookie and answer.headers["cache-control"] == "no-store"
    secret = cookie.partition("=")[2].partition(";")[0]
    assert len(secret) == 43
    dump = str(api.database.query('select s.*, u.* from session s, "user" u'))
    assert secret not in dump and PASSWORD not in dump and "$argon2id$" in dump
    assert secret not in str(api.database.query("select cast(a as text) from audit_event a"))


def test_the_cookie_is_bound_to_tls_under_a_name_of_other_machines(database: Any) -> None:
    from fastapi.testclient import TestClient

    settings = Settings(
        app_database_url=database.app_url, api=ApiSettings(allowed_hosts=["instar.example.org"])
    )

    async def make(db: Any) -> None:
        hashed = await hash_password(PASSWORD)
        async with db.transaction(database.project_id) as session:
            new = NewUser("anna@example.org", "", hashed)
            await add_user(session, database.project_id, new, "viewer", SYSTEM)

    database.run(make)
    login = {"email": "anna@example.org", "password": PASSWORD}
    with TestClient(create_app(settings), "https://instar.example.org") as client:
        answer = client.post("/v1/auth/login", json=login)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-instar_session=") and "Secure" in cookie
        assert client.get("/v1/agents").status_code == 200
        plain = cookie.removeprefix("__Host-").partition(";")[0]
        client.cookies.clear()
        assert client.get("/v1/agents", headers={"Cookie": plain}).status_code == 401


def test_a35_a_change_by_session_needs_the_token_and_our_own_origin(api: Any) -> None:
    person(api, role="admin")
    client = browser(api)
    token = client.headers.pop("X-CSRF-Token")
    body = {"promotion": "auto"}
    assert client.get("/v1/project").status_code == 200
    own = {"X-CSRF-Token": token, "Origin": api.url}
    refused: list[dict[str, str]] = [
        {},
        {"X-CSRF-Token": ""},
        {"X-CSRF-Token": "0" * 64},
        {"X-CSRF-Token": "ä" * 3},
        {**own, "Origin": "https://evil.example"},
        {**own, "Origin": "null"},
        {**own, "Origin": api.url + "0"},
        {**own, "Origin": "http://127.0.0.1.evil.example"},
        {**own, "Sec-Fetch-Site": "cross-site"},
        {**own, "Sec-Fetch-Site": "same-site"},
    ]
    for headers in refused:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        answer = client.put("/v1/project", json=body, headers=raw)
        assert answer.status_code == 403, (headers, answer.text)
    assert api.database.query("select settings from project where name = 'test'") == [({},)]
    known = {**own, "If-Match": client.get("/v1/project").headers["etag"]}
    assert client.put("/v1/project", json=body, headers=known).status_code == 200
    # One session's token is nobody else's.
    other = browser(api)
    assert other.headers["X-CSRF-Token"] != token
    answer = other.put("/v1/project", json=body, headers={"X-CSRF-Token": token})
    assert answer.status_code == 403
    # Signing in is a change too: another site must not sign a browser in as somebody else.
    login = {"email": "anna@example.org", "password": PASSWORD}
    answer = api.bare().post("/v1/auth/login", json=login, headers={"Origin": "https://a.example"})
    assert answer.status_code == 403
    seen = client.get("/v1/project").headers
    assert seen["x-frame-options"] == "DENY" and seen["x-content-type-options"] == "nosniff"


def test_a11_names_that_are_not_ours_are_refused(api: Any) -> None:
    admin = api.client("admin")
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "10.0.0.9"):
        answer = admin.get("/v1/agents", headers={"Host": host})
        assert answer.status_code == 403, host
        assert "ALLOWED_HOSTS" in answer.json()["detail"]
        assert api.bare().get("/openapi.json", headers={"Host": host}).status_code == 403
        assert api.bare().get("/healthz", headers={"Host": host}).status_code == 200
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:8321", "127.9.9.9"):
        assert admin.get("/v1/agents", headers={"Host": host}).status_code == 200, host


def test_wrong_passwords_and_unknown_people_are_told_the_same_and_wait_the_same(api: Any) -> None:
    person(api)
    person(api, "gone@example.org")
    api.database.query("update \"user\" set disabled_at = now() where email like 'gone%%'")
    seen: list[list[tuple[int, str]]] = []
    for email in ("anna@example.org", "nobody@example.org", "gone@example.org", "x'; --@y"):
        client, answers = api.bare(), []
        waits: list[str] = []
        for _ in range(6):
            login = {"email": email, "password": "not it at all, sorry"}
            answer = client.post("/v1/auth/login", json=login)
            answers.append((answer.status_code, answer.json()["detail"]))
            waits.append(answer.headers.get("retry-after", "0"))
        assert 25 <= int(waits[-1]) <= 30
        seen.append(answers)
    assert [one[0] for one in seen[0]] == [401] * 5 + [429]
    assert all([one[0] for one in row] == [401] * 5 + [429] for row in seen)
    assert all(row[:5] == seen[0][:5] for row in seen)
    # The right password waits as well, and the wait grows.
    login = {"email": "anna@example.org", "password": PASSWORD}
    assert api.bare().post("/v1/auth/login", json=login).status_code == 429
    api.database.query("update login_failure set locked_until = now() - interval '1 second'")
    wrong = {"email": "ANNA@example.org ", "password": "still not it, sorry"}
    assert api.bare().post("/v1/auth/login", json=wrong).status_code == 401
    longer = api.bare().post("/v1/auth/login", json=wrong)
    assert 55 <= int(longer.headers["retry-after"]) <= 60
    api.database.query("update login_failure set locked_until = now() - interval '1 second'")
    assert api.bare().post("/v1/auth/login", json=login).status_code == 200
    counted = "select count(*) from login_failure where failures > 0"
    assert api.database.query(counted) == [(3,)]


def test_many_guesses_at_once_are_counted_one_by_one(api: Any) -> None:
    person(api)

    def guess(number: int) -> int:
        login = {"email": "anna@example.org", "password": f"guess number {number}"}
        status: int = httpx.post(
            f"{api.url}/v1/auth/login", json=login, timeout=60, trust_env=False
        ).status_code
        return status

    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(guess, range(12)))
    assert statuses.count(401) == 5 and statuses.count(429) == 7


def test_a_session_ends_by_idling_age_disabling_and_a_new_password(api: Any) -> None:
    user_id = person(api)
    for change in (
        "update session set last_used_at = now() - interval '13 hours'",
        "update session set expires_at = now() - interval '1 second'",
        'update "user" set disabled_at = now()',
    ):
        client = browser(api)
        assert client.get("/v1/agents").status_code == 200
        api.database.query(change)
        assert client.get("/v1/agents").status_code == 401, change
        api.database.query('update "user" set disabled_at = null')
    first, second = browser(api), browser(api)
    cookie = first.cookies["instar_session"]
    body = {"current": PASSWORD, "new": NEW}
    assert first.post("/v1/auth/password", json={**body, "current": NEW}).status_code == 401
    assert first.post("/v1/auth/password", json={**body, "new": "short"}).status_code == 400
    changed = first.post("/v1/auth/password", json=body)
    assert changed.status_code == 200
    assert first.cookies["instar_session"] != cookie, "rotated"
    assert first.get("/v1/agents").status_code == 200
    assert second.get("/v1/agents").status_code == 401
    old = api.bare().get("/v1/agents", headers={"Cookie": f"instar_session={cookie}"})
    assert old.status_code == 401
    login = {"email": "anna@example.org", "password": PASSWORD}
    assert api.bare().post("/v1/auth/login", json=login).status_code == 401
    third = browser(api, password=NEW)
    assert third.delete("/v1/auth/session?everywhere=true").status_code == 204
    assert first.get("/v1/agents").status_code == 401
    assert api.database.query("select actor from audit_event where action = 'user.password'") == [
        (f"user:{user_id}",)
    ]


def test_use_is_noted_at_most_once_a_minute(api: Any) -> None:
    person(api)
    client, admin = browser(api), api.client("admin")
    client.get("/v1/agents")
    admin.get("/v1/agents")
    for table in ("session", "api_key"):
        moments = f"select last_used_at from {table} where last_used_at is not null"
        before = api.database.query(moments)
        assert len(before) == 1
        client.get("/v1/agents")
        admin.get("/v1/agents")
        assert api.database.query(moments) == before
        earlier = f"update {table} set last_used_at = now() - interval '2 minutes'"
        api.database.query(earlier + " where last_used_at is not null")
        client.get("/v1/agents")
        admin.get("/v1/agents")
        assert api.database.query(moments) > before


def test_s4_a_person_of_two_projects_works_in_one_at_a_time(api: Any, agent_body: Any) -> None:
    user_id = person(api, role="viewer")
    other = api.database.query("select id from project where name = 'other'")[0][0]
    client = browser(api)
    switch = {"project": "other"}
    unknown = client.put("/v1/auth/session", json={"project": "nowhere"})
    foreign = client.put("/v1/auth/session", json=switch)
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.text.replace("other", "nowhere") == unknown.text
    api.database.query(
        "insert into role_binding (project_id, user_id, role) values (%s, %s, 'operator')",
        other,
        user_id,
    )
    ours, theirs = agent_body(version="ours"), agent_body(version="theirs")
    api.client("admin").post("/v1/agents", json={**ours, "label": "production"})
    assert client.post("/v1/agents", json=theirs).status_code == 403
    moved = client.put("/v1/auth/session", json=switch)
    assert moved.json()["project"] == {"id": str(other), "name": "other", "role": "operator"}
    assert client.get("/v1/agents").json()["data"] == []
    assert client.post("/v1/agents", json={**theirs, "label": "production"}).status_code == 201
    for project, word in (("other", "theirs"), ("test", "ours"), ("other", "theirs")):
        client.put("/v1/auth/session", json={"project": project}).raise_for_status()
        text = client.get("/v1/agents/desk/versions/production").text
        assert f"You are version {word}." in text
    api.database.query("delete from role_binding where project_id = %s", other)
    assert client.get("/v1/agents").status_code == 403
    assert client.get("/v1/auth/session").json()["project"] is None


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "[::]", "::ffff:0.0.0.0", "::ffff:10.0.0.1", "0", "", "myhost", "10.0.0.1"],
)
def test_s108_only_loopback_is_listened_on_before_anybody_can_sign_in(
    database: Any, host: str
) -> None:
    app = create_app(Settings(app_database_url=database.app_url, api=ApiSettings(host=host)))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    with pytest.raises(PrerequisiteError, match="nobody who could sign in"):
        asyncio.run(start())


def test_s108_a_person_who_can_sign_in_is_enough_to_listen(database: Any) -> None:
    app = create_app(Settings(app_database_url=database.app_url, api=ApiSettings(host="0.0.0.0")))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    async def make(db: Any) -> None:
        async with db.transaction(database.project_id) as session:
            new = NewUser("anna@example.org", "", await hash_password(PASSWORD))
            await add_user(session, database.project_id, new, "admin", SYSTEM)

    database.run(make)
    database.query('update "user" set disabled_at = now()')
    with pytest.raises(PrerequisiteError):
        asyncio.run(start())
    database.query('update "user" set disabled_at = null')
    asyncio.run(start())
    for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "localhost"):
        free = Settings(app_database_url=database.app_url, api=ApiSettings(host=host))
        database.query('update "user" set disabled_at = now()')
        app = create_app(free)
        asyncio.run(start())
