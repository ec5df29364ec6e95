"""Prompt: a text, or a text with named variables that are filled in before it is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field, model_validator

from instar.registry.kinds.base import BaseKind, only_file, parse_json_file, pretty_json
from instar_core.base import Frozen, JsonValue, short
from instar_core.errors import InvalidContent
from instar_core.kinds import did_you_mean, parse_content

__all__ = ["Prompt", "PromptTemplate", "Variable", "fill_prompt"]

_PLACE = re.compile(r"\{\{\s*([^{}\s]+)\s*\}\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TEXT, _VARIABLES = "prompt.md", "variables.json"


class Variable(Frozen):
    """A place in a prompt that is filled in; without a default a value must be given."""

    description: str = ""
    default: str | None = None


class PromptTemplate(Frozen):
    """A text with ``{{name}}`` where the variable of that name goes; all are declared and used."""

    text: str
    variables: dict[str, Variable] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _declared_and_used(self) -> PromptTemplate:
        used = set(_PLACE.findall(self.text))
        declared = set(self.variables)
        for name in sorted(declared):
            if not _NAME.fullmatch(name):
                raise ValueError(f"{short(name)!r} cannot be a variable's name")
        if used - declared:
            raise ValueError(f"{{{{{min(used - declared)}}}}} is used and not declared")
        if declared - used:
            raise ValueError(f"the variable {min(declared - used)!r} is declared and not used")
        return self


class Prompt(BaseKind):
    """A prompt as an artifact."""

    name = "prompt"
    title = "a text that an agent is told"
    form = "text"
    budget_tokens = 4_000

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two prompts, one of them with a variable."""
        return "Name the queue that the ticket belongs to.", {
            "text": "You answer for {{team}}. Be brief.",
            "variables": {"team": {"description": "who is asked", "default": "support"}},
        }

    def check(self, content: JsonValue) -> JsonValue:
        """The text as it is; a template without variables becomes its text."""
        if isinstance(content, str):
            return content
        if not isinstance(content, dict):
            raise InvalidContent(
                f"a prompt is a text, not {short(repr(content), 60)}.",
                remedy='Send a text, or {"text": "Hello {{name}}", "variables": {"name": {}}}.',
            )
        template = parse_content(PromptTemplate, content, "prompt")
        if not template.variables:
            return template.text
        dumped: JsonValue = template.model_dump(mode="json")
        return dumped

    def summary(self, content: JsonValue) -> str:
        """The first line of the text."""
        lines = _text_of(content).strip().splitlines()
        return lines[0] if lines else ""

    def search_text(self, content: JsonValue) -> str:
        """The text itself."""
        return _text_of(content)

    def files(self, content: JsonValue) -> dict[str, bytes]:
        """``prompt.md``, and ``variables.json`` where there are variables."""
        found = {_TEXT: _text_of(content).encode()}
        if isinstance(content, dict):
            found[_VARIABLES] = pretty_json(content["variables"])
        return found

    def read_files(self, files: Mapping[str, bytes]) -> JsonValue:
        """The prompt in those files."""
        only_file({path: data for path, data in files.items() if path != _VARIABLES}, _TEXT)
        try:
            text = files[_TEXT].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidContent(
                f"{_TEXT!r} is no valid UTF-8 (byte {error.start}).", remedy="Save it as UTF-8."
            ) from error
        if _VARIABLES not in files:
            return self.check(text)
        variables = parse_json_file(_VARIABLES, files[_VARIABLES])
        return self.check({"text": text, "variables": variables})


def fill_prompt(content: JsonValue, values: Mapping[str, str]) -> str:
    """The prompt's text with its variables filled in. A value's own braces are left as they are.

    Raises:
        InvalidContent: If a variable has neither a value nor a default, or a value belongs to none.
    """
    if isinstance(content, str):
        template = PromptTemplate(text=_PLACE.sub("", content))
        if not values:
            return content
    else:
        template = parse_content(PromptTemplate, content, "prompt")
    for name in values:
        if name not in template.variables:
            raise InvalidContent(
                f"the prompt has no variable {name!r}.",
                remedy=did_you_mean(name, template.variables, what="Its variables"),
            )

    def fill(place: re.Match[str]) -> str:
        name = place[1]
        value = values.get(name, template.variables[name].default)
        if value is None:
            raise InvalidContent(
                f"the prompt's variable {name!r} has no value.", remedy="Give one, or a default."
            )
        return value

    return _PLACE.sub(fill, template.text)


def _text_of(content: JsonValue) -> str:
    return content if isinstance(content, str) else str(_mapping(content)["text"])


def _mapping(content: JsonValue) -> Mapping[str, JsonValue]:
    assert isinstance(content, dict)
    return content
