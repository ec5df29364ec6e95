"""Model clients' contract: one request, one reply with usage, and where possible the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from instar_core.base import Frozen
from instar_core.messages import Message, Messages, Sampling, ToolDefinition
from instar_core.rollouts import TokenCapture
from instar_core.usage import Amount, Usage

__all__ = ["Embedder", "ModelClient", "ModelReply", "ModelRequest"]


class ModelRequest(Frozen):
    """One completion to ask for. ``seed`` is passed on where the provider has seeds."""

    model: str
    messages: Messages
    sampling: Sampling = Sampling()
    tools: tuple[ToolDefinition, ...] = ()
    seed: int | None = None
    capture: bool = True


class ModelReply(Frozen):
    """One completion: the message, why it ended, usage with cost, and captured tokens if open."""

    message: Message
    finish_reason: str = "stop"
    usage: Usage = Usage()
    capture: TokenCapture | None = None
    fingerprint: str = ""


class ModelClient(Protocol):
    """A model that can be asked. Raises ``ModelError`` for trouble outside the agent."""

    async def complete(self, request: ModelRequest) -> ModelReply:
        """The reply to one request.

        Raises:
            ModelError: Connection, rate limit after retries, provider 5xx.
            UserError: The provider refuses the request itself (unknown model, bad key).
        """
        ...

    def reserve_for(self, request: ModelRequest) -> Amount:
        """An upper bound of what the request can consume (unknown price: conservative)."""
        ...


class Embedder(Protocol):
    """Turns texts into unit vectors; ``digest`` names the model and keys stored vectors."""

    digest: str

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors for the texts, in order."""
        ...
