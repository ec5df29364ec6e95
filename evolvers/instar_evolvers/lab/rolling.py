"""Rolling: one rollout under its key, with its calls journalled inside it and retries around it."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from typing import Any

from instar_core.errors import InfrastructureError
from instar_core.lab import Backend, EffectStart, Restarting, RolloutRequest
from instar_core.rollouts import Rollout, Trajectory
from instar_core.usage import ZERO
from instar_evolvers.lab.config import LabConfig
from instar_evolvers.lab.effects import EffectDoor, Recorder, Tried

__all__ = ["Rolling"]


class Rolling:
    """Runs rollouts for a Lab.

    Args:
        door: The Lab's effects.
        backend: Performs them.
        slots: Bounds how many run at once, over all strands of the evolver.
        config: Retries.

    Attributes:
        done: Rollouts handed out so far.
    """

    def __init__(
        self, door: EffectDoor, backend: Backend, slots: asyncio.Semaphore, config: LabConfig
    ) -> None:
        self.done = 0
        self._door = door
        self._backend = backend
        self._restarting = backend if isinstance(backend, Restarting) else None
        self._slots = slots
        self._config = config

    async def run(
        self, key: str, request: RolloutRequest, *, of: int, retries: int | None = None
    ) -> Rollout:
        """The recorded rollout under a key, or a new one.

        Args:
            key: Its effect key.
            request: Who, on what, which draw.
            of: Size of the call that it belongs to; part of what must be the same on a replay.
            retries: Further attempts after infrastructure failures; the configured number if None.

        Returns:
            The rollout; without a score when infrastructure failed in every attempt.

        Raises:
            BudgetExhausted: If its reservation, or one of its calls', does not fit.
        """
        content = hashlib.sha256(f"{request.identity}/{of}".encode()).hexdigest()
        record = self._door.recorded(key, "rollout", content)
        if record is not None:
            self.done += 1
            return _rollout_of(record.result)
        async with self._slots:
            self._door.check()
            rollout = await self._attempt(key, request, content, retries)
        self.done += 1
        return rollout

    async def _attempt(
        self, key: str, request: RolloutRequest, content: str, retries: int | None
    ) -> Rollout:
        door, backend = self._door, self._backend

        async def perform(calls: Recorder) -> Tried:
            rollout = await backend.rollout(request, calls)
            result = rollout if door.holds_objects else rollout.model_dump(mode="json")
            return Tried(result, rollout.usage, rollout)

        start = EffectStart.model_construct(
            key=key,
            kind="rollout",
            content=content,
            reserve=backend.reserve_for(request),
            request={
                "candidate": request.candidate.digest,
                "task": request.task.id,
                "draw": request.draw,
                "arm": request.arm,
                "sealed_test": request.sealed_test,
            },
        )
        replayable = self._restarting is None or self._restarting.can_replay(request)
        try:
            tried = await door.attempts(
                start,
                perform,
                retries=self._config.infrastructure_retries if retries is None else retries,
                wait_s=self._config.retry_wait_s,
                replayable=replayable,
            )
        except InfrastructureError as error:
            door.check_fatal()
            rollout = Rollout(
                id=str(uuid.UUID(hex=content[:32])),
                task_id=request.task.id,
                candidate_digest=request.candidate.digest,
                draw=request.draw,
                arm=request.arm,
                trajectory=Trajectory(stop="infrastructure_error"),
                error=f"{type(error).__name__}: {error}",
            )
            lost = rollout if door.holds_objects else rollout.model_dump(mode="json")
            await door.finish(start, lost, ZERO)
            return rollout
        return _rollout_of(tried.value)


def _rollout_of(result: Any) -> Rollout:
    return result if isinstance(result, Rollout) else Rollout.model_validate(result)
