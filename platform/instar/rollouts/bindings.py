"""Bindings: under which copy each of an agent's tool servers runs during rollouts.

The rule that keeps a night away from production: a server runs under the test binding that the task
set names, or live if an admin declared it free of effects; otherwise nothing runs at all, and the
refusal names the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from instar.runtime.tools.config import TestBinding, ToolServerConfig
from instar_core.candidates import Candidate
from instar_core.errors import UserError

__all__ = ["BoundServer", "resolve_bindings"]

Named = Mapping[str, str | TestBinding]


@dataclass(frozen=True, slots=True)
class BoundServer:
    """A tool server as rollouts use it; ``binding`` is ``None`` for one free of effects."""

    config: ToolServerConfig
    binding: TestBinding | None


def resolve_bindings(
    candidate: Candidate, servers: Sequence[ToolServerConfig], named: Named
) -> dict[str, BoundServer]:
    """How each tool server of the agent runs in rollouts; the quote and the rollouts both ask this.

    Args:
        candidate: The agent version.
        servers: The registered tool servers.
        named: What the task set says: server name → name of one of the server's test bindings, or
            the binding itself.

    Raises:
        UserError: If a server is not registered, has no such binding, or has none and is not
            declared free of effects; names every such server.
    """
    registered = {server.name: server for server in servers}
    bound: dict[str, BoundServer] = {}
    problems: list[str] = []
    for reference in candidate.harness.tools:
        config = registered.get(reference.name)
        if config is None:
            known = ", ".join(map(repr, sorted(registered))) or "none"
            problems.append(f"tool server {reference.name!r} is not registered (known: {known})")
            continue
        wanted = named.get(reference.name)
        if isinstance(wanted, str):
            binding = config.test_bindings.get(wanted)
            if binding is None:
                known = ", ".join(map(repr, sorted(config.test_bindings))) or "none"
                problems.append(
                    f"tool server {config.name!r} has no test binding {wanted!r} (it has: {known})"
                )
                continue
        else:
            binding = wanted
        if binding is None and not config.effect_free:
            tools = f" ({', '.join(reference.allow)})" if reference.allow else ""
            problems.append(
                f"the task set names no test binding for tool server {config.name!r}{tools}, and "
                "it is not declared free of effects"
            )
            continue
        if binding is not None and config.inherits_arguments(binding):
            problems.append(
                f"the test binding of tool server {config.name!r} gives no 'args' of its own, and "
                f"those of the live server ({' '.join(config.args)}) may name live data"
            )
            continue
        bound[config.name] = BoundServer(config, binding)
    if problems:
        raise UserError(
            f"Rollouts cannot use this agent's tools: {'; '.join(problems)}.",
            remedy="Name a test binding in the task set's header, or have an admin declare the "
            "server free of effects.",
        )
    _refuse_shared_names(bound)
    return bound


def _refuse_shared_names(bound: Mapping[str, BoundServer]) -> None:
    """Two servers whose final states use the same key would hide one another."""
    owners: dict[str, str] = {}
    for name, server in bound.items():
        state = server.binding.state if server.binding else None
        for key in state.keys if state else ():
            if key in owners:
                raise UserError(
                    f"The test bindings of {owners[key]!r} and {name!r} both read a state called "
                    f"{key!r}.",
                    remedy="Rename one of the queries.",
                )
            owners[key] = name
