"""Agents in production: resolves a version, runs it with its live tools, and records the run.

The label is resolved once, when the run starts, and read from the database each time; the run names
the exact version that answered. One instance per process and event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from instar.models.base import Embedder, ModelClient
from instar.runtime.calls import DirectCalls
from instar.runtime.context import VectorCache
from instar.runtime.gate import GateDecision, OnDecision
from instar.runtime.loop import OnEvent
from instar.runtime.run import RunServices, run_agent
from instar.runtime.tools.config import ToolServerConfig
from instar.runtime.tools.live import LiveTools
from instar.runtime.tools.secrets import StoredSecrets
from instar.settings import Settings
from instar.store.agents import load_candidate_version, read_agent
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.keyring import KeySource
from instar.store.runs import NewRun, RunEnd, create_run, finish_run
from instar.store.servers import list_servers
from instar.store.session import Database
from instar_core.base import content_hash, short
from instar_core.candidates import Candidate
from instar_core.errors import InstarError, UserError
from instar_core.messages import Messages, ToolCall
from instar_core.rollouts import Trajectory
from instar_core.usage import Usage

__all__ = ["AgentCall", "AgentRun", "AgentService", "PreparedRun"]


class AgentCall(NamedTuple):
    """A call: which agent, which version number or label of it, and the turns so far."""

    agent: str
    ref: str
    conversation: Messages


class PreparedRun(NamedTuple):
    """A run that is written down and resolved, and not started."""

    id: str
    project_id: str
    version: int
    candidate: Candidate
    call: AgentCall
    servers: tuple[ToolServerConfig, ...]


class AgentRun(NamedTuple):
    """A finished run."""

    id: str
    version: int
    trajectory: Trajectory
    usage: Usage


class AgentService:
    """Runs agents for callers outside evolution.

    Args:
        db: The database.
        settings: Settings of this process.
        models: Opens a model by name; the registry of models when omitted.
        embedder: Chooses demonstrations; opened when first needed when omitted.
    """

    def __init__(
        self,
        db: Database,
        settings: Settings,
        *,
        models: Callable[[str], ModelClient] | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self._db = db
        self._settings = settings
        self._models = models
        self._clients: dict[str, ModelClient] = {}
        self._vectors = VectorCache(embedder) if embedder is not None else None
        self._tools: dict[str, LiveTools] = {}
        self._keys = KeySource.of(settings)

    async def close(self) -> None:
        """Ends the tool servers that runs have started."""
        tools, self._tools = list(self._tools.values()), {}
        await asyncio.gather(*(pool.stop() for pool in tools))

    async def run(self, project_id: str, call: AgentCall, by: Author) -> AgentRun:
        """Runs an agent to its answer or a limit, and records it.

        Args:
            project_id: The caller's project; agents, tools and the record are of it alone.
            call: What to run.
            by: Who calls.

        Raises:
            NotFoundError: If there is no such agent, version or label.
            UserError: If the conversation is empty or the agent is misconfigured.
            InfrastructureError: If the model or a tool server failed; the run is kept as failed.
        """
        return await self.perform(await self.prepare(project_id, call, by))

    async def prepare(self, project_id: str, call: AgentCall, by: Author) -> PreparedRun:
        """Resolves the version and writes the run down, before anything is spent.

        Raises:
            NotFoundError: If there is no such agent, version or label.
            UserError: If the conversation cannot be answered.
        """
        if not call.conversation or call.conversation[-1].role != "user":
            raise UserError(
                "The conversation does not end with a turn that the agent could answer.",
                remedy="Let the last message be of role 'user'.",
            )
        async with self._db.transaction(project_id) as session:
            version = await read_agent(session, project_id, call.agent, call.ref)
            candidate = await load_candidate_version(session, version.id)
            servers = tuple(
                ToolServerConfig.model_validate(row.config)
                for row in await list_servers(session, project_id)
            )
            new = NewRun(call.agent, version.id, call.ref, call.conversation)
            run_id = await create_run(session, project_id, new, by)
        return PreparedRun(run_id, project_id, version.version, candidate, call, servers)

    async def perform(self, run: PreparedRun, *, on_event: OnEvent | None = None) -> AgentRun:
        """Runs what was prepared, to its end, and records how it ended, also when cancelled.

        Args:
            run: The prepared run.
            on_event: Told of each step as it happens.

        Raises:
            UserError: If the agent, its tools or its model are misconfigured.
            InfrastructureError: If the model or a tool server failed.
        """
        calls = DirectCalls()
        try:
            trajectory = await run_agent(
                run.candidate,
                run.call.conversation,
                self._services(run),
                run_id=run.id,
                calls=calls,
                on_event=on_event,
                on_decision=self._recorder(run),
            )
        except asyncio.CancelledError:
            end = RunEnd("cancelled", None, calls.usage, "the caller went away")
            await asyncio.shield(self._end(run, end))
            raise
        except Exception as error:
            words = str(error) if isinstance(error, InstarError) else type(error).__name__
            await self._end(run, RunEnd("failed", None, calls.usage, words))
            raise
        await self._end(run, RunEnd("succeeded", trajectory, calls.usage))
        return AgentRun(run.id, run.version, trajectory, calls.usage)

    def _recorder(self, run: PreparedRun) -> OnDecision:
        """Writes the gate's decisions into the run's stream of the audit chain."""

        async def record(call: ToolCall, decision: GateDecision) -> None:
            # The arguments by their hash alone: the trail is kept for ever and read by others.
            entry = AuditEntry(
                action="gate.allow" if decision.allowed else "gate.refuse",
                subject=short(call.name.replace("\x00", "\ufffd")),
                details={"rule": decision.rule, "arguments": content_hash(call.arguments)},
            )
            async with self._db.transaction(run.project_id) as session:
                await append_audit(session, run.project_id, entry, Author("run", run.id))

        return record

    async def _end(self, run: PreparedRun, end: RunEnd) -> None:
        async with self._db.transaction(run.project_id) as session:
            await finish_run(session, run.id, end)

    def _services(self, run: PreparedRun) -> RunServices:
        tools = self._tools.get(run.project_id)
        if tools is None:
            secrets = StoredSecrets(self._db, run.project_id, self._keys, "production")
            tools = self._tools[run.project_id] = LiveTools((), secrets)
        known = {config.name for config in run.servers}
        gone = [server.name for server in run.candidate.harness.tools if server.name not in known]
        if gone:
            # The pool may still hold one that was taken out of use; it must not be called any more.
            raise UserError(
                f"The agent uses the tool server {gone[0]!r}, which is not registered.",
                remedy=f"Register it; registered: {', '.join(sorted(known)) or 'none'}.",
            )
        for config in run.servers:
            tools.register(config)
        parts = run.candidate.components.values()
        needs_vectors = any(part.kind == "demonstrations" for part in parts)
        vectors = self._open_vectors() if needs_vectors else self._vectors
        return RunServices(models=self._client, tools=tools, vectors=vectors)

    def _client(self, name: str) -> ModelClient:
        if name not in self._clients:
            if self._models is not None:
                self._clients[name] = self._models(name)
            else:
                from instar.models.registry import open_model

                self._clients[name] = open_model(name, self._settings)
        return self._clients[name]

    def _open_vectors(self) -> VectorCache:
        if self._vectors is None:
            from instar.models.embedder import open_embedder

            self._vectors = VectorCache(open_embedder(self._settings))
        return self._vectors
