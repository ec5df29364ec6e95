"""Runs in production: an agent version answers a conversation with its live tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from instar.models.base import ModelClient
from instar.runtime.calls import DirectCalls
from instar.runtime.context import VectorCache, build_opening, tool_descriptions
from instar.runtime.gate import DefaultGate, Gate, OnDecision
from instar.runtime.loop import LoopContext, OnEvent, run_loop
from instar.runtime.tools.listing import Catalogue, Listing
from instar.runtime.tools.live import LiveTools
from instar_core.base import content_hash
from instar_core.candidates import Candidate
from instar_core.lab import Calls
from instar_core.messages import Message, Messages
from instar_core.rollouts import Trajectory

__all__ = ["RunServices", "live_catalogue", "run_agent"]


@dataclass(frozen=True, slots=True)
class RunServices:
    """What production runs share in one process: models, live tools, vectors, the gate."""

    models: Callable[[str], ModelClient]
    tools: LiveTools
    vectors: VectorCache | None = None
    gate: Gate = DefaultGate()


async def run_agent(
    candidate: Candidate,
    conversation: Messages | str,
    services: RunServices,
    *,
    run_id: str = "",
    calls: Calls | None = None,
    on_event: OnEvent | None = None,
    on_decision: OnDecision | None = None,
) -> Trajectory:
    """Runs an agent version on a conversation with its live tools.

    Args:
        candidate: The agent version, resolved once at the start of the run.
        conversation: Turns so far, or the text of a single user turn.
        services: Models, tools and vectors of this process.
        run_id: Names the run; seeds are derived from it.
        calls: A journal of the calls; without one they are performed directly.
        on_event: Told of each step as it happens.
        on_decision: Writes the gate's decision on each tool call down before the call runs.

    Returns:
        The trajectory; ``stop`` tells an answer from a limit.

    Raises:
        UserError: The agent, its tools or its model are misconfigured.
        InfrastructureError: Model or tool server failed.
    """
    if isinstance(conversation, str):
        conversation = (Message(role="user", content=conversation),)
    catalogue = await live_catalogue(candidate, services.tools)
    opening = await build_opening(candidate, conversation, catalogue, services.vectors)
    context = LoopContext(
        candidate=candidate,
        client=services.models(candidate.harness.model),
        catalogue=catalogue,
        host=services.tools,
        calls=calls or DirectCalls(),
        gate=services.gate,
        seed=int(content_hash([candidate.digest, run_id])[:7], 16),
        on_event=on_event,
        on_decision=on_decision,
    )
    return await run_loop(context, opening)


async def live_catalogue(candidate: Candidate, tools: LiveTools) -> Catalogue:
    """The tools that an agent version is offered in production; starts its servers."""
    listings: dict[str, Listing] = {}
    if candidate.harness.tool_protocol != "none":
        for server in candidate.harness.tools:
            listings[server.name] = await tools.listing(server.name)
    servers = [server for server in candidate.harness.tools if server.name in listings]
    return Catalogue.build(servers, listings, tool_descriptions(candidate))
