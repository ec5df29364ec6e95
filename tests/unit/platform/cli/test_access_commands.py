"""Commands for people, keys and projects: what they ask for, and where a password may come from."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from instar.cli import access
from instar.cli.main import app


class Recorder:
    """Stands where the service would be, and keeps what it was asked."""

    sent: list[tuple[str, str, Any]] = []

    def post(self, path: str, body: Any = None) -> Any:
        """Keeps a POST."""
        self.sent.append(("POST", path, body))
        return {"email": "anna@example.org", "role": "admin", "id": "1", "key": "instar_k"}

    def put(self, path: str, body: Any = None, *, match: str | None = None) -> Any:
        """Keeps a PUT with its precondition."""
        self.sent.append(("PUT", path, {**body, "match": match}))
        return {"email": "anna@example.org", **body}

    def pages(self, path: str) -> Any:
        """One person."""
        yield {"id": "7", "email": "Anna@example.org", "role": "viewer"}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any]]:
    """What the commands send."""
    monkeypatch.setattr(access, "Client", Recorder)
    monkeypatch.setattr(Recorder, "sent", [])
    return Recorder.sent


def test_a_password_comes_from_standard_input_and_never_from_the_command_line(
    sent: list[tuple[str, str, Any]],
) -> None:
    runner = CliRunner()
    words = ["user", "add", "anna@example.org", "--admin"]
    done = runner.invoke(app, words, input="plum kettle orbit 7\n")
    assert done.exit_code == 0, done.output
    assert sent == [
        (
            "POST",
            "/v1/users",
            {
                "email": "anna@example.org",
                "name": "",
                "role": "admin",
                "password": "plum kettle orbit 7",
                "instance": True,
            },
        )
    ]
    assert "plum" not in done.output
    for command in ("add", "password"):
        told = runner.invoke(app, ["user", command, "anna@example.org", "--password", "x"])
        assert told.exit_code == 2, "there is no such option"
    refused = runner.invoke(app, words, input="")
    assert refused.exit_code != 0 and "no password on standard input" in str(refused.exception)


def test_a_role_changes_from_the_one_that_was_seen(sent: list[tuple[str, str, Any]]) -> None:
    done = CliRunner().invoke(app, ["user", "role", "anna@EXAMPLE.org", "approver"])
    assert done.exit_code == 0, done.output
    assert sent == [("PUT", "/v1/users/7/role", {"role": "approver", "match": '"viewer"'})]


def test_a_key_is_asked_for_with_its_bounds(sent: list[tuple[str, str, Any]]) -> None:
    words = ["key", "create", "ci", "--role", "viewer", "--scope", "runs:read", "--days", "2"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    ((_, path, body),) = sent
    assert path == "/v1/api-keys" and body["scopes"] == ["runs:read"]
    assert body["expires_at"].endswith("+00:00")
