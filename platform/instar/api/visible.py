"""Visible: what of evolution a caller may see; the estimates of sealed tests take an approver."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from instar.api.auth import Caller, authenticate_anew
from instar.evolution import service
from instar.evolution.estimates import event_without, proposal_without, run_without
from instar.evolution.schemas import ProposalView, RunEvent, RunStatus
from instar_core.errors import PermissionDenied

__all__ = ["LOOK_S", "LiveReader", "RunReader", "visible_proposal", "visible_run"]

LOOK_S: Final = 5.0
"""How long a stream goes on after its reader's right to it has ended."""


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


class LiveReader:
    """Reads one run for a stream, which outlives keys, sessions and roles: asks for them again.

    Args:
        request: The request; carries the credential.
        caller: Who it was at first.
        run_id: The run.
    """

    def __init__(self, request: Request, caller: Caller, run_id: str) -> None:
        self._request = request
        self._reader = RunReader(caller, run_id)
        self._looked = time.monotonic()

    async def status(self) -> RunStatus:
        """Where the run stands.

        Raises:
            NotFoundError: If this project has no such run.
            Unauthenticated: If the credential holds no longer.
            PermissionDenied: If the reader's role ended, or works in another project now.
        """
        if time.monotonic() - self._looked >= LOOK_S:
            before, self._looked = self._reader, time.monotonic()
            caller = await authenticate_anew(self._request)
            if not caller.may("viewer") or caller.project_id != before.caller.project_id:
                raise PermissionDenied("this stream is not the caller's any more.")
            self._reader = RunReader(caller, before.run_id)
        return await self._reader.status()

    async def events(self, after: int) -> list[RunEvent]:
        """The run's events after a number, in order, as the reader may see them now."""
        return await self._reader.events(after)


def visible_run(caller: Caller, run: RunStatus) -> RunStatus:
    """The run's status as the caller may see it."""
    return run if caller.has("approver") else run_without(run)


def visible_proposal(caller: Caller, proposal: ProposalView) -> ProposalView:
    """The proposal as the caller may see it."""
    return proposal if caller.has("approver") else proposal_without(proposal)
