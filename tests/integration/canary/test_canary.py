"""The canary: a secret in every field that takes one, then everything is searched for them.

What a whole service writes, says and shows is searched for every canary, in the clear and in the
usual encodings (A36, A37, S101).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
import redis

from instar.embedded.layout import Layout
from instar.embedded.postgres import PostgresServer
from instar.redaction.encodings import forms_of
from instar.store.audit import SYSTEM
from instar.store.session import Database
from instar.store.system import list_projects
from instar.store.task_sets import create_task_set
from instar_evolvers.worlds import open_world

if TYPE_CHECKING:
    from tests.integration.canary.conftest import Planted

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
LEAKY = str(Path(__file__).parents[1] / "servers" / "leaky_server.py")
WORLD = "world:planted:seed=7,train=40,validation=20,sealed=60"
KEY_FILES = {"api.key", "secrets.json", "secrets.keys", "audit_signing.key", "superuser.password"}
KEY_FILES |= {"broker.conf"}


def plant_by_hand(service: Planted, client: httpx.Client) -> None:
    """Secrets, tool servers, people, keys, sessions: each field with a canary of its own."""
    put = client.put("/v1/secrets/mine", json={"value": service.plant("secret")})
    assert service.see("secret", put).status_code == 200
    said = service.command("secret", "set", "typed", given=service.plant("typed") + "\n")
    assert "revision 1" in said, said
    wrong = {"value": service.plant("secret-refused"), "use": "everywhere"}
    assert service.see("wrong secret", client.put("/v1/secrets/x", json=wrong)).status_code == 422
    server = {
        "name": "leaky",
        "command": "{python}",
        "args": [LEAKY],
        "env": {
            "LEAK_KEY": service.plant("server-env"),
            "DSN": f"postgresql://u:{service.plant('server-url')}@db.example/x",
            "OPAQUE": "Qx8" + service.plant("server-opaque").replace("-", ""),
        },
    }
    service.canaries["server-opaque"] = "Qx8" + service.canaries["server-opaque"].replace("-", "")
    put = client.put("/v1/mcp-servers/leaky", json=server)
    assert service.see("server", put).status_code == 200, put.text
    never_started = {
        "name": "refusing",
        "command": "{python}",
        "args": [
            *(LEAKY, "--refuse", "--token", service.plant("server-option")),
            *("-H", f"Authorization: Bearer {service.plant('server-header')}"),
            f"https://h.example/?api_key={service.plant('server-query')}",
        ],
        "test_bindings": {
            "t": {
                "command": "{python}",
                "args": [LEAKY],
                "env": {"API_KEY": service.plant("binding")},
            }
        },
    }
    put = client.put("/v1/mcp-servers/refusing", json=never_started)
    assert service.see("server", put).status_code == 200, put.text
    person = {
        "email": "a@example.org",
        "role": "operator",
        "password": service.plant("password"),
    }
    assert service.see("person", client.post("/v1/users", json=person)).status_code == 201
    made = client.post("/v1/api-keys", json={"name": "k", "role": "viewer"})
    assert made.status_code == 201
    service.canaries["api-key"] = made.json()["key"]


def sign_in(service: Planted) -> None:
    """Right and wrong passwords, and what is done with the session."""
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as browser:
        login = {"email": "a@example.org", "password": service.canaries["password"]}
        right = browser.post("/v1/auth/login", json=login)
        assert right.status_code == 200, right.text
        service.canaries["session"] = next(iter(browser.cookies.values()))
        # Its token is for the page alone and shown to the one who signs in.
        service.canaries["csrf"] = right.json()["csrf_token"]
        browser.get("/v1/auth/session")
        wrong = {**login, "password": service.plant("wrong-password")}
        service.see("wrong password", browser.post("/v1/auth/login", json=wrong))
        service.see("wrong form", browser.post("/v1/auth/login", json={"password": [wrong]}))
        service.see("oidc", browser.get("/v1/auth/oidc/login"))
        service.see("oidc back", browser.get("/v1/auth/oidc/callback?code=x&state=y"))


def every_route(service: Planted, client: httpx.Client) -> None:
    """Every route of the document, with a canary as its credential, and with odd bodies."""
    document = service.see("openapi", client.get("/openapi.json")).json()
    bearer, cookie = service.plant("bearer"), service.plant("cookie")
    credentials: list[dict[str, str]] = [
        {"Authorization": f"Bearer {bearer}"},
        {"Authorization": f"Basic {bearer}"},
        {"Authorization": bearer},
        {"Cookie": f"instar_session={cookie}; other={cookie}"},
    ]
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as nobody:
        for path, methods in document["paths"].items():
            place = re.sub(r"\{[^}]*\}", "01a22c86-43c0-7323-88b2-dcb8696fca17", path)
            for method, operation in methods.items():
                if path.startswith("/v1/auth/"):
                    continue
                secret = {"password": bearer, "value": bearer, "api_key": bearer}
                body = secret if "requestBody" in operation else None
                for headers in credentials:
                    request = nobody.build_request(method, place, headers=headers, json=body)
                    service.see(f"{method} {place}", nobody.send(request))
                if body is not None and method != "delete":
                    # The right credential and fields that nobody knows.
                    request = client.build_request(method, place, json={"nobody": secret})
                    service.see(f"{method} {place}", client.send(request))


def provoke(service: Planted, client: httpx.Client) -> None:
    """Runs whose servers and models tell what they must not."""
    for model, tools, status in (
        ("scripted/env", ["leaky"], 200),
        ("scripted/die", ["leaky"], 502),
        ("scripted/env", ["refusing"], 502),
        ("openai/gpt-4o", [], None),
        ("openai/other", [], None),
        ("scripted/forms", ["leaky"], 200),
    ):
        agent = {
            "name": "spy",
            "components": {"instructions": {"kind": "instructions", "content": "You spy."}},
            "harness": {
                "model": model,
                "tools": [{"name": name} for name in tools],
                "tool_protocol": "native" if tools else "none",
            },
        }
        made = client.post("/v1/agents", json=agent)
        assert made.status_code == 201, made.text
        run = client.post("/v1/agents/spy/runs", json={"input": "go", "version": "latest"})
        assert service.see(model, run).status_code == (status or run.status_code), run.text
        assert run.status_code < 500 or run.status_code in (502, 503)
        if model != "openai/other":
            assert "[redacted]" in run.text, (model, run.text)
        with client.stream(
            "POST",
            "/v1/chat/completions",
            json={
                "model": "agent/spy@latest",
                "stream": True,
                "messages": [{"role": "user", "content": "go"}],
            },
        ) as stream:
            service.evidence[f"stream {model} {tools}"] = stream.read().decode()
    # One of them is running now, with its secret in its environment.
    service.evidence["process lists"] = "\n".join(command_lines(service))


def command_lines(service: Planted) -> list[str]:
    """The command lines of everything that the service runs."""
    status = json.loads((service.data_dir / "status.json").read_text())
    supervisor = psutil.Process(status["pid"])
    found = [supervisor, *supervisor.children(recursive=True)]
    lines = []
    for process in found:
        try:
            lines.append(f"{process.pid} {process.cmdline()}")
        except psutil.NoSuchProcess:
            continue
    assert any("uvicorn" in line for line in lines) and any("leaky" in line for line in lines)
    return lines


def work(service: Planted, client: httpx.Client) -> None:
    """A night: a job, its bell in the broker, its events."""
    world = open_world(WORLD)
    seed = world.seed_candidate().model_dump(mode="json")
    body = {key: seed[key] for key in ("components", "harness")}
    made = client.post("/v1/agents", json={"name": "router", "label": "production", **body})
    assert made.status_code == 201, made.text
    asyncio.run(_save_tasks(service, [task for split in world.tasks() for task in split]))
    worker = _pid(service, "worker")
    os.kill(worker, signal.SIGSTOP)
    try:
        spec = {
            "agent": "router",
            "task_set": "cases",
            "evolver": "tf_grpo",
            "evolver_config": {"search_rollouts": 200},
            "seed": 3,
        }
        run = service.see("run", client.post("/v1/evolution/runs", json=spec))
        assert run.status_code == 201, run.text
        service.evidence["broker"] = _broker(service)
        assert run.json()["id"], "and its bell waits:"
        assert "instar.run_job" in service.evidence["broker"]
    finally:
        os.kill(worker, signal.SIGCONT)
    now: dict[str, Any] = {}
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        now = client.get(f"/v1/evolution/runs/{run.json()['id']}").json()
        if now["state"] not in ("queued", "running", "interrupted"):
            return
        time.sleep(0.2)
    raise AssertionError(f"the night did not end: {now}")


async def _save_tasks(service: Planted, tasks: list[Any]) -> None:
    db = Database(Layout(service.data_dir).app_database_url(), pool_size=1)
    async with db.system() as session:
        (project_id,) = await list_projects(session)
    async with db.transaction(project_id) as session:
        await create_task_set(session, project_id, "cases", tasks, author=SYSTEM)
    await db.close()


def _pid(service: Planted, name: str) -> int:
    status = json.loads((service.data_dir / "status.json").read_text())
    return int(next(one["pid"] for one in status["services"] if one["name"] == name))


def _broker(service: Planted) -> str:
    """Everything that the broker holds, once the bell of the job is in it."""
    status = json.loads((service.data_dir / "status.json").read_text())
    address = next(one["address"] for one in status["services"] if one["name"] == "broker")
    port = int(re.findall(r":(\d+)", address)[0])
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=port).ping()
    password = Layout(service.data_dir).read_secrets().broker_password
    link = redis.Redis(port=port, password=password)
    found: list[str] = []
    deadline = time.monotonic() + 30
    while "instar.run_job" not in str(found) and time.monotonic() < deadline:
        found = []
        for key in link.scan_iter():
            kind = link.type(key)
            if kind == b"list":
                found.append(f"{key!r} {link.lrange(key, 0, -1)}")
            elif kind == b"hash":
                found.append(f"{key!r} {link.hgetall(key)}")
    link.close()
    return "\n".join(found)


def read_everything(service: Planted, client: httpx.Client) -> None:
    """Every GET, once with each id that a list names; exports; the database; the files."""
    document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        if "get" not in methods or path.endswith("/stream") or "/auth/" in path:
            continue
        for place in _filled(client, path):
            service.see(f"GET {place}", client.get(place))
    for body in ({}, {"trajectories": True}, {"trajectories": True, "redact": True}):
        export = client.post("/v1/export", json=body)
        if export.status_code == 200:
            service.evidence[f"export {body}"] = _unpacked(export.content)
    backup = service.data_dir.parent / "backup.age"
    passphrase = service.data_dir.parent / "passphrase"
    passphrase.write_text(service.plant("passphrase") + "\n")
    passphrase.chmod(0o600)
    service.command("backup", str(backup), "--passphrase-file", str(passphrase))
    if backup.exists():
        service.evidence["backup"] = backup.read_bytes().decode("latin-1")
    for words in (["secret", "list"], ["secret", "key"], ["audit", "list"], ["status"]):
        service.command(*words)
    with service.superuser() as connection:
        tables = connection.execute(
            "select table_name from information_schema.tables where table_schema = 'instar' "
            "and table_type = 'BASE TABLE'"
        ).fetchall()
        for (name,) in tables:
            rows = connection.execute(
                f'select to_jsonb(t)::text from instar."{name}" t'.encode()
            ).fetchall()
            service.evidence[f"table {name}"] = "\n".join(str(row[0]) for row in rows)
    for path in files(service):
        if path.name not in KEY_FILES:
            service.evidence[str(path)] = path.read_bytes().decode("latin-1")


def _unpacked(archive: bytes) -> str:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        parts = [opened.extractfile(member) for member in opened.getmembers()]
        return "\n".join(part.read().decode("latin-1") for part in parts if part is not None)


def _filled(client: httpx.Client, path: str) -> list[str]:
    """A path with parameters, filled with what the list above it names."""
    if "{" not in path:
        return [path]
    above = path[: path.index("/{")]
    listed = client.get(above)
    rows = listed.json() if listed.status_code == 200 else []
    rows = rows.get("data", []) if isinstance(rows, dict) else rows
    names = [row.get("id") or row.get("name") for row in rows if isinstance(row, dict)]
    names += [row["name"] for row in rows if isinstance(row, dict) and row.get("name")]
    filled = [re.sub(r"\{[^}]*\}", str(name), path, count=1) for name in dict.fromkeys(names)]
    return [re.sub(r"\{[^}]*\}", "1", one) for one in filled]


def files(service: Planted) -> list[Path]:
    """The files of the data directory, without the database's own."""
    return [
        path
        for path in service.data_dir.rglob("*")
        if path.is_file() and not {"cluster", "binaries"} & set(path.parts)
    ]


