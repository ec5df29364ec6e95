"""The agent backend: performs a Lab's effects with real models and sandboxed tools.

One rollout: build the context, run the agent loop on a private copy of its tools, read the final
state, let the verifier judge. What the agent caused (limits, overflow, bad arguments, its own
time-outs) scores 0 with words; what lies outside raises ``InfrastructureError`` and is no score.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from uuid import UUID

from instar.models.base import Embedder, ModelClient, ModelReply, ModelRequest
from instar.rollouts.bindings import resolve_bindings
from instar.rollouts.environment import RolloutTools
from instar.rollouts.slots import SlotPool
from instar.rollouts.verifiers.base import Verifier, score
from instar.rollouts.verifiers.registry import find_verifier
from instar.runtime.context import VectorCache, build_opening, tool_descriptions
from instar.runtime.gate import DefaultGate, Gate
from instar.runtime.loop import LoopContext, run_loop, run_reference
from instar.runtime.tools.config import TestBinding, ToolServerConfig
from instar.runtime.tools.listing import Catalogue
from instar.runtime.tools.secrets import SecretReader
from instar_core.base import content_hash
from instar_core.candidates import Candidate
from instar_core.errors import UserError
from instar_core.lab import CallOutcome, Calls, Role, RolloutRequest
from instar_core.messages import Message, Messages, Sampling
from instar_core.rollouts import Rollout, Score, StopReason, Trajectory
from instar_core.tasks import Task
from instar_core.usage import Amount, Usage

__all__ = ["NULL_ARM", "REFERENCE_ARM", "AgentBackend", "BackendServices"]

REFERENCE_ARM = "reference"
"""Arm in which the task's reference actions and answer are replayed instead of asking the model."""

NULL_ARM = "null"
"""Arm in which nothing is done at all; a sound verifier gives it 0."""

_AGENT_FAILURES: dict[StopReason, str] = {
    "max_steps": "The agent used all its {limits.max_steps} steps without finishing.",
    "max_tokens": "The agent used up its {limits.max_tokens} tokens without finishing.",
    "max_cost": "The agent used up its {limits.max_cost_usd} USD without finishing.",
    "timeout": "The agent did not finish within {limits.timeout_s} seconds.",
    "identical_calls": "The agent made the same call more than {limits.max_identical_calls} times.",
    "context_overflow": "The agent's messages no longer fitted into the model's context.",
}


@dataclass(frozen=True, slots=True)
class BackendServices:
    """What rollouts of one run work with.

    Attributes:
        models: Model name → client (``instar.models.registry.open_model`` with its settings).
        servers: The registered tool servers; only their test bindings are ever started, unless a
            server is declared free of effects.
        bindings: What the task set says: server name → test binding, by name or itself.
        embedder: Needed where demonstrations are retrieved by similarity.
        proposer: Name of the model that ``ask("proposer", …)`` asks; the judge's likewise.
        ask_sampling: How proposer and judge are sampled.
        slots: Most sandbox copies at once; a copy is held only while tools or state are used.
        work_dir: Where the copies' folders go.
        secrets: Where test bindings' secrets are read from; production's are refused there.
    """

    models: Callable[[str], ModelClient]
    servers: Sequence[ToolServerConfig] = ()
    bindings: Mapping[str, str | TestBinding] | None = None
    embedder: Embedder | None = None
    proposer: str = ""
    judge: str = ""
    ask_sampling: Sampling = Sampling(temperature=0.7, max_tokens=2_000)
    gate: Gate = DefaultGate()
    slots: int = 4
    work_dir: Path | None = None
    secrets: SecretReader | None = None


