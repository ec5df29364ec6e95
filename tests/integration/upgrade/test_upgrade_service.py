"""`instar up` on the first release's data directory: it upgrades, and serves what was there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from instar.backup.programs import find_program, pipe_to
from instar.embedded.checks import free_port
from instar.embedded.layout import Layout, Marker
from instar.embedded.postgres import PostgresServer
from instar.store.migrate import head_revision
from instar.store.recovery import prepare_target

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
DATA = Path(__file__).parents[2] / "data" / "released_0001"


@pytest.fixture
def old_directory() -> Iterator[Path]:
    """A data directory as the first release left it, its service down."""
    folder = Path(tempfile.mkdtemp(prefix="instar-t"))
    folder.chmod(0o711)
    told = json.loads((DATA / "0001.json").read_text(encoding="utf-8"))
    layout = Layout(folder / "data")
    layout.prepare()
    secrets = layout.ensure_secrets()
    server = PostgresServer(layout.postgres)
    server.start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("create database instar")
        url = server.dsn("instar")
        prepare_target(url, secrets.app_password, None)
        with pipe_to(find_program("pg_restore", 18), url, ["--exit-on-error"]) as dump:
            dump.write((DATA / "0001.dump").read_bytes())
        with psycopg.connect(url) as connection:
            row = connection.execute("select id::text from instar.installation").fetchone()
    finally:
        server.stop()
    assert row is not None
    note = json.dumps({"installation": row[0]}) + "\n"
    (layout.data_dir / "installation.json").write_text(note, encoding="utf-8")
    layout.api_key.write_text(told["keys"]["local"] + "\n", encoding="ascii")
    layout.api_key.chmod(0o600)
    layout.write_marker(Marker(version="0.1.0", database="embedded", schema_revision="0001"))
    yield layout.data_dir
    shutil.rmtree(folder, ignore_errors=True)


def test_s113_s121_the_service_starts_on_the_data_of_the_first_release(old_directory: Path) -> None:
    told = json.loads((DATA / "0001.json").read_text(encoding="utf-8"))
    port = free_port()
    environment = {
        **os.environ,
        "INSTAR_DATA_DIR": str(old_directory),
        "INSTAR_API__PORT": str(port),
        "INSTAR_URL": f"http://127.0.0.1:{port}",
        "INSTAR_ENGINE__ENABLED": "false",
        "INSTAR_PROJECT": "test",
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "instar", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def get(path: str, key: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}")
        request.add_header("Authorization", f"Bearer {told['keys'][key]}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    before = run("db", "check", "--json")
    assert before.returncode == 1 and "'0001'" in json.loads(before.stdout)["reason"]
    try:
        up = run("up", "--detach", "--json")
        assert up.returncode == 0, up.stderr
        assert "api_key" not in json.loads(up.stdout), "this machine's old key goes on"
        assert get("/readyz", "reader")["ready"] is True
        assert get("/version", "reader")["schema_revision"] == head_revision()
        for key in ("admin", "member", "reader", "local"):
            labels = get("/v1/agents/clerk", key)["labels"]
            assert labels == told["labels"]["clerk"], key
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get("/v1/agents/clerk", "revoked")
        found = json.loads(run("audit", "verify", "--json").stdout)
        assert found["ok"] is True and found["rows"] >= told["counts"]["audit_event"], found
        assert (old_directory / "audit_signing.key").stat().st_mode & 0o777 == 0o600
    finally:
        down = run("down")
    assert down.returncode == 0
