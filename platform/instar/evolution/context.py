"""The job context: everything a run's driver is given by the worker that holds the run's lease.

The worker claims the job, keeps its lease alive and builds one context; the driver writes under the
context's fencing token and stops when it is told to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from instar.settings import Settings

if TYPE_CHECKING:
    from instar.store.session import Database

__all__ = ["JobContext"]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class JobContext:
    """What :func:`instar.evolution.driver.execute` needs to run one evolution run.

    Attributes:
        db: Session factory of the service's database.
        project_id: Project the run belongs to; set for row-level security in every transaction.
        run_id: The evolution run to execute or continue.
        job_id: The job row whose lease this worker holds.
        fencing_token: Token of that lease; every write checks that it is still the newest.
        settings: Settings of this process.
        cancelled: True once the worker was told to stop (a person cancelled, or a shutdown). Cheap,
            called often, never blocks. A cancellation asked for through the service is also seen
            by the driver itself, in the database.
        lease_lost: True once the heartbeat learned that another worker holds the lease.
    """

    db: Database
    project_id: str
    run_id: str
    job_id: str
    fencing_token: int
    settings: Settings
    cancelled: Callable[[], bool] = _never
    lease_lost: Callable[[], bool] = _never
