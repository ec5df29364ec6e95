"""Leases of workers that are known to be gone: ended at once, not after their time."""

from __future__ import annotations

from instar.jobs.runner import database_url
from instar.settings import Settings
from instar.store import job_ends, system
from instar.store.session import Database

__all__ = ["free_former_leases", "free_leases"]


async def free_leases(db: Database, worker: str) -> int:
    """Ends what the former processes of a named worker held, in every project.

    Only where one worker of that name runs at a time, as the supervisor sees to. A process that is
    alive against all expectation is refused by its fencing token once the job was taken again.

    Returns:
        How many leases ended.
    """
    async with db.system() as session:
        project_ids = await system.list_projects(session)
    ended = 0
    for project_id in project_ids:
        async with db.transaction(project_id) as session:
            ended += await job_ends.expire_leases(session, f"{worker}/")
    return ended


async def free_former_leases(settings: Settings) -> int:
    """The same for this process's own name, with connections that are closed afterwards."""
    if not settings.worker.name:
        return 0
    db = Database(database_url(settings), pool_size=1)
    try:
        return await free_leases(db, settings.worker.name)
    finally:
        await db.close()
