"""Jobs under their leases, in this process: claims, endings, cancellation, lost leases."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from instar.jobs.reconciler import Reconciler
from instar.jobs.runner import run_claimed
from instar.jobs.signals import StopFlag
from instar.store import jobs as job_store
from instar.store import system
from instar.store.session import Database

if TYPE_CHECKING:
    from tests.integration.jobs.conftest import House

pytestmark = pytest.mark.postgres


@pytest.fixture(autouse=True)
def probes(house: House) -> None:
    """Makes the probes known to this process."""
    importlib.import_module("probe_jobs")


def state_of(house: House, run_id: str) -> tuple[Any, ...]:
    (row,) = house.database.query("select state, reason from evolution_run where id = %s", run_id)
    return row


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for happens in files and databases
        await asyncio.sleep(0.01)


def test_does_a_job_once(house: House) -> None:
    job = house.add("count")
    assert asyncio.run(run_claimed(job, house.settings)) == "succeeded"
    assert asyncio.run(run_claimed(job, house.settings)) == "not_claimed"
    found = house.job(job)
    assert (found["state"], found["attempts"], found["token"]) == ("succeeded", 1, 1)
    assert len(house.traced("count")) == 1


def test_s36_a_second_delivery_of_a_running_job_ends_at_once(house: House) -> None:
    job = house.add("wait")

    async def deliver_twice() -> tuple[str, str]:
        first = asyncio.create_task(run_claimed(job, house.settings))
        await until(lambda: bool(house.traced("begin")))
        second = await run_claimed(job, house.settings)
        house.release()
        return await first, second

    assert asyncio.run(deliver_twice()) == ("succeeded", "not_claimed")
    assert len(house.traced("begin")) == 1


def test_s36_the_heartbeat_outlasts_the_lease_time(house: House) -> None:
    """A job several times as long as its lease is not taken away."""
    house.lease_s = 0.6
    job = house.add("wait")

    async def outlast() -> str:
        work = asyncio.create_task(run_claimed(job, house.settings))
        await until(lambda: bool(house.traced("begin")))
        db = Database(house.database.app_url)
        first = house.database.query("select lease_until from job where id = %s", job)[0][0]
        while house.database.query(
            "select lease_until > %s + interval '1.5 seconds' from job where id = %s", first, job
        ) != [(True,)]:
            async with db.system() as session:
                assert await system.reap_jobs(session) == []
            await asyncio.sleep(0.05)
        await db.close()
        house.release()
        return await work

    assert asyncio.run(outlast()) == "succeeded"


def test_s48_an_uncaught_error_is_failed_with_its_cause(
    house: House, run_of: Callable[[str], str]
) -> None:
    job = house.add("wrong")
    run = run_of(job)
    assert asyncio.run(run_claimed(job, house.settings)) == "failed"
    found = house.job(job)
    assert found["error"] == "ZeroDivisionError: the mean of nothing"
    assert found["finished"]
    assert state_of(house, run) == ("failed", "ZeroDivisionError: the mean of nothing")


def test_work_that_leaves_its_run_open_has_failed(
    house: House, run_of: Callable[[str], str]
) -> None:
    job = house.add("count")
    run = run_of(job)
    assert asyncio.run(run_claimed(job, house.settings)) == "failed"
    assert state_of(house, run)[0] == "failed"


@pytest.mark.parametrize(
    ("run_state", "job_state"),
    [("failed", "failed"), ("cancelled", "cancelled"), ("no_improvement", "succeeded")],
)
def test_a_job_ends_as_its_run_did(
    house: House, run_of: Callable[[str], str], run_state: str, job_state: str
) -> None:
    job = house.add("count")
    run = run_of(job)
    house.database.query(
        "update evolution_run set state = %s, reason = 'because' where id = %s", run_state, run
    )
    assert asyncio.run(run_claimed(job, house.settings)) == job_state
    assert state_of(house, run) == (run_state, "because")
    if job_state != "succeeded":
        assert house.job(job)["error"] == "because"


@pytest.mark.parametrize(
    ("job_state", "run_state"),
    [("queued", "interrupted"), ("dead", "failed"), ("cancelled", "cancelled")],
)
def test_s44_a_run_that_says_otherwise_than_its_job_is_put_right(
    house: House, run_of: Callable[[str], str], job_state: str, run_state: str
) -> None:
    """As after a crash between the end of the job and the word to its run."""
    job = house.add("count")
    run = run_of(job)
    house.database.query(
        "update job set state = %s, last_error = 'gone', run_after = 'infinity' where id = %s",
        job_state,
        job,
    )
    house.database.query("update outbox set sent_at = clock_timestamp()")
    for _ in range(2):
        house.database.run(lambda db: Reconciler(db).sweep())
        assert state_of(house, run)[0] == run_state


def test_an_unknown_kind_has_failed(house: House) -> None:
    job = house.add("nothing_of_that_name")
    assert asyncio.run(run_claimed(job, house.settings)) == "failed"
    assert "no handler for jobs of kind 'probe.nothing_of_that_name'" in str(
        house.job(job)["error"]
    )


def test_s119_s120_trouble_outside_gives_the_job_back_until_it_is_dead(
    house: House, run_of: Callable[[str], str]
) -> None:
    job = house.add("away", max_attempts=2)
    run = run_of(job)
    assert asyncio.run(run_claimed(job, house.settings)) == "queued"
    assert state_of(house, run)[0] == "interrupted"
    assert asyncio.run(run_claimed(job, house.settings)) == "not_claimed", "not before its time"
    house.database.query("update job set run_after = clock_timestamp() where id = %s", job)
    assert asyncio.run(run_claimed(job, house.settings)) == "dead"
    assert house.job(job)["error"] == "the provider is away."
    assert state_of(house, run) == ("failed", "the provider is away.")


def test_trouble_that_lasts_is_waited_for_longer_each_time(house: House) -> None:
    job = house.add("away", max_attempts=50)
    clock = "select extract(epoch from clock_timestamp())"
    for attempt, wait in enumerate((5, 10, 20, 40, 80, 160, 300, 300), start=1):
        before = house.database.query(clock)[0][0]
        assert asyncio.run(run_claimed(job, house.settings)) == "queued"
        after = house.database.query(clock)[0][0]
        row = house.database.query("select extract(epoch from run_after), attempts from job")[0]
        assert row[1] == attempt and before + wait <= row[0] <= after + wait
        house.database.query("update job set run_after = clock_timestamp()")


def test_s47_cancelling_ends_a_running_job(house: House, run_of: Callable[[str], str]) -> None:
    job = house.add("wait")
    run = run_of(job)
    assert asyncio.run(_cancel_running(house, job, grace_s=60.0)) == "cancelled"
    assert house.job(job)["state"] == "cancelled"
    assert state_of(house, run)[0] == "cancelled"


def test_s47_cancelling_ends_a_job_that_does_not_listen(house: House) -> None:
    job = house.add("stubborn")
    assert asyncio.run(_cancel_running(house, job, grace_s=0.1)) == "cancelled"


async def _cancel_running(house: House, job: str, *, grace_s: float) -> str:
    work = asyncio.create_task(run_claimed(job, house.settings, stop=StopFlag(), grace_s=grace_s))
    await until(lambda: bool(house.traced("begin")))
    db = Database(house.database.app_url)
    async with db.transaction(house.database.project_id) as session:
        assert await job_store.cancel_job(session, job) == "running"
    await db.close()
    return await work


def test_a_cancelled_waiting_job_never_runs(house: House) -> None:
    job = house.add("count")

    async def cancel(db: Database) -> str:
        async with db.transaction(house.database.project_id) as session:
            return await job_store.cancel_job(session, job)

    assert house.database.run(cancel) == "cancelled"
    assert asyncio.run(run_claimed(job, house.settings)) == "not_claimed"
    assert house.trace == []


def test_a_shutdown_gives_the_job_back_without_counting(
    house: House, run_of: Callable[[str], str]
) -> None:
    for kind, grace_s in (("wait", 60.0), ("stubborn", 0.1)):
        job = house.add(kind)
        run = run_of(job)
        stop = StopFlag()

        async def leave(job: str = job, stop: StopFlag = stop, grace_s: float = grace_s) -> str:
            begun = len(house.traced("begin"))
            work = asyncio.create_task(run_claimed(job, house.settings, stop=stop, grace_s=grace_s))
            await until(lambda: len(house.traced("begin")) > begun)
            stop.set()
            return await work

        assert asyncio.run(leave()) == "queued"
        found = house.job(job)
        assert (found["attempts"], found["token"]) == (0, 2), "and the old token is void"
        assert state_of(house, run)[0] == "interrupted"


def test_who_lost_the_lease_stops_and_writes_nothing(house: House) -> None:
    job = house.add("stolen")

    async def steal() -> str:
        work = asyncio.create_task(run_claimed(job, house.settings))
        await until(lambda: house.job(job)["state"] == "running")
        house.database.query(
            "update job set fencing_token = fencing_token + 1, worker = 'other' where id = %s", job
        )
        return await work

    assert asyncio.run(steal()) == "lease_lost"
    found = house.job(job)
    assert (found["state"], found["worker"], found["error"]) == ("running", "other", "")
