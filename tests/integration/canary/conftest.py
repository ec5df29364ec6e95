"""A whole service of its own with canaries in it: supervisor, database, broker, worker, API."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from instar.embedded.checks import free_port
from instar.embedded.layout import Layout
from instar.embedded.postgres import PostgresServer


def canary(where: str) -> str:
    """A value that is nowhere else."""
    return f"canary-{where}-{secrets.token_hex(6)}Zq7"


class Echo(BaseHTTPRequestHandler):
    """A provider that refuses and quotes the credentials that it was sent, as some do."""

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        key = self.headers.get("authorization", "").removeprefix("Bearer ")
        said = json.dumps(
            {"error": {"message": f"Incorrect API key provided: {key}.", "headers": [key[::-1]]}}
        ).encode()
        self.send_response(401)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_POST = _refuse

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""


@pytest.fixture
def provider() -> Iterator[str]:
    """The address of the provider that quotes keys."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@dataclass
class Planted:
    """A running service and what was planted in it.

    Attributes:
        data_dir: Its data directory.
        environment: What it was started with.
        url: Where its API is.
        canaries: Where it was planted → value.
        evidence: Where it was found → text to search.
    """

    data_dir: Path
    environment: dict[str, str]
    url: str
    canaries: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, str] = field(default_factory=dict)

    def plant(self, where: str) -> str:
        """A canary for one place."""
        self.canaries[where] = canary(where)
        return self.canaries[where]

    def command(self, *words: str, given: str | None = None) -> str:
        """A command's output, which is evidence too."""
        done = subprocess.run(
            [sys.executable, "-m", "instar", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            input=given if given is not None else "",
            check=False,
        )
        said = done.stdout + done.stderr
        self.evidence[f"instar {' '.join(words)}"] = said
        return said

    def client(self, key: str = "") -> httpx.Client:
        """A client with the key of this machine, or another."""
        key = key or (self.data_dir / "api.key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def see(self, where: str, answer: httpx.Response) -> httpx.Response:
        """An answer, kept as evidence with its headers."""
        place = f"{where} #{len(self.evidence)}"
        self.evidence[place] = f"{answer.status_code} {dict(answer.headers)} {answer.text}"
        return answer

    def superuser(self) -> psycopg.Connection[Any]:
        """A connection past all walls."""
        server = PostgresServer(Layout(self.data_dir).postgres)
        return psycopg.connect(server.dsn("instar"), autocommit=True)


@pytest.fixture
def service(provider: str) -> Iterator[Planted]:
    """A service with canaries in its environment."""
    folder = Path(tempfile.mkdtemp(prefix="instar-t"))
    folder.chmod(0o711)
    data_dir, port = folder / "data", free_port()
    scripts = folder / "scripts"
    scripts.mkdir()
    for name, tool in (("env", "environment"), ("forms", "encoded"), ("die", "crash")):
        call = {"id": "", "name": tool, "arguments": {}}
        rules = [{"match": "^go", "tool_calls": [call]}, {"match": "(?s)(.*)", "reply": "\\1"}]
        (scripts / f"{name}.json").write_text(json.dumps({"rules": rules}))
    planted = Planted(data_dir, {}, f"http://127.0.0.1:{port}")
    planted.environment = {
        **os.environ,
        "INSTAR_DATA_DIR": str(data_dir),
        "INSTAR_API__PORT": str(port),
        "INSTAR_ENGINE__ENABLED": "false",
        "INSTAR_MODELS__SCRIPTS_DIR": str(scripts),
        "INSTAR_MODELS__MAX_ATTEMPTS": "1",
        "INSTAR_MODELS__API_BASE": json.dumps(
            {
                "openai": f"{provider}/v1",
                "openai/other": provider.replace("//", f"//u:{planted.plant('api-base')}@"),
            }
        ),
        "OPENAI_API_KEY": planted.plant("provider-key"),
        "INSTAR_OIDC_CLIENT_SECRET": planted.plant("oidc-secret"),
        "INSTAR_AUTH__OIDC__ISSUER": provider,
        "INSTAR_AUTH__OIDC__CLIENT_ID": "instar",
        "INSTAR_AUTH__OIDC__REDIRECT_URI": f"http://127.0.0.1:{port}/v1/auth/oidc/callback",
    }
    try:
        said = planted.command("up", "--detach", "--json")
        assert '"state": "ready"' in said, said + logs(data_dir)
        yield planted
    finally:
        planted.command("down")
        shutil.rmtree(folder, ignore_errors=True)


def logs(data_dir: Path) -> str:
    return "".join(f"\n== {path}\n{path.read_text()}" for path in (data_dir / "logs").glob("*"))
