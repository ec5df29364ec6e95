"""The portable broker: a real server process behind a password, on loopback alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from instar.embedded.broker import Broker, plan_broker
from instar.embedded.checks import ask_redis
from instar.embedded.services import CommandService

pytestmark = pytest.mark.slow

PASSWORD = "a long password"


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """A running portable broker, also where a redis-server is installed."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    planned = plan_broker(tmp_path, PASSWORD, dict(os.environ))
    service = CommandService("broker", planned.command, after=(), log=tmp_path / "broker.log")
    service.start()
    while not service.ask().ready:
        assert service.exit_status() is None, service.cause()
    yield planned
    service.stop()
    assert service.exit_status() is None and service.identity is None


def test_serves_who_knows_the_password(broker: Broker) -> None:
    assert broker.kind == "portable"
    for protocol in (2, 3):
        client = redis.Redis(port=broker.port, password=PASSWORD, protocol=protocol)
        client.lpush("queue", b"one", b"two\r\n\x00")
        assert list(client.brpop(["queue"], timeout=1) or ()) == [b"queue", b"one"]
        assert client.rpop("queue") == b"two\r\n\x00"
        client.close()


@pytest.mark.parametrize("secret", [None, "wrong", ""])
def test_refuses_everybody_else(broker: Broker, secret: str | None) -> None:
    client = redis.Redis(port=broker.port, password=secret)
    with pytest.raises(redis.AuthenticationError):
        client.set("x", "y")
    client.close()
    assert not ask_redis(broker.port, secret or "").ready


@pytest.mark.parametrize(
    "said",
    [
        b"SET x y\r\n",
        b"*1\r\n$999999999\r\n",
        b"*2\r\n$4\r\nAUTH\r\n$-1\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 10_000,
    ],
)
def test_hangs_up_on_what_is_no_login(broker: Broker, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as link:
        link.sendall(said)
        try:
            assert link.recv(100) == b""
        except ConnectionResetError:
            return


def test_a_command_before_the_login_does_nothing(broker: Broker) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=10) as link:
        link.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1\r\ny\r\n")
        assert link.recv(100).startswith(b"-NOAUTH")
    client = redis.Redis(port=broker.port, password=PASSWORD)
    assert client.get("x") is None
    client.close()


def test_says_who_is_on_its_port(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "instar.embedded.fake_broker", "--port", str(port)],
            env={**os.environ, "INSTAR_BROKER_PASSWORD": "x"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr


def test_dies_with_its_supervisor(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from instar.embedded.broker import plan_broker\n"
        "from instar.embedded.services import CommandService\n"
        "broker = plan_broker(Path(sys.argv[1]), 'x', dict(os.environ))\n"
        "service = CommandService('b', broker.command, after=(), log=Path(sys.argv[1]) / 'log')\n"
        "service.start()\n"
        "while not service.ask().ready: pass\n"
        "print(service.identity.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    child.wait(timeout=30)


@pytest.mark.skipif(
    not (shutil.which("redis-server") or shutil.which("valkey-server")),
    reason="needs redis-server or valkey-server on the PATH",
)
def test_takes_the_server_on_the_path(tmp_path: Path) -> None:
    planned = plan_broker(tmp_path, PASSWORD, dict(os.environ))
    assert planned.kind in ("redis-server", "valkey-server")
    assert (tmp_path / "broker.conf").stat().st_mode & 0o777 == 0o600
    service = CommandService("broker", planned.command, after=(), log=tmp_path / "broker.log")
    service.start()
    try:
        while not service.ask().ready:
            assert service.exit_status() is None, service.cause()
        client = redis.Redis(port=planned.port, password=PASSWORD)
        client.lpush("queue", b"one")
        assert client.rpop("queue") == b"one"
        client.close()
        assert not ask_redis(planned.port, "wrong").ready
        process = psutil.Process(planned_pid(service))
        assert PASSWORD not in " ".join(process.cmdline())
    finally:
        service.stop()


def planned_pid(service: CommandService) -> int:
    identity = service.identity
    assert identity is not None
    return identity.pid
