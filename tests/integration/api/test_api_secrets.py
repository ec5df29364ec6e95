"""Secrets over REST: written, named, never read; and what tool servers are started with."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from instar.store.keyring import KeySource

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
LEAKY = str(Path(__file__).parents[1] / "servers" / "leaky_server.py")
CANARY = "canary-Zq7-8d21f0e4c9"


@pytest.fixture
def keyring(scripts: Path) -> KeySource:
    """The keyring of the live API, as the first start makes it."""
    (scripts.parent / "data").mkdir(exist_ok=True)
    source = KeySource(scripts.parent / "data" / "secrets.keys")
    source.ensure()
    (scripts / "leak.json").write_text(
        json.dumps(
            {
                "rules": [
                    *(
                        {"match": f"^use {tool}", "tool_calls": [{"id": "", **call}]}
                        for tool, call in _CALLS.items()
                    ),
                    {"match": "(?s)(.*)", "reply": "It said: \\1"},
                ]
            }
        )
    )
    return source


_CALLS: dict[str, dict[str, Any]] = {
    name: {"name": name, "arguments": {}}
    for name in ("environment", "arguments", "encoded", "crash")
}


def put_leaky(client: Any, **more: Any) -> dict[str, Any]:
    """Registers the leaky server; the answer."""
    body = {"name": "leaky", "command": "{python}", "args": [LEAKY], **more}
    now = client.get("/v1/mcp-servers/leaky")
    match = {"If-Match": now.headers["ETag"]} if now.status_code == 200 else {}
    answer = client.put("/v1/mcp-servers/leaky", json=body, headers=match)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def run_leaky(client: Any, words: str) -> Any:
    """Lets an agent use the leaky server."""
    body = {
        "name": "spy",
        "components": {"instructions": {"kind": "instructions", "content": "You are a spy."}},
        "harness": {
            "model": "scripted/leak",
            "tools": [{"name": "leaky"}],
            "tool_protocol": "native",
        },
    }
    assert client.post("/v1/agents", json=body).status_code in (200, 201)
    return client.post("/v1/agents/spy/runs", json={"input": words, "version": "latest"})


def stored(api: Any) -> str:
    """Everything that the database holds, as text."""
    tables = api.database.query(
        "select table_name from information_schema.tables where table_schema = 'instar' "
        "and table_type = 'BASE TABLE'"
    )
    rows = [api.database.query(f'select to_jsonb(t)::text from "{name}" t') for (name,) in tables]
    return json.dumps(rows)


def test_s101b_a_secret_is_written_and_never_read(api: Any, keyring: KeySource) -> None:
    admin, operator = api.client("admin"), api.client("operator")
    made = admin.put("/v1/secrets/desk.KEY", json={"value": CANARY})
    assert made.status_code == 200 and made.headers["ETag"] == '"1"'
    shown = made.json()
    assert set(shown) == {
        *("id", "name", "use", "revision", "key_id", "created_by", "created_at", "updated_at")
    }
    assert (shown["use"], shown["key_id"]) == ("production", keyring.read().active)
    one, every = operator.get("/v1/secrets/desk.KEY"), operator.get("/v1/secrets")
    assert one.json() == shown and every.json()["data"] == [shown]
    for answer in (made, one, every, admin.get("/v1/audit")):
        assert CANARY not in answer.text
    assert CANARY not in stored(api) and "secret.put" in stored(api)


def test_only_admins_write_and_viewers_see_nothing(api: Any, keyring: KeySource) -> None:
    for role in ("viewer", "operator", "approver"):
        client = api.client(role)
        assert client.put("/v1/secrets/x", json={"value": CANARY}).status_code == 403
        assert client.delete("/v1/secrets/x").status_code == 403
    assert api.client("viewer").get("/v1/secrets").status_code == 403
    assert api.bare().get("/v1/secrets").status_code == 401
    assert api.client("admin").put("/v1/secrets/x", json={"value": CANARY}).status_code == 200
    assert api.client("other").get("/v1/secrets/x").status_code == 404
    assert api.client("other").get("/v1/secrets").json()["data"] == []


def test_a_change_names_the_revision_that_it_changes(api: Any, keyring: KeySource) -> None:
    client = api.client()
    assert client.put("/v1/secrets/x", json={"value": "first-value"}).status_code == 200

    def put(match: str | None) -> int:
        headers = {} if match is None else {"If-Match": match}
        answer = client.put("/v1/secrets/x", json={"value": CANARY}, headers=headers)
        assert CANARY not in answer.text
        return int(answer.status_code)

    assert put(None) == 428
    assert put('"7"') == 412
    assert client.get("/v1/secrets/x").json()["revision"] == 1
    assert put('"1"') == 200
    assert put("*") == 200
    assert client.get("/v1/secrets/x").json()["revision"] == 3


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("..%2Fx", {"value": CANARY}),
        ("x", {"value": ""}),
        ("x", {"value": f"nul\x00{CANARY}"}),
        ("x", {"value": CANARY, "use": "everywhere"}),
        ("x", {"value": [CANARY]}),
        ("x", {"value": {"k": CANARY}}),
        ("x", {"valeu": CANARY}),
        ("x", {"value": CANARY * 4_000}),
        ("x", [CANARY]),
        ("x" * 200, {"value": CANARY}),
    ],
)
def test_s101_bad_requests_store_nothing_and_quote_no_value(
    api: Any, keyring: KeySource, name: str, body: Any
) -> None:
    answer = api.client().put(f"/v1/secrets/{name}", json=body)
    assert 400 <= answer.status_code < 500, answer.text
    assert CANARY not in answer.text
    assert api.database.query("select count(*) from secret") == [(0,)]


def test_a_missing_key_is_not_ready_and_nothing_is_served(
    api: Any, keyring: KeySource, scripts: Path
) -> None:
    import httpx

    from instar.api.app import create_app
    from instar.settings import Settings

    client = api.client()
    assert client.put("/v1/secrets/x", json={"value": CANARY}).status_code == 200
    lost = keyring.read().active
    settings = Settings(app_database_url=api.database.app_url, data_dir=scripts.parent / "other")

    async def ask() -> list[httpx.Response]:
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as one:
                headers = {"Authorization": f"Bearer {api.keys['admin']}"}
                return [
                    await one.get("/readyz"),
                    await one.get("/v1/agents", headers=headers),
                    await one.get("/healthz"),
                ]

    import asyncio

    ready, served, lives = asyncio.run(ask())
    assert (ready.status_code, served.status_code, lives.status_code) == (503, 503, 200)
    assert "secrets.keys" in ready.json()["checks"]["secrets"]
    assert "secrets.keys" in served.json()["detail"]
    KeySource(scripts.parent / "other.keys").ensure()
    wrong = Settings(
        app_database_url=api.database.app_url,
        secrets={"key_file": scripts.parent / "other.keys"},  # type: ignore[arg-type]
    )
    settings = wrong
    ready, served, _ = asyncio.run(ask())
    assert lost in ready.json()["checks"]["secrets"]
    assert lost in served.json()["detail"] and "ABANDON" in served.json()["detail"]


# Tool servers


def test_s101_secret_values_of_a_registration_are_moved_and_named(
    api: Any, keyring: KeySource
) -> None:
    client = api.client()
    saved = put_leaky(
        client,
        args=[
            *(LEAKY, "--api-key", f"{CANARY}-a", f"--token={CANARY}-b", "--verbose"),
            *("--header", f"Authorization: Bearer {CANARY}-c", f"https://u:{CANARY}-d@h.example/x"),
            *(f"https://h.example/x?q=1&api_key={CANARY}-e", "--level=3", "--mode", "plain"),
        ],
        env={
            "LEAK_KEY": f"{CANARY}-f",
            "DATABASE_URL": f"postgresql://u:{CANARY}-g@db.example/x",
            "DEBUG": "true",
            "KEY_FILE": "/etc/key",
            "OTHER": "sk-abcdefghijklmnopqrstuvwx",
            "ROOT": "{root}/data",
        },
    )
    places = {one["place"]: one["name"] for one in saved["moved"]}
    assert places == {
        "env LEAK_KEY": "leaky.LEAK_KEY",
        "env DATABASE_URL": "leaky.DATABASE_URL",
        "env OTHER": "leaky.OTHER",
        "args[2]": "leaky.api-key",
        "args[3]": "leaky.token",
        "args[6]": "leaky.Authorization",
        "args[7]": "leaky.args7",
        "args[8]": "leaky.args8.api_key",
    }
    assert len(saved["secret_ids"]) == 8
    assert "list of processes" in saved["notices"][0]
    config = api.database.query("select config from mcp_server")[0][0]
    assert CANARY not in json.dumps(config)
    assert config["env"]["DEBUG"] == "true" and config["env"]["KEY_FILE"] == "/etc/key"
    assert config["env"]["DATABASE_URL"].startswith("postgresql://u:${secret:")
    assert config["env"]["DATABASE_URL"].endswith("}@db.example/x")
    assert config["args"][6].startswith("Authorization: Bearer ${secret:")
    assert config["args"][9:] == ["--level=3", "--mode", "plain"]
    for path in ("/v1/mcp-servers", "/v1/mcp-servers/leaky", "/v1/secrets", "/v1/audit"):
        assert CANARY not in client.get(path).text
    assert CANARY not in stored(api)


def test_registering_again_keeps_ids_and_changes_only_what_changed(
    api: Any, keyring: KeySource
) -> None:
    client = api.client()
    assert client.put("/v1/secrets/leaky.B_KEY", json={"value": "mine-alone-1"}).status_code == 200
    first = put_leaky(client, env={"A_KEY": "value-of-a-1", "B_KEY": "value-of-b-1"})
    assert {one["name"] for one in first["moved"]} == {"leaky.A_KEY", "leaky.B_KEY-2"}
    second = put_leaky(client, env={"A_KEY": "value-of-a-1", "B_KEY": "value-of-b-1"})
    third = put_leaky(client, env={"A_KEY": "value-of-a-2", "B_KEY": "${secret:leaky.B_KEY}"})
    ids = {one["name"]: one["id"] for one in first["moved"]}
    assert second["secret_ids"][0] == third["secret_ids"][0] == ids["leaky.A_KEY"]
    names = {row["id"]: row for row in client.get("/v1/secrets").json()["data"]}
    assert names[ids["leaky.A_KEY"]]["revision"] == 2
    assert names[third["secret_ids"][1]]["name"] == "leaky.B_KEY"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"env": {"A": "${secret:nobody}"}}, "there is no secret 'nobody'"),
        ({"command": "${secret:x}"}, "where none can be"),
        ({"cwd": "/${secret:x}"}, "where none can be"),
        (
            {"test_bindings": {"t": {"command": "c", "env": {"A": "${secret:x}"}}}},
            "never used in rollouts",
        ),
        ({"effect_free": True, "args": ["${secret:x}"]}, "secret for production"),
    ],
)
def test_references_that_cannot_be_are_refused(
    api: Any, keyring: KeySource, change: dict[str, Any], words: str
) -> None:
    client = api.client()
    assert client.put("/v1/secrets/x", json={"value": CANARY}).status_code == 200
    body = {"name": "leaky", "command": "{python}", **change}
    answer = client.put("/v1/mcp-servers/leaky", json=body)
    assert answer.status_code == 400 and words in answer.json()["detail"], answer.text
    assert client.get("/v1/mcp-servers").json() == []


def test_a_test_bindings_values_are_kept_for_rollouts(api: Any, keyring: KeySource) -> None:
    client = api.client()
    binding = {"command": "{python}", "args": ["x"], "env": {"API_KEY": f"{CANARY}-t"}}
    saved = put_leaky(client, test_bindings={"sandbox": binding}, env={"API_KEY": f"{CANARY}-p"})
    uses = {row["name"]: row["use"] for row in client.get("/v1/secrets").json()["data"]}
    assert uses == {"leaky.sandbox.API_KEY": "rollouts", "leaky.API_KEY": "production"}
    assert saved["moved"][1]["place"] == "test binding sandbox: env API_KEY"


def test_a_used_secret_is_deleted_by_force_alone_and_the_server_says_its_name(
    api: Any, keyring: KeySource
) -> None:
    client = api.client()
    put_leaky(client, env={"LEAK_KEY": CANARY})
    refused = client.delete("/v1/secrets/leaky.LEAK_KEY")
    assert refused.status_code == 409 and "'leaky'" in refused.json()["detail"]
    assert client.delete("/v1/secrets/leaky.LEAK_KEY?force=true").status_code == 204
    assert client.get("/v1/secrets/leaky.LEAK_KEY").status_code == 404
    answer = run_leaky(client, "use environment")
    assert answer.status_code == 400
    assert "the secret 'leaky.LEAK_KEY' was deleted" in answer.json()["detail"]


def forms(value: str) -> list[str]:
    data = value.encode()
    return [value, value[::-1], data.hex(), base64.b64encode(data).decode()]


def test_s101_what_a_server_tells_is_masked_for_model_caller_and_store(
    api: Any, keyring: KeySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = "provider-key-0f9e8d7c6b"
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", provider)
    client = api.client()
    put_leaky(client, env={"LEAK_KEY": CANARY}, args=[LEAKY, "--api-key", f"{CANARY}-arg"])
    for words in ("use environment", "use arguments", "use encoded"):
        answer = run_leaky(client, words)
        assert answer.status_code == 200, answer.text
        text = answer.text + client.get(f"/v1/runs/{answer.json()['id']}").text
        assert "[redacted]" in text, words
        for form in (*forms(CANARY), provider, api.database.app_url):
            assert form not in text, (words, form)
    assert CANARY not in stored(api)


def test_a36_errors_of_servers_carry_no_secret(
    api: Any, keyring: KeySource, capfd: pytest.CaptureFixture[str]
) -> None:
    client = api.client()
    put_leaky(client, env={"LEAK_KEY": CANARY})
    died = run_leaky(client, "use crash")
    put_leaky(client, env={"LEAK_KEY": CANARY}, args=[LEAKY, "--refuse", "--token", f"{CANARY}-2"])
    refused = run_leaky(client, "use environment")
    for answer in (died, refused):
        assert answer.status_code == 502, answer.text
        assert "[redacted]" in answer.text and "last words" in answer.text
        assert CANARY not in answer.text
    assert CANARY not in stored(api)
    heard = capfd.readouterr()
    assert CANARY not in heard.out + heard.err


def test_a37_a_server_gets_its_secret_and_nothing_of_ours(
    api: Any,
    keyring: KeySource,
    scripts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = {
        "INSTAR_APP_DATABASE_URL": "postgresql://instar_app:xyzxyzxyz@/instar",
        "INSTAR_REDIS_URL": "redis://:xyzxyzxyz@127.0.0.1:1/0",
        "INSTAR_APP_PASSWORD": "xyzxyzxyz",
        "INSTAR_API_KEY": "instar_xyzxyzxyz",
        "INSTAR_SECRETS__KEY_FILE": "/xyzxyzxyz",
        "OPENAI_API_KEY": "xyzxyzxyz",
        "ANTHROPIC_API_KEY": "xyzxyzxyz",
        "DATABASE_URL": "postgresql://owner:xyzxyzxyz@/instar",
        "LD_PRELOAD_UNKNOWN": "xyzxyzxyz",
    }
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    kept = tmp_path / "kept.json"
    call = {"name": "keep", "arguments": {"path": str(kept)}}
    rules = [{"match": "^go", "tool_calls": [{"id": "", **call}]}, {"reply": "done"}]
    (scripts / "leak.json").write_text(json.dumps({"rules": rules}))
    client = api.client()
    put_leaky(client, env={"LEAK_KEY": CANARY, "PLAIN": "plain"})
    assert run_leaky(client, "go").status_code == 200
    seen = json.loads(kept.read_text())
    assert seen["env"]["LEAK_KEY"] == CANARY and seen["env"]["PLAIN"] == "plain"
    allowed = {
        *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "TMPDIR", "TZ", "LEAK_KEY", "PLAIN"),
        *("LC_ALL", "PYTHONIOENCODING", "LC_CTYPE"),
    }
    assert set(seen["env"]) <= allowed
    assert "xyzxyzxyz" not in json.dumps(seen)
    # What it was started with is in its own memory, and on no command line.
    assert CANARY not in json.dumps(seen["argv"])


def test_a_changed_secret_reaches_the_next_run(
    api: Any, keyring: KeySource, scripts: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    call = {"name": "keep", "arguments": {"path": str(kept)}}
    rules = [{"match": "^go", "tool_calls": [{"id": "", **call}]}, {"reply": "done"}]
    (scripts / "leak.json").write_text(json.dumps({"rules": rules}))
    client = api.client()
    put_leaky(client, env={"LEAK_KEY": "value-number-1"})
    assert run_leaky(client, "go").status_code == 200
    assert json.loads(kept.read_text())["env"]["LEAK_KEY"] == "value-number-1"
    changed = client.put(
        "/v1/secrets/leaky.LEAK_KEY",
        json={"value": "value-number-2"},
        headers={"If-Match": '"1"'},
    )
    assert changed.status_code == 200
    assert run_leaky(client, "go").status_code == 200
    assert json.loads(kept.read_text())["env"]["LEAK_KEY"] == "value-number-2"


def test_a_task_set_brings_no_secret_along(api: Any, keyring: KeySource) -> None:
    def body(env: dict[str, str]) -> dict[str, Any]:
        binding = {"command": sys.executable, "env": env}
        lines: list[dict[str, Any]] = [{"task_set": {"bindings": {"leaky": binding}}}]
        for number, split in enumerate(("train", "validation", "sealed")):
            verifier = {"name": "exact", "config": {"answer": "x"}}
            task = {"id": f"t{number}", "input": f"{number}", "group": f"g{number}"}
            lines.append({**task, "split": split, "verifier": verifier})
        return {"name": "t", "jsonl": "\n".join(map(json.dumps, lines))}

    client = api.client()
    refused = client.post("/v1/task-sets", json=body({"API_KEY": CANARY}))
    assert refused.status_code == 400, refused.text
    assert "looks like a secret" in refused.json()["detail"] and "API_KEY" in refused.text
    assert CANARY not in refused.text
    assert client.get("/v1/task-sets/t").status_code == 404
    # The same set without the value is taken, so it was the value that was refused.
    assert client.post("/v1/task-sets", json=body({"MODE": "quiet"})).status_code == 201
