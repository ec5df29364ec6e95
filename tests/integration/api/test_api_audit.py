"""The audit trail over REST and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from instar.audit.keys import ensure_signing_key
from instar.cli.main import app
from instar.embedded.layout import Layout
from instar.settings import Settings, load_settings
from instar.store.testing import APP_PASSWORD
from instar_core.errors import NotFoundError

if TYPE_CHECKING:
    from tests.integration.api.conftest import LiveApi
else:
    LiveApi = Any


@pytest.fixture
def keyed(api: LiveApi, scripts: Path, monkeypatch: pytest.MonkeyPatch) -> LiveApi:
    """A live API whose installation has a signing key; the command line talks to it."""
    ensure_signing_key(Settings(data_dir=scripts.parent / "data"))
    api.database.query("update api_key set instance = true where name = 'admin'")
    monkeypatch.setenv("INSTAR_URL", api.url)
    monkeypatch.setenv("INSTAR_API_KEY", api.keys["admin"])
    monkeypatch.setenv("INSTAR_DATA_DIR", str(scripts.parent / "data"))
    monkeypatch.setenv("INSTAR_APP_DATABASE_URL", api.database.app_url)
    load_settings.cache_clear()
    return api


def _run(*words: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, ["audit", *words, "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, json.loads(result.stdout)


def test_events_are_listed_newest_first_page_by_page(keyed: LiveApi, agent_body: Any) -> None:
    client = keyed.client()
    for version in ("one", "two", "three"):
        assert client.post("/v1/agents", json=agent_body(version=version)).status_code == 201
    found = client.get("/v1/audit").json()["data"]
    assert [event["stream"] for event in found] == ["admin"] * len(found)
    numbers = [event["seq"] for event in found]
    assert numbers == sorted(numbers, reverse=True) and numbers[-1] == 1
    paged, after = [], None
    while True:
        query = {"limit": 2} | ({"after": after} if after else {})
        page = client.get("/v1/audit", params=query).json()
        paged += page["data"]
        after = page["next"]
        if after is None:
            break
    assert paged == found
    first = found[-1]
    for column in ("action", "actor", "subject"):
        some = client.get("/v1/audit", params={column: first[column]}).json()["data"]
        assert some and {event[column] for event in some} == {first[column]}
    assert client.get("/v1/audit", params={"stream": "nowhere"}).json()["data"] == []
    later = client.get("/v1/audit", params={"since": found[0]["at"]}).json()["data"]
    assert later == found[:1]
    assert client.get("/v1/audit", params={"after": "x"}).status_code == 400
    assert client.get("/v1/audit", params={"since": "2026-01-01"}).status_code == 422


def test_only_admins_see_the_audit_trail(keyed: LiveApi) -> None:
    for role in ("viewer", "operator", "approver"):
        for path in ("/v1/audit", "/v1/audit/verify", "/v1/audit/key"):
            assert keyed.client(role).get(path).status_code == 403
    # Another project's admin sees that project's own trail and may not touch the installation's.
    other = keyed.client("other")
    assert {event["subject"] for event in other.get("/v1/audit").json()["data"]}.isdisjoint(
        event["subject"] for event in keyed.client().get("/v1/audit").json()["data"]
    )
    assert other.post("/v1/audit/key/rotate").status_code == 403
    assert other.post("/v1/audit/accept-restore", json={"reason": "x"}).status_code == 403


def test_the_command_line_seals_and_verifies(keyed: LiveApi, tmp_path: Path) -> None:
    code, sealed = _run("checkpoint")
    assert code == 0 and [one["seq"] for one in sealed["checkpoints"]] == [1]
    assert _run("checkpoint")[1] == {"checkpoints": []}
    code, report = _run("verify")
    assert code == 0 and report["ok"] is True
    assert report["rows"] == 4 and report["checkpoints"] == 1 and report["outside"] == 1
    assert _run("verify", "--project", "test") == (0, report)

    pem = tmp_path / "key.pem"
    pem.write_text(_run("key")[1]["public_key"])
    assert _run("verify", "--public-key", str(pem)) == (0, report)
    events = _run("list", "--limit", "2")[1]
    assert [event["seq"] for event in events] == [4, 3]


def test_the_trail_is_verified_beside_the_database_while_the_service_is_away(
    keyed: LiveApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = _run("verify")[1]
    monkeypatch.setenv("INSTAR_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("INSTAR_APP_DATABASE_URL")
    monkeypatch.setenv("DATABASE_URL", keyed.database.owner_url)
    layout = Layout(load_settings().data_dir)
    layout.secrets.write_text(json.dumps({"app_password": APP_PASSWORD}))
    load_settings.cache_clear()
    assert _run("verify", "--project", "test") == (0, report)
    with pytest.raises(NotFoundError, match="See `instar project list`"):
        _run("verify", "--project", "tset")


def test_a_bad_row_is_named_with_exit_code_1(keyed: LiveApi) -> None:
    _run("checkpoint")
    keyed.database.query("update audit_event set actor = 'nobody' where seq = 2")
    code, report = _run("verify")
    identity = str(keyed.database.query("select id from audit_event where seq = 2 limit 1")[0][0])
    assert code == 1 and report["ok"] is False
    assert {**report["bad"], "what": ""} == {
        "stream": "admin",
        "seq": 2,
        "id": identity,
        "what": "",
    }
    words = CliRunner().invoke(app, ["audit", "verify"])
    assert words.exit_code == 1 and f"admin row 2 ({identity})" in words.stdout


def test_a_copy_kept_elsewhere_is_held_against_the_database(
    keyed: LiveApi, scripts: Path, tmp_path: Path
) -> None:
    _run("checkpoint")
    copy = scripts.parent / "data" / "audit" / f"{keyed.project_id}.jsonl"
    before = copy.read_bytes()
    client = keyed.client()
    assert client.post("/v1/api-keys", json={"name": "k", "role": "viewer"}).status_code == 201
    _run("checkpoint")
    kept = tmp_path / "kept.jsonl"
    kept.write_bytes(copy.read_bytes())
    assert _run("verify", "--checkpoints", str(kept))[0] == 0
    # The attacker sets back the database and the copy on the server; the kept one knows more.
    keyed.database.query("delete from audit_checkpoint where seq = 2")
    keyed.database.query("delete from audit_event where seq = 5")
    keyed.database.query(
        "update audit_head h set seq = e.seq, hash = e.hash, at = e.created_at from audit_event e "
        "where e.project_id = h.project_id and e.seq = 4"
    )
    keyed.database.query("update audit_sealed set seq = 4")
    copy.write_bytes(before)
    assert _run("verify")[0] == 0
    code, report = _run("verify", "--checkpoints", str(kept))
    assert code == 1 and report["bad"]["seq"] == 5 and report["bad"]["stream"] == "admin"


def test_a_rotated_key_leaves_old_checkpoints_valid(keyed: LiveApi, tmp_path: Path) -> None:
    _run("checkpoint")
    pem = tmp_path / "old.pem"
    old = _run("key")[1]
    pem.write_text(old["public_key"])
    new = _run("key", "--rotate")[1]
    assert new["key_id"] != old["key_id"] and _run("key")[1] == new
    sealed = _run("checkpoint")[1]["checkpoints"]
    assert [one["key_id"] for one in sealed] == [new["key_id"]]
    assert _run("verify")[0] == 0
    # Whoever kept the old key trusts the new one, which it signed.
    assert _run("verify", "--public-key", str(pem))[0] == 0
    assert _run("list", "--action", "audit.rotate_key")[1][0]["subject"] == f"key/{old['key_id']}"


def test_a_foreign_key_verifies_nothing(keyed: LiveApi, tmp_path: Path) -> None:
    _run("checkpoint")
    pem = tmp_path / "foreign.pem"
    pem.write_text(ensure_signing_key(Settings(data_dir=tmp_path / "else")).public.pem)
    code, report = _run("verify", "--public-key", str(pem))
    assert code == 1 and "not trusted" in report["bad"]["what"]
    pem.write_text("no key at all")
    answer = keyed.client().post("/v1/audit/verify", json={"public_keys": ["no key"]})
    assert answer.status_code == 400 and "instar audit key" in answer.json()["detail"]


def test_nothing_is_accepted_where_nothing_was_set_back(keyed: LiveApi) -> None:
    _run("checkpoint")
    assert _run("accept-restore", "--reason", "why not")[1]["accepted"] is False
