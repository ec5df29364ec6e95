"""Backup and restore of a running service, as a person does it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.postgres, pytest.mark.slow]
ROOT = Path(__file__).parents[3]


def test_s124_a36_the_restored_service_answers_the_same_with_the_same_versions() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.restore", "--json"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for promise in ("same_answer", "same_version_ids", "hashes_equal", "audit_ok", "secret_kept"):
        assert report[promise] is True, report
    assert report["encrypted"] and report["versions"] == 3
    assert report["tables"] > 40 and report["rows"] > 30
