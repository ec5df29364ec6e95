"""The gate: every tool call is examined before it runs, and what cannot be examined does not run.

This is the seam; policies, approvals and taint come as further gates behind the same protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from instar.models.litellm_client import INVALID_ARGUMENTS
from instar.runtime.tools.listing import Catalogue, ToolEntry
from instar_core.base import Frozen, short
from instar_core.candidates import Candidate
from instar_core.json_schema import argument_problem
from instar_core.messages import ToolCall

__all__ = ["DefaultGate", "Gate", "GateDecision", "OnDecision", "examine"]

logger = logging.getLogger(__name__)


class GateDecision(Frozen):
    """Whether a call may run, under which rule, and why not, in words the model can act on."""

    allowed: bool
    rule: str
    reason: str = ""


OnDecision = Callable[[ToolCall, GateDecision], Awaitable[None]]
"""Writes a decision down before it takes effect; when it raises, the call does not run."""


class Gate(Protocol):
    """Decides over one call. Any exception counts as a refusal."""

    async def examine(self, call: ToolCall, entry: ToolEntry, candidate: Candidate) -> GateDecision:
        """The decision on a call of a tool that the agent is offered."""
        ...


class DefaultGate:
    """Allows calls of offered tools whose arguments satisfy the tool's own schema."""

    async def examine(self, call: ToolCall, entry: ToolEntry, candidate: Candidate) -> GateDecision:
        """The decision on a call of a tool that the agent is offered."""
        problem = argument_problem(entry.schema, call.arguments)
        if problem is not None:
            return GateDecision(
                allowed=False,
                rule="arguments",
                reason=f"Wrong arguments for {call.name}: {problem}",
            )
        return GateDecision(allowed=True, rule="offered")


async def examine(
    gate: Gate, call: ToolCall, catalogue: Catalogue, candidate: Candidate
) -> GateDecision:
    """The gate's decision, failing closed: no entry, no gate or a broken gate means no call.

    Args:
        gate: The gate in force.
        call: What the model asked for.
        catalogue: The tools that the agent is offered (its allow-list).
        candidate: The agent version that calls.
    """
    entry = catalogue.find(call.name)
    if entry is None:
        known = ", ".join(catalogue.names) or "none"
        return GateDecision(
            allowed=False,
            rule="not_offered",
            reason=f"There is no tool {short(call.name, 80)!r}. Tools: {known}.",
        )
    unread = call.arguments.get(INVALID_ARGUMENTS)
    if unread is not None and INVALID_ARGUMENTS not in entry.schema.get("properties", {}):
        return GateDecision(
            allowed=False,
            rule="arguments",
            reason=f"The arguments of {call.name} must be a JSON object, not {short(str(unread))}.",
        )
    try:
        decision = await gate.examine(call, entry, candidate)
        if not isinstance(decision, GateDecision):
            raise TypeError(f"the gate answered {short(repr(decision), 80)}")
        return decision
    except Exception as error:  # noqa: BLE001 - fails closed, whatever broke in the gate
        logger.exception("the gate failed on tool %r; the call is refused", call.name)
        return GateDecision(
            allowed=False,
            rule="gate_failed",
            reason=f"{call.name} was not run: it could not be examined ({type(error).__name__}).",
        )
