"""Backups and restores that are killed: no half file, no half installation, and a fresh start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from instar.backup.protection import Protection
from instar.store.agents import load_candidate, save_agent
from instar.store.audit import SYSTEM
from instar.store.keyring import KeySource
from instar.store.secrets import check_keys
from instar.store.session import Database
from instar.store.testing import APP_PASSWORD
from instar.store.urls import app_url
from instar_core.errors import PrerequisiteError, UserError

if TYPE_CHECKING:
    from tests.integration.backup.conftest import Bench, Place

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def start(place: Place, *words: str, **extra: str) -> subprocess.Popen[str]:
    """One command on a place, as a process of its own."""
    environment = {
        **os.environ,
        "INSTAR_DATABASE_URL": place.database.owner_url,
        "INSTAR_APP_DATABASE_URL": app_url(place.database.owner_url, APP_PASSWORD),
        "INSTAR_DATA_DIR": str(place.data_dir),
        **extra,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "instar", *words],
        env={name: word for name, word in environment.items() if word},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until it holds; the process must not end before."""
    for _ in range(12_000):
        if condition():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)  # between two looks at what another process does
    raise AssertionError("it never came to that")


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory that the database's user may enter (pytest's own is private)."""
    directory = Path(tempfile.mkdtemp(prefix="instar-t"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def blocked(bench: Bench) -> Iterator[Callable[[], bool]]:
    """A lock that a reader of all tables has to wait for; whether one does."""
    with psycopg.connect(bench.source.database.owner_url) as connection:
        connection.execute("lock table instar.version_part in access exclusive mode")
        query = (
            "select count(*) from pg_locks where not granted "
            "and relation = 'instar.version_part'::regclass"
        )
        yield lambda: bench.source.database.query(query)[0][0] > 0


def test_a_killed_backup_leaves_nothing_under_its_name(
    bench: Bench, blocked: Callable[[], bool]
) -> None:
    target = bench.folder / "night.backup"
    process = start(bench.source, "backup", str(target), "--no-encryption")
    wait_for(blocked, process)
    assert not target.exists()
    with pytest.raises(PrerequisiteError, match="another backup is being written"):
        bench.back_up(target.name, Protection(none=True))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not target.exists()


def test_the_next_backup_replaces_what_a_killed_one_left(bench: Bench) -> None:
    left = bench.folder / ".night.backup.partial"
    left.write_bytes(b"half" * 1_000_000)
    bench.back_up("night.backup")
    assert not left.exists() and (bench.folder / "night.backup").stat().st_mode & 0o777 == 0o600
    assert bench.restore(bench.place("there"), "night.backup").hashes_equal


def test_s124_a_killed_restore_is_refused_by_the_service_and_starts_over(
    bench: Bench, short_dir: Path
) -> None:
    bench.back_up("b", Protection(none=True))
    there = bench.place("there", short_dir)
    words = ("restore", str(bench.folder / "b"), "--keys", str(bench.source.data_dir))
    # With an embedded server of its own: the longer way.
    embedded = {"INSTAR_DATABASE_URL": "", "INSTAR_APP_DATABASE_URL": ""}
    process = start(there, *words, **embedded)
    cluster = there.data_dir / "postgres" / "cluster"
    wait_for(cluster.exists, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (there.data_dir / "restoring.json").exists()
    assert not (there.data_dir / "instar.json").exists()
    for command in (("up",), ("backup", str(bench.folder / "c"), "--no-encryption")):
        refused = start(there, *command, **embedded)
        _, said = refused.communicate(timeout=60)
        assert refused.returncode == 2 and "began and did not end" in said, said
        assert "instar restore FILE" in said
    again = start(there, *words, **embedded)
    out, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert "every count and hash is equal" in out
    assert not (there.data_dir / "restoring.json").exists()
    # A backup of an installation whose service is down: its server runs meanwhile, and ends.
    once_more = start(there, "backup", str(bench.folder / "c"), "--no-encryption", **embedded)
    _, said = once_more.communicate(timeout=120)
    assert once_more.returncode == 0, said
    assert not (cluster / "postmaster.pid").exists()


def test_s124_a_restore_that_was_killed_after_the_dump_starts_over(bench: Bench) -> None:
    bench.back_up("b")
    there = bench.place("there")
    bench.restore(there, "b")
    # As if the kill had come just before the last rename.
    (there.data_dir / "instar.json").unlink()
    installation = there.database.query("select id::text from installation")[0][0]
    note = f'{{"backup": "x", "installation": "{installation}"}}'
    (there.data_dir / "restoring.json").write_text(note)
    # The keys that it had put in place are cleared with all the rest: they are asked for again.
    with pytest.raises(UserError, match=r"secrets\.keys, fingerprint"):
        bench.restore(there, "b", keys=None)
    # Those of the unfinished directory itself are no copy to restore from.
    with pytest.raises(UserError, match="unfinished restore"):
        bench.restore(there, "b", keys=there.data_dir)
    assert bench.restore(there, "b").hashes_equal
    assert there.database.query("select count(*) from evolution_run") == [(1,)]
    assert there.run(lambda db: check_keys(db, KeySource.of(there.settings))) == "ok"


def test_a_backup_is_one_moment_while_others_write(bench: Bench) -> None:
    project = bench.told["project"]
    stop = threading.Event()
    saved: list[int] = []

    def write() -> None:
        async def work(db: Database) -> None:
            number = 0
            while not stop.is_set():
                async with db.transaction(project) as session:
                    old = await load_candidate(session, project, "clerk", "latest")
                    changed = old.with_component("instructions", f"Number {number}.")
                    version = await save_agent(session, project, "clerk", changed, author=SYSTEM)
                saved.append(version.version)
                number += 1

        bench.source.run(work)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        taken = bench.back_up()
    finally:
        stop.set()
        writer.join()
    there = bench.place("there")
    report = bench.restore(there)
    assert report.hashes_equal and report.rows == taken.manifest.rows
    # Whole transactions: every version of the agent has its parts, and none is half there.
    newest, parts = there.database.query(
        "select max(v.number), min(p.parts) from version v join artifact a on a.id = v.artifact_id "
        "join lateral (select count(*) as parts from version_part p where p.version_id = v.id) p "
        "on true where a.kind = 'agent' and a.name = 'clerk'"
    )[0]
    assert parts == 4 and 3 <= newest <= max(saved)
    assert Path(taken.file).exists()
