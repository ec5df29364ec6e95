"""Environment: the world that rollouts happen in, with where each tool server's copy comes from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from instar.registry.kinds.base import ModelKind
from instar_core.base import Frozen, JsonValue, short

__all__ = ["EnvironmentContent", "EnvironmentKind", "ServerBinding"]


class ServerBinding(Frozen):
    """How one tool server stands in rollouts: sandbox copy, simulation, replay, or as it is.

    ``binding`` names one of the server's registered test bindings, or is such a binding itself.
    ``effect_free`` uses the live server, which an admin must have declared free of effects.
    """

    by: Literal["sandbox", "simulated", "replay", "effect_free"] = "sandbox"
    binding: JsonValue = None
    tools: tuple[str, ...] = Field(default=(), description="tools offered; empty means all")

    @model_validator(mode="after")
    def _bound(self) -> ServerBinding:
        if (self.by == "effect_free") != (self.binding is None):
            raise ValueError(f"a server bound by {self.by!r} is given a binding unless effect_free")
        if self.binding is not None and not isinstance(self.binding, str | dict):
            raise ValueError(f"a binding is a name or an object, not {short(repr(self.binding))}")
        return self


class EnvironmentContent(Frozen):
    """What rollouts run on, what they start from, and whether they can be replayed."""

    backend: str = Field(
        default="agent", pattern=r"^(agent|world:\S+|package:\S+)$", description="see Harness"
    )
    servers: dict[str, ServerBinding] = Field(default_factory=dict)
    initial_state: dict[str, JsonValue] = Field(
        default_factory=dict, description="what a task's own environment is laid over"
    )
    config: dict[str, JsonValue] = Field(default_factory=dict)
    replayable: bool = Field(
        default=True, description="the same calls give the same state; else a rollout is restarted"
    )
    version: str = Field(default="", description="of the package or data, part of rollout identity")


class EnvironmentKind(ModelKind[EnvironmentContent]):
    """An environment as an artifact."""

    name = "environment"
    title = "the world that rollouts happen in"
    model = EnvironmentContent

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two environments."""
        return (
            {"servers": {"desk": {"by": "sandbox", "binding": "copy"}}},
            {"backend": "world:menu", "config": {"noise": 0.1}, "version": "1"},
        )

    def summary(self, content: JsonValue) -> str:
        """The backend and how servers are bound."""
        found = self.parse(content)
        bound = ", ".join(f"{name} ({one.by})" for name, one in sorted(found.servers.items()))
        return found.backend + (f": {bound}" if bound else "")
