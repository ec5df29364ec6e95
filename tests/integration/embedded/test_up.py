"""`instar up` as a whole: start, kills of every child and of the supervisor, refusals, users."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from instar.embedded.checks import free_port
from instar.embedded.postgres import PostgresServer
from instar.embedded.processes import Identity

if TYPE_CHECKING:
    from tests.integration.embedded.conftest import PlainUser

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
CHILDREN = ("postgres", "broker", "reconciler", "worker", "api")


@dataclass
class Installation:
    """One data directory, and the command line on it."""

    data_dir: Path
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    popen: dict[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=free_port)

    def run(self, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """One command, to its end."""
        return subprocess.run(
            [self.python, "-m", "instar", *words],
            env={
                **self.environment,
                "INSTAR_DATA_DIR": str(self.data_dir),
                "INSTAR_API__PORT": str(self.port),
                "INSTAR_ENGINE__ENABLED": "false",
                **extra,
            },
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            **self.popen,
        )

    def up(self, **extra: str) -> dict[str, Any]:
        """Starts it in the background; its status."""
        done = self.run("up", "--detach", "--json", **extra)
        assert done.returncode == 0, done.stderr + self.logs()
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def status(self) -> dict[str, Any]:
        """The status file."""
        found: dict[str, Any] = json.loads((self.data_dir / "status.json").read_text())
        return found

    def pids(self) -> dict[str, int]:
        """Service → pid, of those that run."""
        services = self.status()["services"]
        return {item["name"]: item["pid"] for item in services if item["pid"]}

    def identities(self) -> list[Identity]:
        """Everybody who runs, the supervisor included."""
        status = self.status()
        found = [Identity(status["pid"], status["started"])]
        for item in status["services"]:
            if item["pid"]:
                found.append(Identity(item["pid"], item["started"]))
        return found

    def get(self, path: str, key: str = "") -> Any:
        """The JSON answer of the API."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        request.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    @property
    def key(self) -> str:
        """The key for this machine's commands."""
        return (self.data_dir / "api.key").read_text().strip()

    def logs(self) -> str:
        """The ends of all logs, for a failure's message."""
        paths = sorted((self.data_dir / "logs").glob("*.log"))
        return "".join(f"\n== {path.name}\n{path.read_text()[-1500:]}" for path in paths)


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what()}"
        time.sleep(0.05)


@pytest.fixture
def installation(short_dir: Path) -> Iterator[Installation]:
    """A directory that does not exist yet; whatever runs on it afterwards is ended."""
    made = Installation(short_dir / "data")
    yield made
    made.run("down")
    if (made.data_dir / "status.json").exists():
        for identity in made.identities():
            process = identity.process()
            if process is not None:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def test_two_who_need_it_at_once_start_one_service(installation: Installation) -> None:
    code = (
        "from instar.embedded.detach import ensure_running as go\n"
        "from instar.settings import load_settings\n"
        "status, key = go(load_settings())\n"
        "print(status.pid, status.state, key is not None)"
    )
    environment = {
        **os.environ,
        "INSTAR_DATA_DIR": str(installation.data_dir),
        "INSTAR_API__PORT": str(installation.port),
        "INSTAR_ENGINE__ENABLED": "false",
    }
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [one.communicate(timeout=240) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    first, second = (words.split() for words, _ in said)
    assert first[:2] == second[:2] == [first[0], "ready"]
    assert sorted((first[2], second[2])) == ["False", "True"], "the key is told once"


def test_s108_s121_a_new_directory_makes_its_admin_key_starts_serves_and_stops(
    installation: Installation,
) -> None:
    first = installation.up()
    key = first.pop("api_key")
    assert first["state"] == "ready" and set(installation.pids()) == set(CHILDREN)
    assert key == installation.key
    for name in ("api.key", "secrets.json", "status.json", "instar.json"):
        assert (installation.data_dir / name).stat().st_mode & 0o777 == 0o600, name
    assert installation.get("/readyz")["ready"] is True
    assert installation.get("/v1/agents", key)["data"] == []
    me = installation.get("/v1/auth/session", key)
    assert (me["project"]["role"], me["instance"]) == ("admin", True), me
    assert installation.run("agent", "list", "--json").stdout == "[]\n"
    refused = installation.run("agent", "list", INSTAR_API_KEY="instar_wrong")
    assert refused.returncode == 2 and "no valid API key" in refused.stderr
    again = installation.run("up")
    assert again.returncode == 2
    assert f"already runs on '{installation.data_dir}' (supervisor pid" in again.stderr
    assert "Traceback" not in again.stderr
    everybody = installation.identities()
    assert installation.run("down").returncode == 0
    assert [identity for identity in everybody if identity.alive] == []
    assert installation.run("status").returncode == 3
    second = installation.up()
    assert "api_key" not in second, "the key is shown once"
    assert installation.get("/v1/agents", key)["data"] == []


def test_every_child_comes_back_after_a_kill(installation: Installation) -> None:
    installation.up()
    key = installation.key
    for name in CHILDREN:
        before = installation.pids()[name]
        os.kill(before, signal.SIGKILL)
        wait_for(
            lambda name=name, before=before: (  # type: ignore[misc]
                installation.status()["state"] == "ready"
                and installation.pids().get(name, before) != before
            ),
            lambda: f"all back: {installation.status()}{installation.logs()}",
        )
    restarts = {item["name"]: item["restarts"] for item in installation.status()["services"]}
    assert all(restarts[name] >= 1 for name in CHILDREN)
    assert installation.get("/v1/agents", key)["data"] == []


def test_s51_children_die_with_the_supervisor_and_it_starts_again(
    installation: Installation,
) -> None:
    installation.up()
    key = installation.key
    everybody = installation.identities()
    os.kill(installation.status()["pid"], signal.SIGKILL)
    wait_for(
        lambda: not any(identity.alive for identity in everybody),
        lambda: f"all gone: {[i.process() for i in everybody if i.alive]}",
    )
    assert installation.run("status").returncode == 3
    installation.up()
    assert installation.key == key
    assert installation.get("/v1/agents", key)["data"] == []


def test_killed_in_the_middle_of_the_first_start(installation: Installation) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "instar.embedded"],
        env={
            **os.environ,
            "INSTAR_DATA_DIR": str(installation.data_dir),
            "INSTAR_API__PORT": str(installation.port),
            "INSTAR_ENGINE__ENABLED": "false",
        },
    )
    cluster = installation.data_dir / "postgres" / "cluster"
    wait_for(cluster.exists, lambda: "cluster made")
    process.kill()
    process.wait()
    found = installation.up()
    assert found["api_key"] == installation.key
    assert installation.get("/readyz")["ready"] is True


