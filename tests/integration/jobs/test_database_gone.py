"""A database that goes away in the middle of a job: nothing is lost, the end is written later."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from instar.jobs.install import install
from instar.jobs.runner import run_claimed
from instar.settings import Settings, WorkerSettings
from instar.store.testing import PostgresCluster, create_database, start_cluster

if TYPE_CHECKING:
    from tests.integration.jobs.conftest import House

pytestmark = pytest.mark.postgres


@pytest.fixture
def mortal(house: House) -> Iterator[PostgresCluster]:
    """A database server of this test's own, in place of the session's."""
    importlib.import_module("probe_jobs")
    directory = Path(tempfile.mkdtemp(prefix="instar-t"))
    directory.chmod(0o711)
    cluster = start_cluster(directory)
    house.database = create_database(cluster)
    # The tests' servers do without it, and a killed server would forget the last commits.
    name = sql.Identifier(house.database.name)
    cluster.execute(sql.SQL("alter database {} set synchronous_commit = on").format(name))
    yield cluster
    cluster.server.stop()
    shutil.rmtree(directory, ignore_errors=True)


def kill(cluster: PostgresCluster) -> None:
    pid = cluster.server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["offline", "wait"])
def test_a_job_outlives_its_database(house: House, mortal: PostgresCluster, kind: str) -> None:
    """One that works on meanwhile ends well; one that asks the database is given back."""
    house.lease_s = 30.0
    job = house.add(kind)

    async def run() -> str:
        work = asyncio.create_task(run_claimed(job, house.settings))
        while not house.traced("begin"):  # noqa: ASYNC110 - a file, not an event
            await asyncio.sleep(0.01)
        kill(mortal)
        house.release()
        done, _ = await asyncio.wait({work}, timeout=0.3)
        assert not done, "the end cannot have been written yet"
        mortal.server.start()
        return await work

    outcome = asyncio.run(run())
    found = house.job(job)
    assert outcome == found["state"]
    if kind == "offline":
        assert outcome == "succeeded"
    else:
        assert outcome in ("queued", "succeeded")
    assert found["token"] == (2 if outcome == "queued" else 1)


def test_set_up_again_is_the_same_and_frees_old_leases(
    house: House, mortal: PostgresCluster, tmp_path: Path
) -> None:
    job = house.add("count")
    house.database.query(
        "update job set state = 'running', worker = 'local-1/77', fencing_token = 3, attempts = 1,"
        " lease_until = clock_timestamp() + interval '1 hour' where id = %s",
        job,
    )
    other = house.add("count")
    house.database.query(
        "update job set state = 'running', worker = 'local-10/77', fencing_token = 3,"
        " lease_until = clock_timestamp() + interval '1 hour' where id = %s",
        other,
    )
    settings = Settings(
        data_dir=tmp_path / "data",
        database_url=house.database.owner_url,
        app_database_url=house.database.app_url,
        project="test",
        worker=WorkerSettings(name="local-1"),
    )
    from instar.embedded.layout import Layout

    layout = Layout(tmp_path / "data")
    layout.prepare()
    revision = asyncio.run(install(settings))
    key = layout.api_key.read_text()
    assert (house.job(job)["state"], house.job(job)["token"]) == ("queued", 4)
    assert house.job(other)["state"] == "running", "another machine's lease is not ours to end"
    assert asyncio.run(install(settings)) == revision
    assert layout.api_key.read_text() == key
    assert layout.read_marker().schema_revision == revision
    assert layout.read_marker().database == "external"
    layout.api_key.unlink()
    asyncio.run(install(settings))
    assert layout.api_key.read_text() != key
    live = house.database.query("select count(*) from api_key where revoked_at is null")
    assert live == [(1,)], "the key that nobody holds any more opens nothing"
