"""Jobs in real worker processes: round trip, kills, zombies, poison, shutdown, a dead broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.integration.jobs.conftest import House

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def run_state(house: House, run_id: str) -> str:
    (row,) = house.database.query("select state from evolution_run where id = %s", run_id)
    return str(row[0])


def begun(house: House, times: int = 1) -> Callable[[], bool]:
    return lambda: len(house.traced("begin")) >= times


@pytest.fixture
def wait() -> Callable[[Callable[[], bool], str], None]:
    """The polling helper of this folder's conftest."""
    import time

    def wait_for(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, f"never happened: {what}"
            time.sleep(0.02)

    return wait_for


Wait = Callable[[Callable[[], bool], str], None]


def test_a_job_goes_round(house: House) -> None:
    house.start("reconciler")
    house.worker()
    jobs = [house.add("count") for _ in range(5)]
    for job in jobs:
        house.wait_state(job, "succeeded")
    assert len(house.traced("count")) == 5
    unsent = house.database.query("select count(*) from outbox where sent_at is null")
    assert unsent == [(0,)]


def test_s44_a_killed_child_is_replaced_and_its_job_runs_again_once(
    house: House, wait: Wait, run_of: Callable[[str], str]
) -> None:
    house.start("reconciler")
    house.worker()
    job = house.add("wait")
    wait(begun(house), "job begun")
    run = run_of(job)
    house.database.query("update evolution_run set state = 'running' where id = %s", run)
    os.kill(int(house.traced("begin")[0][2]), signal.SIGKILL)
    wait(begun(house, 2), "job begun again: " + house.log("worker"))
    house.database.query("update evolution_run set state = 'succeeded' where id = %s", run)
    house.release()
    found = house.wait_state(job, "succeeded")
    first, second = (int(words[1]) for words in house.traced("begin"))
    assert second > first
    assert found["attempts"] == 2
    assert house.traced("end") == [["end", str(second)]]


def test_s51_a_killed_worker_leaves_no_child_and_its_job_runs_again_once(
    house: House, wait: Wait, run_of: Callable[[str], str]
) -> None:
    house.start("reconciler")
    worker = house.worker()
    job = house.add("wait")
    wait(begun(house), "job begun")
    run = run_of(job)
    child = psutil.Process(int(house.traced("begin")[0][2]))
    worker.kill()
    worker.wait()
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    wait(lambda: run_state(house, run) == "interrupted", "run interrupted")
    house.database.query("update evolution_run set state = 'succeeded' where id = %s", run)
    house.worker()
    wait(begun(house, 2), "job begun again")
    house.release()
    house.wait_state(job, "succeeded")
    assert len(house.traced("begin")) == 2
    assert len(house.traced("end")) == 1


def test_s45_a_named_worker_frees_what_its_killed_forerunner_held(house: House, wait: Wait) -> None:
    """The supervisor's one worker need not wait for the lease of the one before it."""
    house.lease_s, house.name = 3600.0, "local-1"
    house.start("reconciler")
    worker = house.worker()
    job = house.add("wait")
    wait(begun(house), "job begun")
    worker.kill()
    worker.wait()
    house.worker()
    wait(begun(house, 2), "job begun again")
    house.release()
    house.wait_state(job, "succeeded")


def test_a_zombie_is_refused_by_its_fence(house: House, wait: Wait) -> None:
    """A worker that is stopped past its lease wakes up and may write no more."""
    house.start("reconciler")
    first = house.worker()
    job = house.add("wait")
    wait(begun(house), "job begun")
    zombie = int(house.traced("begin")[0][2])
    os.kill(first.pid, signal.SIGSTOP)
    os.kill(zombie, signal.SIGSTOP)
    wait(lambda: house.job(job)["state"] == "queued", "job reaped")
    house.worker()
    wait(begun(house, 2), "job begun by another")
    os.kill(zombie, signal.SIGCONT)
    wait(lambda: bool(house.traced("lost")), "zombie refused")
    assert house.job(job)["state"] == "running", "and it changed nothing"
    os.kill(first.pid, signal.SIGCONT)
    house.release()
    house.wait_state(job, "succeeded")
    tokens = [int(words[1]) for words in house.traced("begin")]
    assert house.traced("lost") == [["lost", str(tokens[0])]]
    assert house.traced("end") == [["end", str(tokens[1])]]


def test_s119_s120_poison_is_dead_after_its_attempts(
    house: House, run_of: Callable[[str], str]
) -> None:
    job = house.add("poison", max_attempts=2)
    run = run_of(job)
    house.start("reconciler")
    house.worker()
    found = house.wait_state(job, "dead")
    assert len(house.traced("poison")) == 2
    assert "stopped renewing its lease" in str(found["error"])
    healthy = house.add("count")
    house.wait_state(healthy, "succeeded")
    assert run_state(house, run) == "failed"


def test_a_stopped_worker_gives_its_job_back_at_once(house: House, wait: Wait) -> None:
    house.lease_s = 60.0
    house.start("reconciler")
    worker = house.worker()
    job = house.add("wait")
    wait(begun(house), "job begun")
    worker.terminate()
    worker.wait(timeout=60)
    found = house.wait_state(job, "queued")
    assert found["attempts"] == 0
    house.worker()
    wait(begun(house, 2), "job begun again")
    house.release()
    house.wait_state(job, "succeeded")


def test_s31_a_broker_that_died_is_rung_again(house: House, wait: Wait) -> None:
    house.start("reconciler")
    house.worker()
    running = house.add("wait")
    wait(begun(house), "job begun")
    waiting = house.add("count")
    house.kill_broker()
    house.start_broker()
    house.release()
    house.wait_state(running, "succeeded")
    house.wait_state(waiting, "succeeded")
    assert len(house.traced("begin")) == 1, "the running job was left alone"
    assert len(house.traced("count")) == 1
