"""Visible: what of evolution a caller may see; the estimates of sealed tests take an approver."""

from __future__ import annotations

from dataclasses import dataclass

from instar.api.auth import Caller
from instar.evolution import service
from instar.evolution.estimates import event_without, proposal_without, run_without
from instar.evolution.schemas import ProposalView, RunEvent, RunStatus

__all__ = ["RunReader", "visible_proposal", "visible_run"]


@dataclass(frozen=True, slots=True)
class RunReader:
    """Reads one run of the caller's project, as the caller may see it."""

    caller: Caller
    run_id: str

    async def status(self) -> RunStatus:
        """Where the run stands.

        Raises:
            NotFoundError: If this project has no such run.
        """
        found = await service.read_run(self.caller.db, self.caller.project_id, self.run_id)
        return visible_run(self.caller, found)

    async def events(self, after: int, limit: int = 200) -> list[RunEvent]:
        """The run's events after a number, in order.

        Raises:
            NotFoundError: If this project has no such run.
        """
        caller = self.caller
        found = await service.list_events(
            caller.db, caller.project_id, self.run_id, after_seq=after, limit=limit
        )
        return found if caller.has("approver") else [event_without(event) for event in found]


def visible_run(caller: Caller, run: RunStatus) -> RunStatus:
    """The run's status as the caller may see it."""
    return run if caller.has("approver") else run_without(run)


def visible_proposal(caller: Caller, proposal: ProposalView) -> ProposalView:
    """The proposal as the caller may see it."""
    return proposal if caller.has("approver") else proposal_without(proposal)
