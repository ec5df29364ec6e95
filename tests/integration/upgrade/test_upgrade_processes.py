"""Upgrades as processes: killed in the middle, two at once, asked whether ready meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from instar.store.migrate import check, head_revision
from instar.store.testing import MigratedDatabase

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def start(database: MigratedDatabase, folder: Path, *words: str) -> subprocess.Popen[str]:
    """`instar db …` on the database, as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "instar", "db", *words, "--json"],
        env={
            **os.environ,
            "INSTAR_DATABASE_URL": database.owner_url,
            "INSTAR_DATA_DIR": str(folder / "none"),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it printed, once it ended."""
    out, err = process.communicate(timeout=120)
    assert out, err
    answer: dict[str, Any] = json.loads(out)
    return answer


@contextmanager
def in_the_way(database: MigratedDatabase) -> Iterator[psycopg.Connection]:
    """A reader that the migration has to wait for, after it has made its first tables."""
    with psycopg.connect(database.owner_url) as connection:
        connection.execute("lock table instar.label_event in access share mode")
        yield connection


def wait_blocked(database: MigratedDatabase) -> None:
    """Until the migration waits for that reader: it has begun and cannot end."""
    for _ in range(2400):
        waiting = database.query(
            "select count(*) from pg_locks where not granted "
            "and relation = 'instar.label_event'::regclass"
        )
        if waiting[0][0]:
            return
        time.sleep(0.05)  # between two looks at the server, which tells nobody by itself
    raise AssertionError("the migration never came to the table")


def test_s117_killed_in_the_middle_leaves_the_old_schema_and_runs_again(
    released: Any, tmp_path: Path
) -> None:
    database = released.database
    tables = "select count(*) from pg_class where relnamespace = 'instar'::regnamespace"
    before = database.query(tables)
    with in_the_way(database):
        process = start(database, tmp_path, "upgrade")
        wait_blocked(database)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert "'0001'" in check(database.owner_url).reason
    done = finish(start(database, tmp_path, "upgrade"))
    assert done == {"before": "0001", "after": head_revision(), "changed": True}
    assert database.query(tables)[0][0] > before[0][0]
    assert finish(start(database, tmp_path, "check"))["ready"] is True


def test_s117_two_at_once_upgrade_once(released: Any, tmp_path: Path) -> None:
    database = released.database
    with in_the_way(database):
        both = [start(database, tmp_path, "upgrade") for _ in range(2)]
        wait_blocked(database)
    answers = sorted((finish(one) for one in both), key=lambda one: str(one["before"]))
    assert [one["before"] for one in answers] == ["0001", head_revision()]
    assert [one["changed"] for one in answers] == [True, False]


def test_s117_readiness_is_told_during_a_migration_and_does_not_break_it(
    released: Any, tmp_path: Path
) -> None:
    database = released.database
    with in_the_way(database):
        process = start(database, tmp_path, "upgrade")
        wait_blocked(database)
        for _ in range(3):
            asked = start(database, tmp_path, "check")
            found = finish(asked)
            assert asked.returncode == 1
            assert found["ready"] is False and "'0001'" in found["reason"], found
        assert process.poll() is None
    assert finish(process)["after"] == head_revision()
    assert check(database.owner_url).ready
