"""The supervisor's parts: identities, private files, logs, markers, leftovers, ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from instar.embedded.checks import ask_beat, ask_http, free_port, require_free_port
from instar.embedded.files import private_write, require_free_space, rotate_log
from instar.embedded.layout import LAYOUT_FORMAT, Layout, Marker
from instar.embedded.processes import Identity, die_with_parent, identify, stop_process
from instar.embedded.status import ServiceStatus, Status, read_status
from instar.embedded.up import stop_leftovers
from instar_core.errors import PrerequisiteError


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


def test_an_identity_is_a_pid_with_its_start_time() -> None:
    process = sleeper()
    who = identify(process.pid)
    assert who is not None and who.alive
    assert not Identity(process.pid, who.started - 100).alive, "the pid was handed out again"
    assert stop_process(who, [(signal.SIGTERM, 10.0)])
    assert not who.alive, "a zombie does not run"
    process.wait()
    assert identify(process.pid) is None


def test_a_stranger_with_the_same_pid_is_not_stopped() -> None:
    process = sleeper()
    who = identify(process.pid)
    assert who is not None
    stranger = Identity(who.pid, who.started - 100)
    assert stop_process(stranger, [(signal.SIGKILL, 10.0)])
    assert process.poll() is None
    process.kill()
    process.wait()


def test_stopping_goes_on_to_the_harder_signal_and_takes_the_descendants() -> None:
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    who = identify(process.pid)
    assert who is not None
    assert stop_process(who, [(signal.SIGTERM, 0.1), (signal.SIGKILL, 10.0)], tree=True)
    process.communicate()
    child.wait(timeout=30)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a Linux feature")
def test_death_signals_are_for_children_of_the_main_thread() -> None:
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            die_with_parent(signal.SIGTERM)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_private_files_are_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    private_write(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_logs_are_rotated_by_size_while_their_writer_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    with path.open("a", encoding="ascii") as writer:
        for number in range(4):
            writer.write(f"{number}" * 100 + "\n")
            writer.flush()
            assert rotate_log(path, max_bytes=100, keep=2)
            assert path.stat().st_size == 0
    assert not rotate_log(path, max_bytes=100, keep=2)
    kept = {item.name: item.read_text()[0] for item in tmp_path.iterdir() if item != path}
    assert kept == {"x.log.1": "3", "x.log.2": "2"}


def test_free_space_is_named_when_it_is_too_little(tmp_path: Path) -> None:
    require_free_space(tmp_path, 1)
    with pytest.raises(PrerequisiteError, match=r"MiB are free on the disk of .* are needed"):
        require_free_space(tmp_path, 2**60)


def test_a_taken_port_is_named_with_who_has_it() -> None:
    require_free_port("127.0.0.1", free_port(), "X")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PrerequisiteError) as caught:
            require_free_port("127.0.0.1", port, "INSTAR_API__PORT")
    assert f"port {port} on 127.0.0.1 is in use by" in caught.value.message
    assert f"(pid {os.getpid()})" in caught.value.message
    assert f"INSTAR_API__PORT={port + 10}" in caught.value.remedy


def test_an_address_that_is_not_here_is_no_port_in_use() -> None:
    with pytest.raises(PrerequisiteError, match="cannot be used"):
        require_free_port("203.0.113.7", free_port(), "X")


def test_nobody_answers_on_a_free_port() -> None:
    assert not ask_http("127.0.0.1", free_port(), "/healthz").heard


def test_a_beat_counts_for_its_own_process_and_time(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    now = time.time()
    assert not ask_beat(path, 5, now=now).ready
    path.write_text("5\n")
    assert ask_beat(path, 5, now=now).ready
    assert not ask_beat(path, 6, now=now).ready
    assert not ask_beat(path, 5, now=now + 100).ready


def test_the_marker_remembers_and_refuses_the_future(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    layout.prepare()
    made = layout.read_marker()
    assert made.format == LAYOUT_FORMAT and made.database == ""
    layout.prepare()
    assert layout.read_marker() == made, "a second start changes nothing"
    layout.write_marker(Marker(format=LAYOUT_FORMAT + 1, version="9.9"))
    with pytest.raises(PrerequisiteError, match=r"written by Instar 9\.9 .*Nothing was changed"):
        layout.read_marker()
    layout.marker.write_text("{half")
    with pytest.raises(PrerequisiteError, match="cannot be read"):
        layout.read_marker()


def test_a_directory_with_a_model_in_it_is_our_own(tmp_path: Path) -> None:
    (tmp_path / "data" / "models").mkdir(parents=True)
    Layout(tmp_path / "data").prepare()


def test_secrets_are_made_once_and_never_again_over_data(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "data")
    layout.prepare()
    made = layout.ensure_secrets()
    assert layout.ensure_secrets() == made
    assert made.app_password != made.broker_password
    layout.write_marker(Marker(database="embedded"))
    layout.secrets.unlink()
    with pytest.raises(PrerequisiteError, match="is missing, but this installation has data"):
        layout.ensure_secrets()


def test_leftovers_are_stopped_by_identity_alone(tmp_path: Path) -> None:
    ours, stranger, database = sleeper(), sleeper(), sleeper()
    layout = Layout(tmp_path)
    services = []
    for name, process, shift in (
        ("worker", ours, 0.0),
        ("api", stranger, -500.0),
        ("postgres", database, 0.0),
    ):
        who = identify(process.pid)
        assert who is not None
        services.append(
            ServiceStatus(name=name, state="running", pid=who.pid, started=who.started + shift)
        )
    Status(state="ready", services=tuple(services)).write(layout.status)
    assert stop_leftovers(layout) == ["worker"]
    assert ours.wait(timeout=30) == -signal.SIGTERM
    assert stranger.poll() is None, "somebody else has that pid now"
    assert database.poll() is None, "PostgreSQL's own start knows how"
    for process in (stranger, database):
        process.kill()
        process.wait()


@pytest.mark.parametrize("content", ["", "{", '{"state": "dancing"}', "[]"])
def test_a_damaged_status_is_no_status(tmp_path: Path, content: str) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) is None
    path.write_text(content)
    assert read_status(path) is None


def test_a_status_outlives_its_supervisor(tmp_path: Path) -> None:
    me = identify(os.getpid())
    assert me is not None
    assert Status(state="ready", pid=me.pid, started=me.started).alive
    assert not Status(state="ready", pid=me.pid, started=me.started - 100).alive
    assert not Status(state="ready").alive
