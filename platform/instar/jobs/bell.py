"""The bell: tells a worker through the broker that a job waits.

Best effort by design. A bell that is lost costs a few seconds, for the reconciler rings every job
that still waits.
"""

from __future__ import annotations

import asyncio
import logging

from kombu.exceptions import OperationalError

__all__ = ["ring", "ring_job"]

_log = logging.getLogger(__name__)
_BELL_LIVES_S = 120.0


def ring(job_id: str, queue: str = "default") -> bool:
    """Sends one bell, waiting for the broker.

    Returns:
        Whether the broker took it.
    """
    from instar.jobs.app import app

    try:
        app.send_task(
            "instar.run_job", args=[job_id], queue=queue, retry=False, expires=_BELL_LIVES_S
        )
    except (OperationalError, OSError) as error:
        _log.warning("the broker is away, job %s waits for the reconciler: %s", job_id, error)
        return False
    return True


async def ring_job(job_id: str, queue: str = "default") -> bool:
    """Sends one bell without blocking the event loop; to be called after the job's commit."""
    return await asyncio.to_thread(ring, job_id, queue)
