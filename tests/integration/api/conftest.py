"""A live API: uvicorn on a loopback port over a fresh database, with keys of every role."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from instar.api.app import create_app
from instar.audit.keys import ensure_signing_key
from instar.settings import ModelSettings, Settings
from instar.store.audit import SYSTEM
from instar.store.keyring import KeySource
from instar.store.projects import NewKey, create_api_key, create_project
from instar.store.session import Database

ROLES = ("admin", "approver", "operator", "viewer")


@dataclass
class LiveApi:
    """A running API."""

    url: str
    project_id: str
    keys: dict[str, str]
    database: Any
    clients: list[httpx.Client] = field(default_factory=list)

    def client(self, role: str = "admin", **headers: str) -> httpx.Client:
        """A client with the key of a role; ``other`` is another project's admin."""
        made = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.keys[role]}", **headers},
            timeout=60,
            trust_env=False,
        )
        self.clients.append(made)
        return made

    def bare(self) -> httpx.Client:
        """A client without any key."""
        made = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self.clients.append(made)
        return made


async def _make_keys(db: Database, project_id: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    other = await create_project(db, "other")
    async with db.transaction(project_id) as session:
        for role in ROLES:
            new = NewKey(role, role)  # type: ignore[arg-type]
            keys[role] = (await create_api_key(session, project_id, new, SYSTEM)).key
    async with db.transaction(other) as session:
        keys["other"] = (await create_api_key(session, other, NewKey("x", "admin"), SYSTEM)).key
    return keys


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """Scripted models: ``tell`` answers by what its instructions say."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    rules = [
        {"match": "fail please", "fail": "out of order"},
        {"match": "say (.*)", "reply": "\\1"},
        {"match": "version (\\w+)", "where": "system", "reply": "I am version \\1."},
    ]
    (folder / "tell.json").write_text(json.dumps({"rules": rules}))
    return folder


@pytest.fixture
def api(database: Any, scripts: Path) -> Iterator[LiveApi]:
    """A live API on its own database."""
    settings = Settings(
        app_database_url=database.app_url,
        data_dir=scripts.parent / "data",
        models=ModelSettings(scripts_dir=scripts),
    )
    settings.data_dir.mkdir()
    KeySource.of(settings).ensure()
    ensure_signing_key(settings)
    keys = database.run(lambda db: _make_keys(db, database.project_id))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    # From here on requests wait in its backlog until the server accepts them.
    listener.listen(128)
    port = listener.getsockname()[1]
    config = uvicorn.Config(create_app(settings), log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    live = LiveApi(f"http://127.0.0.1:{port}", database.project_id, keys, database)
    try:
        assert live.bare().get("/healthz").status_code == 200
        yield live
    finally:
        for client in live.clients:
            client.close()
        server.should_exit = True
        thread.join(timeout=30)
        listener.close()


def agent_body(name: str = "desk", version: str = "one", **more: Any) -> dict[str, Any]:
    """The body that saves a scripted agent."""
    return {
        "name": name,
        "components": {
            "instructions": {"kind": "instructions", "content": f"You are version {version}."}
        },
        "harness": {"model": "scripted/tell"},
        **more,
    }


@pytest.fixture(name="agent_body")
def agent_body_fixture() -> Any:
    """The function that makes an agent's body."""
    return agent_body
