"""Jobs: one holder at a time, told apart by fencing tokens; the lost are found and counted."""

from __future__ import annotations

import asyncio

import pytest

from instar.store.jobs import (
    JOB_TOPIC,
    cancel_job,
    check_fence,
    create_job,
    finish_job,
    list_jobs,
    read_job,
    release_job,
    renew_lease,
    start_job,
)
from instar.store.session import Database
from instar.store.system import (
    ClaimedJob,
    claim_job,
    claim_next_job,
    list_due_jobs,
    pull_outbox,
    reap_jobs,
)
from instar.store.testing import MigratedDatabase
from instar_core.errors import LeaseLost, NotFoundError

pytestmark = pytest.mark.postgres


async def _create(
    db: Database, project: str, *, max_attempts: int = 5, queue: str = "default"
) -> str:
    async with db.transaction(project) as session:
        row = await create_job(
            session, project, "night", {"run": "r"}, max_attempts=max_attempts, queue=queue
        )
        return row.id


async def _claim(
    db: Database, job: str, worker: str = "w1", lease_s: float = 60.0
) -> ClaimedJob | None:
    async with db.system() as session:
        return await claim_job(session, job, worker=worker, lease_s=lease_s)


def _expire(database: MigratedDatabase, job: str) -> None:
    """The worker stopped renewing: its lease lies in the past."""
    database.query(
        "update job set lease_until = clock_timestamp() - interval '1 s' where id = %s", job
    )


def test_of_many_workers_one_gets_the_job(database: MigratedDatabase) -> None:
    async def work(db: Database) -> list[ClaimedJob]:
        job = await _create(db, database.project_id)
        claims = await asyncio.gather(*(_claim(db, job, f"w{i}") for i in range(8)))
        return [claim for claim in claims if claim is not None]

    claims = database.run(work)
    assert len(claims) == 1
    assert claims[0].project_id == database.project_id and claims[0].fencing_token == 1
    assert database.query("select state, attempts from job") == [("leased", 1)]


