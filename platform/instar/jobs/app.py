"""The Celery application: a doorbell. Messages carry a job's id and nothing else.

Run as ``celery -A instar.jobs.app worker`` or, with everything set up, as
``python -m instar.jobs.worker``.
"""

from __future__ import annotations

from celery import Celery

from instar.settings import load_settings, prepare_process

__all__ = ["QUEUES", "app", "create_app"]

QUEUES = ("default",)
_LONGEST_JOB_S = 7 * 24 * 3600


def create_app(broker_url: str) -> Celery:
    """A Celery application on one broker.

    A message is acknowledged when it is received: what runs is decided by the job's row, and a
    bell that is lost is rung again by the reconciler. Hence no result store, no late
    acknowledgement, and no redelivery that could start a second run.
    """
    celery = Celery("instar", broker=broker_url, include=["instar.jobs.tasks"])
    celery.conf.update(
        accept_content=["json"],
        task_serializer="json",
        event_serializer="json",
        result_serializer="json",
        task_ignore_result=True,
        task_acks_late=False,
        task_default_queue="default",
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        # A broker that goes away must not take a running job with it.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=5,
        broker_transport_options={
            "visibility_timeout": _LONGEST_JOB_S,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
        },
        enable_utc=True,
    )
    return celery


prepare_process()
app = create_app(load_settings().redis_url or "redis://127.0.0.1:6379/0")