def add_own_secrets(service: Planted) -> None:
    """What the installation itself must not let out."""
    layout = Layout(service.data_dir)
    own = layout.read_secrets()
    service.canaries |= {
        "app password": own.app_password,
        "broker password": own.broker_password,
        "machine key": layout.api_key.read_text().strip(),
        "superuser": PostgresServer(layout.postgres).password,
    }
    for key_id, entry in json.loads((service.data_dir / "secrets.keys").read_text())[
        "keys"
    ].items():
        service.canaries[f"secret key {key_id}"] = entry["key"]


def leaks(service: Planted) -> list[str]:
    """Where any canary is, in any form."""
    found = []
    for where, value in service.canaries.items():
        for form in forms_of(value):
            for place, text in service.evidence.items():
                at = text.find(form)
                if at >= 0:
                    around = text[max(0, at - 80) : at].replace("\n", " ")
                    found.append(f"{where} in {place}: …{around}<here>")
    return found


def test_a36_s101_a_secret_in_every_field_is_nowhere_in_the_clear(service: Planted) -> None:
    with service.client() as client:
        plant_by_hand(service, client)
        sign_in(service)
        every_route(service, client)
        provoke(service, client)
        work(service, client)
        add_own_secrets(service)
        # Shown once, to who made it; not evidence.
        service.evidence.pop("instar up --detach --json")
        read_everything(service, client)
    said = service.command("secret", "rotate", "--prune")
    assert "moved to the key" in said and "dropped: " in said, said
    for key_id, entry in json.loads((service.data_dir / "secrets.keys").read_text())[
        "keys"
    ].items():
        service.canaries[f"secret key {key_id}"] = entry["key"]
    service.command("down")
    for path in (service.data_dir / "logs").glob("*"):
        service.evidence[f"{path.name} at the end"] = path.read_text()
    assert {"broker", "process lists", "table secret", "backup"} <= set(service.evidence)
    assert len(service.canaries) > 20 and len(service.evidence) > 100
    assert leaks(service) == []
    service.evidence = {"the search finds what is there": service.canaries["secret"][::-1]}
    assert len(leaks(service)) == 1


def test_a37_nothing_of_the_service_is_open_to_others(service: Planted) -> None:
    for path in files(service):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} has mode {mode:o}"
    status = json.loads((service.data_dir / "status.json").read_text())
    supervisor = psutil.Process(status["pid"])
    for process in [supervisor, *supervisor.children(recursive=True)]:
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                assert connection.laddr.ip == "127.0.0.1", f"{process.cmdline()} listens openly"
        if "postgres" in process.name():
            assert not process.net_connections(kind="inet"), "a private socket alone"
    first = Layout(service.data_dir).read_secrets()
    assert len({first.app_password, first.broker_password}) == 2
    assert min(len(first.app_password), len(first.broker_password)) >= 32
    environ = psutil.Process(_pid(service, "broker")).environ()
    for name in ("OPENAI_API_KEY", "INSTAR_OIDC_CLIENT_SECRET", "INSTAR_APP_DATABASE_URL"):
        assert name not in environ
    environ = psutil.Process(_pid(service, "reconciler")).environ()
    assert "OPENAI_API_KEY" not in environ and "INSTAR_APP_DATABASE_URL" in environ