def test_works_for_a_plain_user(plain_user: PlainUser, short_dir: Path) -> None:
    home = Path(plain_user.environment["HOME"])
    mine = Installation(home / "data", plain_user.python, plain_user.environment, plain_user.popen)
    try:
        mine.up()
        owners = {psutil.Process(pid).uids().real for pid in mine.pids().values()}
        assert owners == {home.stat().st_uid}
        assert mine.data_dir.stat().st_mode & 0o777 == 0o700
        assert mine.run("agent", "list", "--json").stdout == "[]\n"
    finally:
        down = mine.run("down")
    assert down.returncode == 0 and down.stdout == "stopped\n"


def test_uses_a_database_and_a_broker_of_ones_own(
    installation: Installation, short_dir: Path
) -> None:
    server = PostgresServer(short_dir / "own")
    server.start()
    try:
        url = server.dsn("postgres")
        installation.up(DATABASE_URL=url)
        assert set(installation.pids()) == set(CHILDREN) - {"postgres"}
        worker = psutil.Process(installation.pids()["worker"])
        assert url not in worker.environ().values(), "the owner's login goes no further"
        assert installation.get("/v1/agents", installation.key)["data"] == []
        installation.run("down")
        other = installation.run("up")
        assert other.returncode == 2 and "external database" in other.stderr
    finally:
        server.stop()


def refused(installation: Installation, *words: str, **extra: str) -> str:
    """What a start says that must be refused, before anything runs."""
    done = installation.run("up", **extra)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    return done.stderr


def test_refuses_a_port_in_use(installation: Installation) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        installation.port = taken.getsockname()[1]
        words = refused(installation, f"port {installation.port} on 127.0.0.1 is in use")
        assert f"(pid {os.getpid()})" in words
        assert f"INSTAR_API__PORT={installation.port + 10}" in words
        detached = installation.run("up", "--detach")
        assert detached.returncode == 2 and "is in use" in detached.stderr


def test_refuses_without_disk_space(installation: Installation) -> None:
    refused(
        installation, "MiB are free", "INSTAR_DATA_DIR", INSTAR_EMBEDDED__MIN_FREE_MB="99999999"
    )


def test_refuses_a_directory_of_a_newer_version(installation: Installation) -> None:
    installation.data_dir.mkdir()
    marker = installation.data_dir / "instar.json"
    content = json.dumps({"format": 99, "version": "7.1.0", "unheard": "of"})
    marker.write_text(content)
    refused(installation, "written by Instar 7.1.0", "Install Instar 7.1.0 or later")
    assert marker.read_text() == content


def test_refuses_a_directory_that_is_not_its_own(installation: Installation) -> None:
    installation.data_dir.mkdir()
    (installation.data_dir / "letters.txt").write_text("dear …")
    refused(installation, "holds other files ('letters.txt')")
    assert [item.name for item in installation.data_dir.iterdir()] == ["letters.txt"]


def test_refuses_a_directory_that_cannot_be_written(plain_user: PlainUser, short_dir: Path) -> None:
    if not plain_user.popen:
        pytest.skip("needs root to own what a plain user may not write")
    theirs = Installation(
        short_dir / "theirs", plain_user.python, plain_user.environment, plain_user.popen
    )
    theirs.data_dir.mkdir(mode=0o755)
    refused(theirs, "cannot be written", "INSTAR_DATA_DIR")


def test_s115_refuses_to_begin_anew_where_data_has_been(installation: Installation) -> None:
    installation.up()
    installation.run("down")
    moved = installation.data_dir.parent / "moved"
    shutil.move(installation.data_dir / "postgres" / "cluster", moved)
    refused(installation, "the database of this installation is gone", "backup")
    shutil.move(moved, installation.data_dir / "postgres" / "cluster")
    secrets = installation.data_dir / "secrets.json"
    kept = secrets.read_text()
    secrets.unlink()
    refused(installation, "is missing, but this installation has data")
    secrets.write_text(kept)
    installation.up()


def test_a_wrong_setting_is_named(installation: Installation) -> None:
    refused(installation, "INSTAR_API__PORT='many'", INSTAR_API__PORT="many")
