"""Tool definition: what a model is told about a tool, or other words for the tools of servers."""

from __future__ import annotations

from pydantic import Field, field_validator

from instar.registry.kinds.base import BaseKind
from instar_core.base import Frozen, JsonValue, short
from instar_core.errors import InvalidContent
from instar_core.json_schema import schema_problem
from instar_core.kinds import TrainableComponent, estimate_tokens, parse_content

__all__ = ["ToolDefinitionContent", "ToolDefinitionKind"]

_BUDGET = 300


class ToolDefinitionContent(Frozen):
    """One tool: its name, its description, and the JSON Schema of its arguments and result."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    description: str = ""
    parameters: dict[str, JsonValue]
    returns: dict[str, JsonValue] | None = None
    server: str = Field(default="", description="the tool server that offers it; '' for any")
    read_only: bool | None = Field(default=None, description="whether a call changes nothing")

    @field_validator("parameters", "returns")
    @classmethod
    def _is_schema(cls, schema: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
        problem = None if schema is None else schema_problem(schema)
        if problem is not None:
            raise ValueError(problem)
        return schema


class ToolDefinitionKind(BaseKind):
    """A tool definition as an artifact.

    A content with ``parameters`` defines one tool. Any other object maps exposed tool names to the
    descriptions that replace what their servers say: the form in which agents keep them.
    """

    name = "tool_definition"
    title = "what a model is told about tools"
    budget_tokens = _BUDGET

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two tool definitions."""
        schema: dict[str, JsonValue] = {
            "type": "object",
            "properties": {"ticket": {"type": "integer"}},
        }
        return (
            {"name": "close", "description": "Closes a ticket.", "parameters": schema},
            {
                "name": "close",
                "description": "Closes a ticket for good; ask before you use it.",
                "parameters": {**schema, "required": ["ticket"]},
            },
        )

    def check(self, content: JsonValue) -> JsonValue:
        """A definition, or a map of tool names to descriptions."""
        if not isinstance(content, dict):
            raise InvalidContent(
                f"a tool definition is an object, not {short(repr(content), 60)}.",
                remedy='Send {"name": …, "description": …, "parameters": {…}}.',
            )
        if "parameters" in content or "name" in content:
            found = parse_content(ToolDefinitionContent, content, "tool definition")
            dumped: JsonValue = found.model_dump(mode="json")
            return dumped
        for tool, text in content.items():
            if not isinstance(text, str):
                raise InvalidContent(
                    f"tool definition: {short(tool)!r} is {short(repr(text), 60)}.",
                    remedy="Map tool names to descriptions, or define a tool with 'parameters'.",
                )
        return content

    def summary(self, content: JsonValue) -> str:
        """The tool's description, or the names of the tools described."""
        assert isinstance(content, dict)
        if "parameters" in content:
            return str(content["description"])
        return f"descriptions of {', '.join(sorted(content)) or 'no tool'}"

    def search_text(self, content: JsonValue) -> str:
        """Names and descriptions."""
        return "\n".join(f"{name} {text}" for name, text in _descriptions(content).items())

    def components(self, content: JsonValue) -> tuple[TrainableComponent, ...]:
        """Each description; names and schemas belong to the tool's author."""
        return tuple(
            TrainableComponent(
                name=name, kind=self.name, tokens=estimate_tokens(text), budget_tokens=_BUDGET
            )
            for name, text in _descriptions(content).items()
        )


def _descriptions(content: JsonValue) -> dict[str, str]:
    assert isinstance(content, dict)
    if "parameters" in content:
        return {str(content["name"]): str(content["description"])}
    return {name: str(text) for name, text in content.items()}
