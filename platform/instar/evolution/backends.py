"""Backends: who performs a run's rollouts, by what the agent's harness names as its environment.

``agent`` is the real agent runtime with sandboxed tools, ``world:…`` a world with a known answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from instar.settings import Settings
from instar.store.keyring import KeySource
from instar.store.servers import list_servers
from instar.store.session import Database
from instar_core.base import JsonValue, content_hash
from instar_core.candidates import Candidate
from instar_core.errors import PrerequisiteError, UserError
from instar_core.lab import Backend, CallOutcome, Calls, Evolver, Role, RolloutRequest
from instar_core.messages import Messages
from instar_core.rollouts import Rollout
from instar_core.tasks import Task
from instar_core.usage import Amount
from instar_evolvers.registry import needs_proposer

__all__ = ["BackendPlan", "TallyBackend", "check_backend", "check_proposer", "open_backend"]

_WORLD = "world:"


@dataclass(frozen=True, slots=True)
class BackendPlan:
    """What a backend is opened for.

    Attributes:
        project_id: Project whose tool servers are used.
        candidate: The incumbent; its harness names environment, model and tools.
        bindings: Tool server → test binding, as the task set names them.
        asker: Model of proposer and judge; empty takes the agent's own.
    """

    project_id: str
    candidate: Candidate
    bindings: Mapping[str, JsonValue]
    asker: str = ""

    @property
    def environment(self) -> str:
        """``agent`` or ``world:…``."""
        return self.candidate.harness.environment


@asynccontextmanager
async def open_backend(
    plan: BackendPlan, db: Database, settings: Settings, *, journalled: bool = False
) -> AsyncIterator[Backend]:
    """The backend of a run, until the block ends.

    Args:
        plan: What it is opened for.
        db: Where tool servers are registered.
        settings: Models, embedder, and the tally of calls.
        journalled: Whether its calls are recorded, so that a tally of them means something.

    Raises:
        UserError: If the environment is unknown or the agent's tools have no test binding.
    """
    if plan.environment.startswith(_WORLD):
        from instar_evolvers.worlds import open_world

        world: Backend = open_world(plan.environment)
        tally = settings.worker.call_tally if journalled else None
        yield world if tally is None else TallyBackend(world, tally)
        return
    _check_environment(plan.environment)
    from instar.models.embedder import open_embedder
    from instar.models.registry import open_model
    from instar.rollouts.backend import AgentBackend, BackendServices
    from instar.runtime.tools.config import TestBinding, ToolServerConfig
    from instar.runtime.tools.secrets import StoredSecrets, check_rollout_secrets

    bindings = {
        server: one if isinstance(one, str) else TestBinding.model_validate(one)
        for server, one in plan.bindings.items()
    }
    async with db.transaction(plan.project_id) as session:
        servers = [
            ToolServerConfig.model_validate(row.config)
            for row in await list_servers(session, plan.project_id)
        ]
        await check_rollout_secrets(session, plan.project_id, servers, bindings)
    asker = plan.asker or plan.candidate.harness.model
    services = BackendServices(
        models=lambda name: open_model(name, settings),
        servers=servers,
        bindings=bindings,
        embedder=open_embedder(settings),
        proposer=asker,
        judge=asker,
        secrets=StoredSecrets(db, plan.project_id, KeySource.of(settings), "rollouts"),
    )
    async with AgentBackend(services) as backend:
        yield backend


async def check_backend(
    plan: BackendPlan, db: Database, settings: Settings, tasks: Sequence[Task]
) -> None:
    """Refuses what could not run: tools without a test binding, a model that does not answer.

    Raises:
        UserError: Naming every tool server without a usable test binding, or a wrong model name.
        PrerequisiteError: If a model's key is missing or its engine is away.
        VerifierError: If a task names no usable verifier.
    """
    if plan.environment.startswith(_WORLD):
        from instar_evolvers.worlds import open_world

        open_world(plan.environment)
        return
    _check_environment(plan.environment)
    from instar.models.registry import check_model
    from instar.rollouts.backend import AgentBackend

    async with open_backend(plan, db, settings) as backend:
        if isinstance(backend, AgentBackend):
            backend.check(plan.candidate, tasks)
    for name in dict.fromkeys((plan.candidate.harness.model, plan.asker)):
        if name:
            try:
                await check_model(name, settings)
            except PrerequisiteError as error:
                raise PrerequisiteError(
                    f"The model {name!r} cannot be asked now: {error.message}",
                    remedy=error.remedy,
                ) from error


def check_proposer(evolver: Evolver, plan: BackendPlan, settings: Settings) -> None:
    """Refuses an evolver that asks for reflection where the model that is asked cannot reflect.

    Raises:
        UserError: Naming the model; its lessons would be noise, and their trials rollouts wasted.
    """
    if plan.environment.startswith(_WORLD) or not needs_proposer(evolver):
        return
    from instar.models.registry import why_no_proposer

    why = why_no_proposer(plan.asker or plan.candidate.harness.model, settings)
    if why:
        raise UserError(
            f"The evolver {evolver.name!r} asks a model to reflect on attempts and to write "
            f"lessons, and {why}. Nothing was spent.",
            remedy="Use the evolver bootstrap, which needs no reflection, or name a model that can "
            "reflect as the proposer: --proposer openai/… (in the API: 'model').",
        )


def _check_environment(environment: str) -> None:
    if environment != "agent":
        raise UserError(
            f"The harness names the environment {environment!r}.",
            remedy="Allowed are 'agent' and 'world:NAME:key=value,…'.",
        )


class TallyBackend:
    """A backend that notes every call which it really performs, as lines of a file.

    The file is an account of its own beside the journal: a recorded call that is performed again
    after a crash shows in it.

    Args:
        inner: Performs the calls.
        path: File to append to, one JSON object a line.
    """

    def __init__(self, inner: Backend, path: Path) -> None:
        self._inner = inner
        self._path = path

    async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
        """See :class:`instar_core.lab.Backend`."""
        return await self._inner.rollout(request, _TallyCalls(calls, self._path))

    def reserve_for(self, request: RolloutRequest) -> Amount:
        """See :class:`instar_core.lab.Backend`."""
        return self._inner.reserve_for(request)

    async def ask(self, role: Role, messages: Messages, calls: Calls) -> str:
        """See :class:`instar_core.lab.Backend`."""
        return await self._inner.ask(role, messages, _TallyCalls(calls, self._path))

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """See :class:`instar_core.lab.Backend`."""
        return await self._inner.embed(texts)


class _TallyCalls:
    def __init__(self, inner: Calls, path: Path) -> None:
        self._inner = inner
        self._path = path

    async def call(
        self,
        kind: Literal["model_call", "tool_call"],
        request: JsonValue,
        perform: Callable[[], Awaitable[CallOutcome]],
        *,
        reserve: Amount,
    ) -> CallOutcome:
        async def noted() -> CallOutcome:
            outcome = await perform()
            line = {"call": content_hash([kind, request]), "tokens": outcome.usage.tokens}
            # One write of a short line to an appending descriptor is whole or absent.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, json.dumps(line).encode() + b"\n")
            finally:
                os.close(descriptor)
            return outcome

        return await self._inner.call(kind, request, noted, reserve=reserve)
