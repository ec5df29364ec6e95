"""The queue takes JSON from those who know the password, and executes nothing else (A37)."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

if TYPE_CHECKING:
    from tests.integration.jobs.conftest import House

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


class Boom:
    """Makes a directory when somebody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def test_a37_a_pickled_message_is_refused_and_not_executed(house: House, tmp_path: Path) -> None:
    from kombu.connection import Connection
    from kombu.entity import Exchange, Queue

    touched = tmp_path / "unpickled"
    body = pickle.dumps(((Boom(touched),), {}, {}))
    pickle.loads(pickle.dumps(Boom(tmp_path / "proof")))
    assert (tmp_path / "proof").exists(), "the message would do harm"
    house.worker()
    exchange = Exchange("default", type="direct")
    with Connection(house.broker.url) as connection:
        connection.Producer(exchange=exchange).publish(
            body,
            routing_key="default",
            declare=[Queue("default", exchange, "default")],
            content_type="application/x-python-serialize",
            content_encoding="binary",
            headers={"task": "instar.run_job", "id": "x", "lang": "py", "argsrepr": "()"},
        )
    # What comes after it in the same queue is done, so the message has been met by then.
    from instar.jobs.app import create_app

    job = house.add("count")
    celery = create_app(house.broker.url)
    celery.send_task("instar.run_job", args=[job], queue="default")
    house.wait_state(job, "succeeded")
    celery.close()
    assert not touched.exists()
    log = (house.folder / "worker.log").read_text()
    assert "Refusing to deserialize" in log or "ContentDisallowed" in log, log[-2000:]


def test_a37_the_queue_is_json_alone() -> None:
    from instar.jobs.app import create_app

    conf = create_app("redis://127.0.0.1:1/0").conf
    assert list(conf.accept_content) == ["json"]
    assert {conf.task_serializer, conf.event_serializer, conf.result_serializer} == {"json"}


def test_a37_the_broker_asks_for_its_password_and_listens_at_home(house: House) -> None:
    port = house.broker.port
    for password in (None, "", "redis", "password", "instar"):
        link = redis.Redis(port=port, password=password)
        with pytest.raises(redis.RedisError):
            link.ping()
        with pytest.raises(redis.RedisError):
            link.lpush("default", "x")
        link.close()
