"""tools/setup.sh refuses what cannot work before it changes anything, with the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_SCRIPT = Path(__file__).parents[2] / "tools" / "setup.sh"


def _run(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "VENV": str(tmp_path / "venv"), **variables}
    return subprocess.run(
        ["bash", str(_SCRIPT)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_old_python_is_named_with_its_version(tmp_path: Path) -> None:
    old = tmp_path / "python3.10"
    old.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 1\necho "Python 3.10.4"\n')
    old.chmod(0o755)
    done = _run(tmp_path, PYTHON=str(old))
    assert done.returncode == 2
    assert f"{old} is: Python 3.10.4." in done.stderr
    assert "make setup PYTHON=" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_no_python_at_all_is_said(tmp_path: Path) -> None:
    done = _run(tmp_path, PYTHON=str(tmp_path / "none"))
    assert done.returncode == 2
    assert "nothing that runs" in done.stderr


def test_a_full_disk_is_refused_with_both_numbers(tmp_path: Path) -> None:
    done = _run(tmp_path, PYTHON=sys.executable, INSTAR_MIN_FREE_MB="999999999")
    assert done.returncode == 2
    assert "999999999 MB needed" in done.stderr
    assert "make setup VENV=" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = _run(tmp_path, PYTHON=sys.executable, VENV=str(tmp_path / "file" / "venv"))
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
