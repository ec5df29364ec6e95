"""Direct calls: performs model and tool calls without a journal, for runs outside evolution."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from instar_core.base import JsonValue
from instar_core.lab import CallOutcome
from instar_core.usage import Amount, Usage

__all__ = ["DirectCalls"]


class DirectCalls:
    """Performs every call and adds up what it used."""

    def __init__(self) -> None:
        self.usage = Usage()

    async def call(
        self,
        kind: Literal["model_call", "tool_call"],
        request: JsonValue,
        perform: Callable[[], Awaitable[CallOutcome]],
        *,
        reserve: Amount,
    ) -> CallOutcome:
        """The outcome of performing the call now."""
        outcome = await perform()
        self.usage = self.usage + outcome.usage
        return outcome
