"""Two installations at once do the work once, and an interrupted one is not paid for again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from instar.engine.weights import is_installed, model_dir

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.model]


def _start(data_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "instar.models.install"],
        env={**os.environ, "INSTAR_DATA_DIR": str(data_dir)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_killed_then_twice_at_once(tmp_path: Path) -> None:
    killed = _start(tmp_path)
    assert killed.stdout is not None
    for line in killed.stdout:
        if "converting" in line:
            break
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait(timeout=30)
    killed.stdout.close()
    assert not is_installed(tmp_path)

    both = [_start(tmp_path), _start(tmp_path)]
    outputs = [process.communicate(timeout=500)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert is_installed(tmp_path)
    assert sum("converting" in output for output in outputs) == 1
    assert not any("fetching" in output for output in outputs)
    left = {path.name for path in (tmp_path / "models").iterdir()}
    assert left == {model_dir(tmp_path).name, ".install.lock"}
