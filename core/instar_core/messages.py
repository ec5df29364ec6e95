"""Messages: what an agent and a model say to each other, provider-neutral."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from instar_core.base import Frozen, JsonValue

__all__ = ["Message", "Messages", "Sampling", "ToolCall", "ToolDefinition"]


class ToolCall(Frozen):
    """One call of a tool: exposed tool name and an object of arguments."""

    id: str = ""
    name: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class ToolDefinition(Frozen):
    """What a model is told about a tool: exposed name, description, schema of the arguments."""

    name: str
    description: str = ""
    parameters: dict[str, JsonValue] = Field(
        default_factory=lambda: dict[str, JsonValue](type="object", properties={})
    )


class Message(Frozen):
    """One chat turn. ``tool_calls`` on assistant turns only, ``tool_call_id`` on tool turns."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


Messages = tuple[Message, ...]


class Sampling(Frozen):
    """How a model is sampled. ``temperature`` 0 is greedy; ``max_tokens`` bounds one reply."""

    temperature: float = Field(default=0.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_tokens: int = Field(default=256, ge=1, le=10**7)
    stop: tuple[str, ...] = ()
