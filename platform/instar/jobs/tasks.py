"""The one Celery task: claim a job's lease and do its work."""

from __future__ import annotations

import asyncio

from instar.jobs.app import app

__all__ = ["run_job"]


@app.task(name="instar.run_job", ignore_result=True)  # type: ignore[untyped-decorator]
def run_job(job_id: str) -> str:
    """Runs a job if its lease can be had; a second delivery of a running job ends at once.

    Args:
        job_id: The job's id. Everything else is read from the database.

    Returns:
        What happened, for the worker's log: the job's state, ``not_claimed`` or ``lease_lost``.
    """
    # Imported here: nothing that opens connections may be loaded before the worker forks.
    from instar.jobs.runner import run_claimed
    from instar.settings import load_settings

    return asyncio.run(run_claimed(job_id, load_settings()))
