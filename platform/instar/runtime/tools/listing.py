"""Listings and catalogues: which tools a server has, and which of them an agent is offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from instar.runtime.tools.naming import exposed_names
from instar.runtime.tools.results import ToolResult
from instar_core.base import JsonValue
from instar_core.candidates import ToolServer
from instar_core.errors import UserError
from instar_core.json_schema import canonical_schema, schema_problem
from instar_core.messages import ToolDefinition

__all__ = ["Catalogue", "Listing", "ListedTool", "ToolEntry", "ToolHost", "check_listing"]


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server describes it; ``schema`` is the author's own."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """What one server offers, and warnings about what was left out and why."""

    tools: tuple[ListedTool, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolEntry:
    """A tool offered to an agent: its exposed name, where it lives, and what the model is told."""

    exposed: str
    server: str
    tool: str
    schema: dict[str, Any]
    definition: ToolDefinition


class ToolHost(Protocol):
    """Where tool calls are carried out: live servers, or the sandbox copies of one rollout."""

    async def call(self, server: str, tool: str, arguments: dict[str, JsonValue]) -> ToolResult:
        """Carries a call out. What the tool reports as an error is a result with ``is_error``.

        Raises:
            ToolServerError: If the server is not there, or died.
        """
        ...

    def replayed(
        self, server: str, tool: str, arguments: dict[str, JsonValue], result: ToolResult
    ) -> None:
        """Told instead of ``call`` when the journal already held the result of this call."""
        ...


def check_listing(server: str, raw: Sequence[ListedTool], warnings: Sequence[str] = ()) -> Listing:
    """The usable tools of a listing; duplicates and bad schemas are left out with a warning."""
    kept: dict[str, ListedTool] = {}
    notes = list(warnings)
    for tool in raw:
        if tool.name in kept:
            notes.append(
                f"server {server!r} lists the tool {tool.name!r} twice; the later one is ignored"
            )
        elif (problem := schema_problem(tool.schema)) is not None:
            notes.append(f"tool {tool.name!r} of server {server!r} is left out: {problem}")
        else:
            kept[tool.name] = tool
    return Listing(tuple(kept.values()), tuple(notes))


class Catalogue:
    """The tools one agent is offered, by exposed name; deterministic in content and order."""

    def __init__(self, entries: Sequence[ToolEntry], warnings: Sequence[str] = ()) -> None:
        self.entries = tuple(entries)
        self.warnings = tuple(warnings)
        self._by_name = {entry.exposed: entry for entry in self.entries}

    @classmethod
    def build(
        cls,
        servers: Sequence[ToolServer],
        listings: Mapping[str, Listing],
        descriptions: Mapping[str, str] | None = None,
    ) -> Catalogue:
        """The catalogue of an agent's tool servers.

        Args:
            servers: The harness's references; ``allow`` names tools by own or exposed name.
            listings: Server name → what it offers.
            descriptions: Exposed name → description that replaces the server's.

        Raises:
            UserError: If ``allow`` names a tool that its server does not offer.
        """
        descriptions = descriptions or {}
        names = exposed_names(
            (server.name, tool.name) for server in servers for tool in listings[server.name].tools
        )
        entries: list[ToolEntry] = []
        for server in servers:
            offered = {tool.name: tool for tool in listings[server.name].tools}
            allowed = _allowed(server, names)
            for name in offered if allowed is None else allowed:
                exposed = names[server.name, name]
                tool = offered[name]
                definition = ToolDefinition(
                    name=exposed,
                    description=descriptions.get(exposed, tool.description),
                    parameters=canonical_schema(tool.schema),
                )
                entries.append(ToolEntry(exposed, server.name, name, tool.schema, definition))
        notes = [note for server in servers for note in listings[server.name].warnings]
        return cls(entries, notes)

    def find(self, exposed: str) -> ToolEntry | None:
        """The entry of that exposed name, if the agent is offered it."""
        return self._by_name.get(exposed)

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What the model is told, in order."""
        return tuple(entry.definition for entry in self.entries)

    @property
    def names(self) -> tuple[str, ...]:
        """The exposed names, in order."""
        return tuple(entry.exposed for entry in self.entries)


def _allowed(server: ToolServer, names: Mapping[tuple[str, str], str]) -> list[str] | None:
    if not server.allow:
        return None
    own = {tool: tool for owner, tool in names if owner == server.name}
    known = own | {
        exposed: tool for (owner, tool), exposed in names.items() if owner == server.name
    }
    missing = [name for name in server.allow if name not in known]
    if missing:
        raise UserError(
            f"The agent allows {', '.join(map(repr, missing))} of tool server {server.name!r}, "
            f"which offers {', '.join(map(repr, sorted(own))) or 'no tools'}.",
            remedy="Correct 'allow', or see the server's warnings for tools that were left out.",
        )
    return list(dict.fromkeys(known[name] for name in server.allow))