def test_s119_a_job_goes_through_its_states(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        job = await _create(db, project)
        claim = await _claim(db, job)
        assert claim is not None
        async with db.transaction(project) as session:
            await start_job(session, job, claim.fencing_token)
            before = (await read_job(session, job)).lease_until
            assert not await renew_lease(session, job, claim.fencing_token, lease_s=600.0)
            row = await read_job(session, job)
            assert row.state == "running" and before is not None and row.lease_until is not None
            assert (row.lease_until - before).total_seconds() > 500
            assert row.payload == {"run": "r"}
            await check_fence(session, job, claim.fencing_token)
            await finish_job(session, job, claim.fencing_token, "failed", error="it\x00broke")
        async with db.transaction(project) as session:
            row = await read_job(session, job)
            assert (row.state, row.last_error) == ("failed", "itbroke")
            with pytest.raises(LeaseLost):
                await check_fence(session, job, claim.fencing_token)
        assert await _claim(db, job) is None

    database.run(work)


def test_who_lost_the_lease_can_write_no_more(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        job = await _create(db, project)
        first = await _claim(db, job, "slow")
        assert first is not None
        _expire(database, job)
        second = await _claim(db, job, "quick")
        assert second is not None and second.fencing_token > first.fencing_token
        for attempt in (
            lambda s: check_fence(s, job, first.fencing_token),
            lambda s: start_job(s, job, first.fencing_token),
            lambda s: renew_lease(s, job, first.fencing_token, lease_s=5.0),
            lambda s: finish_job(s, job, first.fencing_token, "succeeded"),
            lambda s: release_job(s, project, job, first.fencing_token),
        ):
            with pytest.raises(LeaseLost, match="not held under fencing token"):
                async with db.transaction(project) as session:
                    await attempt(session)
        async with db.transaction(project) as session:
            await finish_job(session, job, second.fencing_token, "succeeded")

    database.run(work)


def test_a_checked_fence_holds_until_the_writer_commits(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        job = await _create(db, project)
        claim = await _claim(db, job)
        assert claim is not None
        async with db.transaction(project) as session:
            await check_fence(session, job, claim.fencing_token)
            _expire_in_vain = asyncio.create_task(_claim_expired(db, database, job))
            # The row is locked against claims: nobody else gets it while this writes.
            assert await _claim(db, job, "other") is None
        assert await _expire_in_vain is not None

    async def _claim_expired(db: Database, base: MigratedDatabase, job: str) -> ClaimedJob | None:
        await asyncio.to_thread(_expire, base, job)
        return await _claim(db, job, "other")

    database.run(work)


def test_the_reaper_requeues_and_in_the_end_buries(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> list[str]:
        job = await _create(db, project, max_attempts=2)
        states = []
        for _ in range(2):
            claim = await _claim(db, job, "crashing")
            assert claim is not None
            async with db.system() as session:
                assert await reap_jobs(session) == []
            _expire(database, job)
            async with db.system() as session:
                reaped = await reap_jobs(session)
            assert [(item.job_id, item.project_id) for item in reaped] == [(job, project)]
            states.append(reaped[0].state)
            with pytest.raises(LeaseLost):
                async with db.transaction(project) as session:
                    await check_fence(session, job, claim.fencing_token)
        assert await _claim(db, job) is None
        async with db.transaction(project) as session:
            assert "'crashing' stopped renewing" in (await read_job(session, job)).last_error
        return states

    assert database.run(work) == ["queued", "dead"]


def test_an_expired_job_without_attempts_left_is_not_claimed(database: MigratedDatabase) -> None:
    async def work(db: Database) -> ClaimedJob | None:
        job = await _create(db, database.project_id, max_attempts=1)
        assert await _claim(db, job) is not None
        _expire(database, job)
        return await _claim(db, job)

    assert database.run(work) is None


def test_cancelling_waiting_and_running_jobs(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        waiting, running = await _create(db, project), await _create(db, project)
        claim = await _claim(db, running)
        assert claim is not None
        async with db.transaction(project) as session:
            assert await cancel_job(session, waiting) == "cancelled"
            assert await cancel_job(session, running) == "leased"
            with pytest.raises(NotFoundError):
                await cancel_job(session, project)
        assert await _claim(db, waiting) is None
        async with db.transaction(project) as session:
            assert await renew_lease(session, running, claim.fencing_token, lease_s=5.0)
            await finish_job(session, running, claim.fencing_token, "cancelled")
        async with db.transaction(project) as session:
            assert await cancel_job(session, running) == "cancelled"

    database.run(work)


def test_a_cancelled_job_whose_worker_died_is_cancelled_not_repeated(
    database: MigratedDatabase,
) -> None:
    async def work(db: Database) -> str:
        job = await _create(db, database.project_id)
        await _claim(db, job)
        async with db.transaction(database.project_id) as session:
            await cancel_job(session, job)
        _expire(database, job)
        assert await _claim(db, job) is None
        async with db.system() as session:
            return (await reap_jobs(session))[0].state

    assert database.run(work) == "cancelled"


def test_s37_released_jobs_wait_and_ring_again(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        job = await _create(db, project)
        async with db.system() as session:
            assert [(i.topic, i.ref_id) for i in await pull_outbox(session)] == [(JOB_TOPIC, job)]
        claim = await _claim(db, job)
        assert claim is not None
        async with db.transaction(project) as session:
            await release_job(session, project, job, claim.fencing_token)
        async with db.system() as session:
            assert [i.ref_id for i in await pull_outbox(session)] == [job]
            assert [due.job_id for due in await list_due_jobs(session)] == [job]
        again = await _claim(db, job)
        assert again is not None and again.fencing_token == claim.fencing_token + 1
        async with db.transaction(project) as session:
            await release_job(session, project, job, again.fencing_token, delay_s=3600.0)
        async with db.system() as session:
            assert await list_due_jobs(session) == []
        assert await _claim(db, job) is None

    database.run(work)


def test_s31_the_outbox_is_sent_at_least_once(database: MigratedDatabase) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        jobs = [await _create(db, project) for _ in range(3)]
        with pytest.raises(RuntimeError):
            async with db.system() as session:
                assert len(await pull_outbox(session)) == 3
                raise RuntimeError("killed while sending")
        async with db.system() as session:
            assert [item.ref_id for item in await pull_outbox(session, limit=2)] == jobs[:2]
            # Another sender at the same time gets the rest, not the same.
            async with db.system() as other:
                assert [item.ref_id for item in await pull_outbox(other)] == jobs[2:]
        async with db.system() as session:
            assert await pull_outbox(session) == []

    database.run(work)


def test_s31_a_job_and_its_bell_commit_together(database: MigratedDatabase) -> None:
    async def work(db: Database) -> None:
        with pytest.raises(RuntimeError):
            async with db.transaction(database.project_id) as session:
                await create_job(session, database.project_id, "night", {})
                raise RuntimeError("the caller fails")

    database.run(work)
    assert database.query("select (select count(*) from job) + (select count(*) from outbox)") == [
        (0,)
    ]


def test_next_jobs_come_in_order_and_only_from_the_named_queues(
    database: MigratedDatabase,
) -> None:
    project = database.project_id

    async def work(db: Database) -> None:
        first = await _create(db, project, queue="nights")
        other = await _create(db, project, queue="other")
        second = await _create(db, project, queue="nights")
        got = []
        for _ in range(3):
            async with db.system() as session:
                claim = await claim_next_job(session, ["nights"], worker="w", lease_s=5.0)
            got.append(None if claim is None else claim.job_id)
        assert got == [first, second, None]
        async with db.transaction(project) as session:
            page = await list_jobs(session, project)
            assert [row.id for row in page.items] == [second, other, first]

    database.run(work)
