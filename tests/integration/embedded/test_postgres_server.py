"""The embedded PostgreSQL: first start, restarts, kills, stale files, double starts, users."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from instar.embedded.pg_stale import clear_stale_server
from instar.embedded.postgres import PostgresServer
from instar.embedded.processes import Identity, identify, wait_gone
from instar_core.errors import PrerequisiteError, StoreError

if TYPE_CHECKING:
    from tests.integration.embedded.conftest import PlainUser

pytestmark = pytest.mark.postgres
ROOT = os.geteuid() == 0
FAST = {"fsync": "off"}


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A stopped cluster with one row in it, to copy."""
    directory = Path(tempfile.mkdtemp(prefix="instar-pg-"))
    server = PostgresServer(directory, options=FAST)
    server.start()
    with psycopg.connect(server.dsn()) as connection:
        connection.execute("create table kept as select 41 + 1 as answer")
    server.stop()
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def server(made: Path) -> Iterator[PostgresServer]:
    """A server on a copy of the cluster, not started."""
    directory = Path(tempfile.mkdtemp(prefix="instar-pg-"))
    subprocess.run(["cp", "-a", f"{made}/.", str(directory)], check=True)
    server = PostgresServer(directory, options=FAST)
    yield server
    server.stop()
    shutil.rmtree(directory)


def answer(server: PostgresServer) -> int:
    with psycopg.connect(server.dsn()) as connection:
        row = connection.execute("select answer from kept").fetchone()
        assert row is not None
        return int(row[0])


def who(server: PostgresServer) -> Identity:
    identity = server.identity
    assert identity is not None
    return identity


def test_starts_stops_and_keeps_rows(server: PostgresServer) -> None:
    server.start()
    assert answer(server) == 42
    first = who(server)
    server.start()
    assert who(server) == first, "a second start of a running server changes nothing"
    server.stop()
    assert not first.alive
    server.start()
    assert answer(server) == 42


def test_asks_for_the_password_on_the_socket_and_hides_it(server: PostgresServer) -> None:
    server.start()
    for secret in ("", "wrong"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.dsn(password=secret)).close()
    assert (server.data_dir / "superuser.password").stat().st_mode & 0o777 == 0o600
    assert server.runtime_dir.stat().st_mode & 0o777 == 0o700
    assert not (server.data_dir / "superuser.initdb").exists()


def test_listens_on_no_network(server: PostgresServer) -> None:
    server.start()
    process = psutil.Process(who(server).pid)
    assert [link for link in process.net_connections("inet") if link.status == "LISTEN"] == []


def test_restarts_after_the_postmaster_was_killed(server: PostgresServer) -> None:
    server.start()
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("create table more as select generate_series(1, 1000)")
    os.kill(who(server).pid, signal.SIGKILL)
    wait_gone(who(server) if server.running else Identity(0, 0.0), 10)
    while server.running:
        pass
    server.start()
    assert answer(server) == 42
    with psycopg.connect(server.dsn()) as connection:
        row = connection.execute("select count(*) from more").fetchone()
    assert row == (1000,)


@pytest.mark.parametrize("content", ["", "12", "not a pid\n", "1\n/\n"])
def test_ignores_a_stale_pid_file(server: PostgresServer, content: str) -> None:
    pid_file = server.cluster_dir / "postmaster.pid"
    pid_file.write_text(content)
    shutil.chown(pid_file, "nobody") if ROOT else None
    server.start()
    assert answer(server) == 42


def test_ignores_a_pid_that_was_handed_out_again(server: PostgresServer) -> None:
    """The pid file names a live process of the same user that is no server of this directory."""
    user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if ROOT else {}
    sleeper = subprocess.Popen(["sleep", "600"], **user)  # type: ignore[call-overload]
    try:
        pid_file = server.cluster_dir / "postmaster.pid"
        pid_file.write_text(f"{sleeper.pid}\n{server.cluster_dir}\n1700000000\n5432\n")
        shutil.chown(pid_file, "nobody") if ROOT else None
        server.start()
        assert answer(server) == 42
        assert sleeper.poll() is None, "a stranger is left alone"
    finally:
        sleeper.kill()
        sleeper.wait()


