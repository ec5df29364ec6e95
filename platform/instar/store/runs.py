"""Runs: calls of an agent in production, each with the exact agent version that answered.

A run's row is written before the agent starts and closed when it ends, so that one that was cut
short shows as such.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from instar.redaction import redact_text
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.pages import Page, read_page
from instar.store.tables import RunRow, VersionRow
from instar_core.base import JsonValue, new_id
from instar_core.errors import NotFoundError
from instar_core.messages import Messages
from instar_core.rollouts import Trajectory
from instar_core.usage import Usage

__all__ = [
    "NewRun",
    "RunEnd",
    "create_run",
    "finish_run",
    "list_runs",
    "read_run",
    "read_run_version",
]


class NewRun(NamedTuple):
    """A run about to start: which agent version a reference was resolved to, and the input."""

    agent: str
    agent_version_id: str
    label: str
    conversation: Messages


class RunEnd(NamedTuple):
    """How a run ended: ``succeeded`` with a trajectory, or ``failed`` or ``cancelled`` with why."""

    state: str
    trajectory: Trajectory | None = None
    usage: Usage = Usage()
    error: str = ""


async def create_run(session: AsyncSession, project_id: str, new: NewRun, by: Author) -> str:
    """Writes a run that starts now, audited in its own stream, and returns its id."""
    row = RunRow(
        id=new_id(),
        project_id=project_id,
        agent=new.agent,
        agent_version_id=new.agent_version_id,
        label=new.label,
        state="running",
        input=[message.model_dump(mode="json") for message in new.conversation],
        created_by=by.name,
        started_at=func.clock_timestamp(),
    )
    session.add(row)
    await session.flush()
    entry = AuditEntry(
        action="run.start",
        subject=f"agent/{new.agent}",
        details={"version_id": new.agent_version_id, "label": new.label},
        stream=row.id,
    )
    await append_audit(session, project_id, entry, by)
    return row.id


async def finish_run(session: AsyncSession, run_id: str, end: RunEnd) -> None:
    """Closes a run; one that is closed already stays as it is."""
    output: JsonValue = None
    if end.trajectory is not None:
        output = end.trajectory.model_dump(mode="json", exclude_defaults=True)
    await session.execute(
        update(RunRow)
        .where(RunRow.id == run_id, RunRow.state == "running")
        .values(
            state=end.state,
            output=output,
            stop="" if end.trajectory is None else end.trajectory.stop,
            usage=end.usage.model_dump(mode="json"),
            error=redact_text(end.error),
            finished_at=func.clock_timestamp(),
        )
    )


async def read_run(session: AsyncSession, run_id: str) -> RunRow:
    """The run.

    Raises:
        NotFoundError: If this project has none of that id.
    """
    row = await session.get(RunRow, run_id, populate_existing=True)
    if row is None:
        raise NotFoundError(f"there is no run {run_id!r} in this project.")
    return row


async def read_run_version(session: AsyncSession, run: RunRow) -> int:
    """The number of the agent version that answered."""
    number = await session.scalar(
        select(VersionRow.number).where(VersionRow.id == run.agent_version_id)
    )
    assert number is not None, "a run refers to its version by foreign key"
    return number


async def list_runs(
    session: AsyncSession,
    project_id: str,
    agent: str | None = None,
    *,
    limit: int = 50,
    cursor: str | None = None,
) -> Page[RunRow]:
    """The project's runs (of one agent), newest first."""
    query = select(RunRow).where(RunRow.project_id == project_id)
    if agent is not None:
        query = query.where(RunRow.agent == agent)
    return await read_page(session, query, RunRow, limit=limit, cursor=cursor)