class AgentBackend:
    """Backend of the real agent runtime; use it as an async context manager in one event loop."""

    def __init__(self, services: BackendServices) -> None:
        self._services = services
        self._vectors = VectorCache(services.embedder) if services.embedder else None
        self._pools: dict[str, SlotPool] = {}
        self._clients: dict[str, ModelClient] = {}

    async def __aenter__(self) -> AgentBackend:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()

    def check(self, candidate: Candidate, tasks: Sequence[Task]) -> None:
        """Refuses what could not be run; the quote calls this before anything is spent.

        Raises:
            UserError: If a tool server has no test binding, or a task needs a state none reads.
            VerifierError: If a task names no usable verifier.
        """
        bound = resolve_bindings(candidate, self._services.servers, self._services.bindings or {})
        readable = {
            key
            for one in bound.values()
            if one.binding is not None and one.binding.state is not None
            for key in one.binding.state.keys
        }
        for task in tasks:
            verifier = find_verifier(task.verifier.name)
            verifier.check(task)
            if verifier.needs_state and not readable:
                raise UserError(
                    f"Task {task.id!r} is judged by the environment's state, but no test binding "
                    "of this agent's tool servers reads one.",
                    remedy="Add 'state' to the test binding.",
                )

    async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
        """Runs and scores one attempt; every model and tool call goes through ``calls``."""
        candidate, task = request.candidate, request.task
        pool = self._pool(candidate)
        verifier = find_verifier(task.verifier.name)
        async with RolloutTools(pool, task) as tools:
            trajectory = await self._attempt(request, calls, pool, tools)
            if verifier.needs_state and pool.has_state:
                state = await tools.state()
                trajectory = trajectory.model_copy(update={"final_state": state})
        used = Usage()
        for step in trajectory.steps:
            used = used + step.usage
        return Rollout(
            id=str(UUID(hex=request.identity[:32])),
            task_id=task.id,
            candidate_digest=candidate.digest,
            draw=request.draw,
            arm=request.arm,
            trajectory=trajectory,
            score=_judge(verifier, task, trajectory, candidate),
            usage=used,
        )

    def reserve_for(self, request: RolloutRequest) -> Amount:
        """One rollout; replaying a reference, or nothing, is no attempt of the agent."""
        return Amount(rollouts=0 if request.arm in (REFERENCE_ARM, NULL_ARM) else 1)

    async def ask(self, role: Role, messages: Messages, calls: Calls) -> str:
        """One reply of the proposer or judge model, unparsed.

        Raises:
            UserError: If no model is configured for the role.
        """
        name = self._services.proposer if role == "proposer" else self._services.judge
        if not name:
            raise UserError(
                f"No model is configured as {role}.",
                remedy=f"Name one as the run's {role} model.",
            )
        client = self._client(name)
        request = ModelRequest(
            model=name,
            messages=messages,
            sampling=self._services.ask_sampling,
            seed=int(content_hash([turn.model_dump(mode="json") for turn in messages])[:7], 16),
            capture=False,
        )

        async def perform() -> CallOutcome:
            started = time.monotonic()
            reply = await client.complete(request)
            elapsed = reply.usage.wall_s or time.monotonic() - started
            usage = reply.usage.model_copy(
                update={"model_calls": reply.usage.model_calls or 1, "wall_s": elapsed}
            )
            return CallOutcome(value=reply.model_dump(mode="json"), usage=usage)

        outcome = await calls.call(
            "model_call",
            request.model_dump(mode="json"),
            perform,
            reserve=client.reserve_for(request),
        )
        return ModelReply.model_validate(outcome.value).message.content

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors for the texts, in order.

        Raises:
            UserError: If no embedder is configured.
        """
        if self._vectors is None:
            raise UserError("No embedder is configured.", remedy="Install or configure one.")
        return await self._vectors.embed(texts)

    def _client(self, name: str) -> ModelClient:
        if name not in self._clients:
            self._clients[name] = self._services.models(name)
        return self._clients[name]

    def _pool(self, candidate: Candidate) -> SlotPool:
        """The slots for the candidate's set of tool servers, shared by all with the same set."""
        names = [server.name for server in candidate.harness.tools]
        key = content_hash(names if candidate.harness.tool_protocol != "none" else [])
        if key not in self._pools:
            services = self._services
            bound = resolve_bindings(candidate, services.servers, services.bindings or {})
            if candidate.harness.tool_protocol == "none":
                bound = {}
            self._pools[key] = SlotPool(bound, services.slots, services.work_dir, services.secrets)
        return self._pools[key]

    async def _attempt(
        self, request: RolloutRequest, calls: Calls, pool: SlotPool, tools: RolloutTools
    ) -> Trajectory:
        """The trajectory of the agent, of the task's references, or of doing nothing."""
        candidate, task = request.candidate, request.task
        conversation = (Message(role="user", content=task.input),)
        if request.arm == NULL_ARM:
            return Trajectory(opening=conversation)
        servers = [one for one in candidate.harness.tools if pool.offers(one.name)]
        listings = await pool.listings(task)
        catalogue = Catalogue.build(servers, listings, tool_descriptions(candidate))
        context = LoopContext(
            candidate=candidate,
            client=self._client(candidate.harness.model),
            catalogue=catalogue,
            host=tools,
            calls=calls,
            gate=self._services.gate,
            seed=int(request.identity[:7], 16),
        )
        if request.arm == REFERENCE_ARM:
            return await run_reference(
                context, conversation, task.reference_actions, task.reference_answer
            )
        opening = await build_opening(candidate, conversation, catalogue, self._vectors)
        return await run_loop(context, opening)


def _judge(verifier: Verifier, task: Task, trajectory: Trajectory, candidate: Candidate) -> Score:
    failure = _AGENT_FAILURES.get(trajectory.stop)
    if failure is None:
        return verifier.score(task, trajectory)
    words = failure.format(limits=candidate.harness.limits)
    return score(verifier.name, 0.0, words, stop=trajectory.stop)