def test_refuses_a_second_supervisor_on_the_same_directory(server: PostgresServer) -> None:
    server.start()
    second = PostgresServer(server.data_dir)
    with pytest.raises(PrerequisiteError, match=rf"pid {os.getpid()}.*already runs"):
        second.start()
    assert answer(server) == 42
    server.stop()
    second.start()
    second.stop()


ORPHAN = """
import sys, time
from pathlib import Path
from instar.embedded.postgres import PostgresServer
server = PostgresServer(Path(sys.argv[1]), options={"fsync": "off"})
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def test_s51_dies_with_its_supervisor_and_starts_again(server: PostgresServer) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(server.data_dir)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    orphan = identify(int(parent.stdout.readline()))
    assert orphan is not None
    parent.kill()
    parent.communicate()
    server.start()
    assert not orphan.alive
    assert answer(server) == 42


def test_stops_an_orphan_that_nobody_told_to_stop(server: PostgresServer) -> None:
    """As on systems without parent-death signals: the old server is found by its directory."""
    server.start()
    orphan = who(server)
    clear_stale_server(server.cluster_dir, server.runtime_dir)
    assert not orphan.alive
    assert not (server.cluster_dir / "postmaster.pid").exists()
    server.start()
    assert answer(server) == 42


def test_an_interrupted_first_start_leaves_no_half_cluster() -> None:
    directory = Path(tempfile.mkdtemp(prefix="instar-pg-"))
    try:
        half = directory / "cluster.new"
        half.mkdir()
        (half / "PG_VERSION").write_text("18\n")
        server = PostgresServer(directory, options=FAST)
        server.start()
        server.stop()
        assert not half.exists()
    finally:
        shutil.rmtree(directory)


def test_says_that_the_disk_is_full() -> None:
    directory = Path(tempfile.mkdtemp(prefix="instar-pg-"))
    try:
        with pytest.raises(PrerequisiteError, match=r"only \d+ MiB are free .*INSTAR_DATA_DIR"):
            PostgresServer(directory, min_free_bytes=2**60).start()
        assert not (directory / "cluster").exists()
    finally:
        shutil.rmtree(directory)


def test_refuses_a_cluster_of_another_major_version(server: PostgresServer) -> None:
    (server.cluster_dir / "PG_VERSION").write_text("99\n")
    with pytest.raises(PrerequisiteError, match="made by PostgreSQL 99"):
        server.start()


def test_quotes_the_log_when_the_server_does_not_come_up(server: PostgresServer) -> None:
    broken = PostgresServer(server.data_dir, options={"shared_buffers": "no size"})
    with pytest.raises(StoreError, match="shared_buffers"):
        broken.start()


def test_long_paths_get_a_short_socket_directory() -> None:
    server = PostgresServer(Path("/tmp") / ("x" * 120))
    try:
        assert len(str(server.runtime_dir)) < 90
        assert server.runtime_dir == PostgresServer(server.data_dir).runtime_dir
    finally:
        server.runtime_dir.rmdir()


@pytest.mark.skipif(not ROOT, reason="needs root to have another user")
def test_as_root_the_server_runs_as_nobody_and_parents_stay_as_they_are() -> None:
    outer = Path(tempfile.mkdtemp(prefix="instar-pg-"))
    try:
        outer.chmod(0o700)
        with pytest.raises(PrerequisiteError, match="'nobody', who cannot enter") as caught:
            PostgresServer(outer / "inner").start()
        assert str(outer) in str(caught.value)
        assert outer.stat().st_mode & 0o777 == 0o700
        outer.chmod(0o711)
        server = PostgresServer(outer / "inner", options=FAST)
        server.start()
        assert psutil.Process(who(server).pid).username() == "nobody"
        assert server.cluster_dir.stat().st_mode & 0o777 == 0o700
        server.stop()
    finally:
        shutil.rmtree(outer)


def test_works_for_a_plain_user(plain_user: PlainUser) -> None:
    directory = Path(plain_user.environment["HOME"]) / "data"
    script = ORPHAN.replace("time.sleep(600)", "server.stop()")
    done = subprocess.run(
        [plain_user.python, "-c", script, str(directory)],
        env=plain_user.environment,
        capture_output=True,
        text=True,
        check=False,
        **plain_user.popen,
    )
    assert done.returncode == 0, done.stderr
    assert (directory / "cluster").stat().st_mode & 0o777 == 0o700
