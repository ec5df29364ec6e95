"""Retries: repeats a call that failed for passing reasons, with growing pauses and jitter."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from instar_core.errors import ModelError

__all__ = ["Sleep", "Transient", "with_retries"]

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]
_FIRST_S = 0.5


class Transient(Exception):
    """A failure that may pass.

    Args:
        reason: What happened, without secrets.
        retry_after_s: How long the other side asked to wait.
    """

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


async def with_retries(
    what: str,
    attempt: Callable[[], Awaitable[T]],
    *,
    max_attempts: int,
    max_wait_s: float,
    sleep: Sleep = asyncio.sleep,
) -> T:
    """The result of the first attempt that does not fail with :class:`Transient`.

    Args:
        what: Names the call in the error ("model openai/gpt-4o").
        attempt: Makes one attempt.
        max_attempts: How many are made at most.
        max_wait_s: Longest pause; a longer ``retry_after_s`` gives up at once.
        sleep: Waits between attempts.

    Raises:
        ModelError: If the last attempt failed too; caused by its :class:`Transient`.
    """

    def pause(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after_s if isinstance(error, Transient) else None
        grown = min(max_wait_s, _FIRST_S * 2 ** (state.attempt_number - 1))
        return (asked or 0.0) + random.uniform(grown / 2, grown)

    def give_up(state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after_s if isinstance(error, Transient) else None
        too_long = asked is not None and asked > max_wait_s
        return too_long or stop_after_attempt(max_attempts)(state)

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(Transient),
        wait=pause,
        stop=give_up,
        sleep=sleep,
        reraise=True,
    )
    made = 0

    async def counted() -> T:
        nonlocal made
        made += 1
        return await attempt()

    try:
        return await retrying(counted)
    except Transient as error:
        raise ModelError(
            f"{what} failed {made} time{'s' if made > 1 else ''}: {error.reason}",
            remedy="Try again later; the attempt was not counted as the agent's failure.",
        ) from error
