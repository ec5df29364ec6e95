"""The reconciler seals: when it starts, by its clock, and once more when it is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from instar.audit.keys import signing_key_file

if TYPE_CHECKING:
    from tests.integration.audit.conftest import Trail
else:
    Trail = Any

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def _start(
    trail: Trail, folder: Path, every_s: float, beat: str = "beat"
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "INSTAR_APP_DATABASE_URL": trail.database.app_url,
        "INSTAR_DATA_DIR": str(trail.settings.data_dir),
        "INSTAR_AUDIT__DIR": str(trail.settings.audit.dir),
        "INSTAR_AUDIT__CHECKPOINT_S": str(every_s),
        "INSTAR_BEAT_FILE": str(folder / beat),
    }
    with (folder / "reconciler.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "instar.jobs.reconciler"],
            env=environment,
            stdout=log,
            stderr=log,
        )


def _checkpoints(trail: Trail) -> int:
    return int(trail.database.query("select count(*) from audit_checkpoint")[0][0])


def _reached(trail: Trail, number: int) -> bool:
    return _checkpoints(trail) >= number


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.05)


def test_it_seals_at_its_start_and_at_its_end(trail: Trail, tmp_path: Path) -> None:
    trail.write(1)
    process = _start(trail, tmp_path, 3600.0)
    try:
        _wait(lambda: _checkpoints(trail) == 3, "sealed at the start")
        trail.write(2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert _checkpoints(trail) == 4
    report = trail.verify()
    assert report.ok and report.unsealed == 0 and report.outside == 4


def test_two_of_them_seal_by_their_clock_and_write_one_chain(trail: Trail, tmp_path: Path) -> None:
    beats = [f"beat-{place}" for place in range(2)]
    processes = [_start(trail, tmp_path, 0.1, beat) for beat in beats]
    try:
        for beat in beats:
            # Before its first sweep a process has no handler for SIGTERM yet.
            _wait((tmp_path / beat).exists, beat)
        for number in range(3, 6):
            trail.write(1)
            _wait(partial(_reached, trail, number), f"checkpoint {number}")
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(60) for process in processes]
    assert codes == [0, 0]
    report = trail.verify()
    assert report.ok and report.checkpoints == report.outside == 5


def test_without_a_key_it_says_so_and_does_its_other_work(trail: Trail, tmp_path: Path) -> None:
    signing_key_file(trail.settings).unlink()
    trail.write(1)
    process = _start(trail, tmp_path, 0.1)
    log = tmp_path / "reconciler.log"
    try:
        _wait(lambda: b"no audit checkpoint is written" in log.read_bytes(), "told in the log")
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert _checkpoints(trail) == 2
