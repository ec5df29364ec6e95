"""Fakes for tests of agents: a scripted model, calls in memory, an embedder of words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from instar.models.base import ModelReply, ModelRequest
from instar_core.base import JsonValue, content_hash
from instar_core.errors import InstarError
from instar_core.lab import CallOutcome
from instar_core.messages import Message, ToolCall
from instar_core.testing import ReplyScript
from instar_core.usage import Amount, Usage

__all__ = ["MemoryCalls", "ScriptedModel", "WordEmbedder", "calling"]


def calling(*calls: tuple[str, dict[str, JsonValue]], text: str = "") -> Message:
    """An assistant message with native tool calls, given as (name, arguments) pairs."""
    made = tuple(
        ToolCall(id=f"c{position}", name=name, arguments=arguments)
        for position, (name, arguments) in enumerate(calls)
    )
    return Message(role="assistant", content=text, tool_calls=made)


class ScriptedModel:
    """A model client that answers from a script.

    Args:
        script: What it answers; see :class:`instar_core.testing.ReplyScript`.
        usage: What each call is said to use; 15 tokens when omitted.
        failures: Errors raised by the first calls, one each, before the script is asked.

    Attributes:
        requests: Every request so far.
    """

    def __init__(
        self,
        script: ReplyScript,
        *,
        usage: Usage | None = None,
        failures: Sequence[Exception] = (),
    ) -> None:
        self.script = script
        self.requests: list[ModelRequest] = []
        self._usage = usage or Usage(input_tokens=10, output_tokens=5, wall_s=0.01)
        self._failures = list(failures)

    async def complete(self, request: ModelRequest) -> ModelReply:
        """The scripted reply."""
        self.requests.append(request)
        if self._failures:
            raise self._failures.pop(0)
        message = self.script.reply(request.messages)
        return ModelReply(message=message, usage=self._usage, fingerprint="scripted 1")

    def reserve_for(self, request: ModelRequest) -> Amount:
        """Exactly what a call will use."""
        return Amount(tokens=self._usage.tokens, cost_usd=self._usage.cost_usd)


class MemoryCalls:
    """A journal of one rollout's calls in memory; give it to a second attempt to replay the first.

    Attributes:
        outcomes: What was recorded, in order.
        performed: How many calls were really made.
    """

    def __init__(self, outcomes: Sequence[tuple[str, CallOutcome]] = ()) -> None:
        self.outcomes = list(outcomes)
        self.performed = 0
        self._next = 0

    async def call(
        self,
        kind: Literal["model_call", "tool_call"],
        request: JsonValue,
        perform: Callable[[], Awaitable[CallOutcome]],
        *,
        reserve: Amount,
    ) -> CallOutcome:
        """See :class:`instar_core.lab.Calls`."""
        key, place = content_hash([kind, request]), self._next
        self._next += 1
        if place < len(self.outcomes):
            recorded, outcome = self.outcomes[place]
            if recorded != key:
                raise InstarError(f"call {place} is not the one that was recorded")
            return outcome
        outcome = await perform()
        self.performed += 1
        self.outcomes.append((key, outcome))
        return outcome


class WordEmbedder:
    """Unit vectors from hashed words: texts that share words are similar.

    Attributes:
        asked: Every text that was embedded, in order.
    """

    digest = "words-64"

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors for the texts, in order."""
        self.asked.extend(texts)
        return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    counts = [0.0] * 64
    for word in text.casefold().split():
        counts[hashlib.sha256(word.encode()).digest()[0] % 64] += 1.0
    length = math.sqrt(sum(count * count for count in counts)) or 1.0
    return [count / length for count in counts]
