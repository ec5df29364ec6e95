"""Commands for people, keys and projects against a live service, and where passwords come from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from instar.cli.main import app
from instar.store.audit import SYSTEM
from instar.store.projects import NewKey, create_api_key

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
PASSWORD = "plum kettle orbit 7"


@pytest.fixture(autouse=True)
def _service(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands talk to the live API, with the right over the installation."""

    async def make(db: Any) -> str:
        async with db.transaction(api.project_id) as session:
            new = NewKey("machine", "admin", instance=True)
            return (await create_api_key(session, api.project_id, new, SYSTEM)).key

    monkeypatch.setenv("INSTAR_URL", api.url)
    monkeypatch.setenv("INSTAR_API_KEY", api.database.run(make))


def run(*words: str, given: str = "") -> Result:
    """What a command did."""
    return CliRunner().invoke(app, list(words), input=given)


def told(*words: str, given: str = "") -> Any:
    """The JSON that a command printed."""
    done = run(*words, "--json", given=given)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_a_person_is_added_led_and_removed_by_commands(api: Any) -> None:
    made = told("user", "add", "Anna@example.org", "--admin", given=PASSWORD + "\n")
    assert (made["role"], made["instance"]) == ("admin", True)
    login = {"email": "anna@example.org", "password": PASSWORD}
    assert api.bare().post("/v1/auth/login", json=login).status_code == 200
    assert [one["email"] for one in told("user", "list")] == ["Anna@example.org"]
    assert told("user", "role", "anna@EXAMPLE.org", "approver")["role"] == "approver"
    told("user", "password", "anna@example.org", given="quiet amber ladder 3\n")
    assert api.bare().post("/v1/auth/login", json=login).status_code == 401
    assert told("user", "disable", "anna@example.org")["disabled"] is True
    told("user", "remove", "anna@example.org")
    assert "(none)" in run("user", "list").output
    missing = run("user", "role", "anna@example.org", "viewer")
    assert missing.exit_code != 0 and "has a role in this project" in str(missing.exception)


def test_a_password_never_comes_from_the_command_line(api: Any) -> None:
    for command in ("add", "password"):
        assert run("user", command, "anna@example.org", "--password", PASSWORD).exit_code == 2
        assert run("user", command, "anna@example.org", PASSWORD).exit_code == 2
    refused = run("user", "add", "anna@example.org")
    assert "no password on standard input" in str(refused.exception)
    done = run("user", "add", "anna@example.org", given=PASSWORD + "\n")
    assert done.exit_code == 0 and PASSWORD not in done.output
    assert api.database.query("select role from role_binding") == [("viewer",)]


def test_a_key_is_made_narrow_listed_without_its_secret_and_revoked(api: Any) -> None:
    words = ("--role", "viewer", "--scope", "runs:read", "--days", "2", "--agent", "desk")
    made = told("key", "create", "ci", *words)
    (shown,) = [one for one in told("key", "list") if one["id"] == made["id"]]
    assert (shown["role"], shown["scopes"], shown["agent"]) == ("viewer", ["runs:read"], "desk")
    assert shown["expires_at"] and made["key"] not in run("key", "list").output
    client = api.bare()
    client.headers["Authorization"] = f"Bearer {made['key']}"
    assert client.get("/v1/auth/session").status_code == 200
    told("key", "revoke", made["id"])
    assert client.get("/v1/auth/session").status_code == 401


def test_a_project_is_made_with_its_first_key(monkeypatch: pytest.MonkeyPatch) -> None:
    made = told("project", "create", "sales")
    assert [one["name"] for one in told("project", "list")] == ["test"]
    monkeypatch.setenv("INSTAR_API_KEY", made["key"])
    assert told("project", "list") == [{"id": made["id"], "name": "sales", "role": "admin"}]
