"""Text tool protocol: tool calls as one JSON object in a reply, for models without native calls.

A call is ``{"tool": "<name>", ...arguments}``. Small models wrap it in prose or code fences, use
single quotes, leave commas or drop the last brace; the parser takes all that, but never guesses a
tool or an argument that is not written there.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from instar_core.base import JsonValue, canonical_json, short
from instar_core.messages import ToolCall, ToolDefinition

__all__ = ["ParsedReply", "parse_reply", "render_call", "render_result", "render_tools"]

MAX_REPLY = 100_000
_LOOKS_LIKE_CALL = re.compile(r"""["']?\btool\b["']?\s*:""")
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][A-Za-z0-9_]*)(\s*:)")
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")
_CURLY_QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'"})


class ParsedReply(NamedTuple):
    """What a reply holds: a call, or a problem to show the model, or neither (then an answer)."""

    call: ToolCall | None = None
    problem: str = ""


def parse_reply(text: str, *, call_id: str = "") -> ParsedReply:
    """The tool call in a reply, if there is one.

    Args:
        text: The model's reply.
        call_id: Id to give the call.

    Returns:
        The first well-meant call; a problem in words when the reply tries to call a tool but cannot
        be read; neither when it is an answer.
    """
    text = text[:MAX_REPLY]
    for segment in _segments(text):
        value = _read(segment)
        if value is not None and (call := _as_call(value, call_id)) is not None:
            return ParsedReply(call)
    if _LOOKS_LIKE_CALL.search(text):
        return ParsedReply(
            problem="That is not a JSON object that can be read. Reply with exactly one, such as "
            '{"tool": "<name>", "<argument>": "<value>"}, and nothing else.'
        )
    return ParsedReply()


def render_call(call: ToolCall) -> str:
    """A call as the model should write it; arguments get their own key when one is ``tool``."""
    if "tool" in call.arguments:
        value: dict[str, JsonValue] = {"tool": call.name, "arguments": call.arguments}
    else:
        value = {"tool": call.name, **call.arguments}
    return json.dumps(value, ensure_ascii=False)


def render_result(name: str, text: str, *, is_error: bool = False) -> str:
    """A tool's result as the text of a user turn."""
    return f"{'Error' if is_error else 'Result'} of {name}: {text}"


def render_tools(tools: Sequence[ToolDefinition]) -> str:
    """The section of the system prompt that names the tools and how to call one."""
    lines = [
        "To use a tool, reply with one JSON object and nothing else:",
        '{"tool": "<name>", "<argument>": <value>}',
        "Tools:",
    ]
    for tool in tools:
        about = f": {' '.join(tool.description.split())}" if tool.description else ""
        lines.append(f"- {tool.name}({', '.join(_parameters(tool.parameters))}){about}")
    return "\n".join(lines)


def _parameters(schema: dict[str, JsonValue]) -> Iterator[str]:
    properties, required = schema.get("properties"), schema.get("required")
    needed = required if isinstance(required, list) else []
    for name, part in (properties if isinstance(properties, dict) else {}).items():
        described = part if isinstance(part, dict) else {}
        choices, kind = described.get("enum"), described.get("type", "any")
        if isinstance(choices, list):
            words = "|".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        else:
            words = "|".join(map(str, kind)) if isinstance(kind, list) else str(kind)
        yield f"{name}{'' if name in needed else '?'}: {words}"


def _segments(text: str) -> Iterator[str]:
    """Pieces of the text that start at a top-level brace and end where it closes (or the text)."""
    position = 0
    while (start := text.find("{", position)) != -1:
        end = _closing(text, start)
        yield text[start:end]
        position = end


def _closing(text: str, start: int) -> int:
    depth, quote, index = 0, "", start
    while index < len(text):
        char = text[index]
        if quote:
            if char == "\\":
                index += 1
            elif char == quote:
                quote = ""
        elif char == '"' or (char == "'" and _opens_string(text, index)):
            quote = char
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if depth == 0:
                return index + 1
        index += 1
    return len(text)


def _opens_string(text: str, index: int) -> bool:
    """An apostrophe opens a string only after a brace, bracket, comma or colon (not in "don't")."""
    index -= 1
    while index >= 0 and text[index].isspace():
        index -= 1
    return index >= 0 and text[index] in "{[,:"


def _read(segment: str) -> Any:
    """The value of a segment, trying ever kinder readings; ``None`` when none works."""
    for attempt in _repairs(segment):
        for read in (_as_json, _as_literal):
            try:
                value = read(attempt)
                canonical_json(value)  # refuses infinities and half characters
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
            return value
    return None


def _as_json(text: str) -> Any:
    return json.loads(text, strict=False)


def _as_literal(text: str) -> Any:
    return _plain(ast.literal_eval(text))


def _repairs(segment: str) -> Iterable[str]:
    yield segment
    kinder = _TRAILING_COMMA.sub(r"\1", segment.translate(_CURLY_QUOTES))
    yield kinder
    yield _BARE_KEY.sub(r'\1"\2"\3', kinder)
    closed = _close(kinder)
    yield closed
    yield _BARE_KEY.sub(r'\1"\2"\3', closed)


def _close(segment: str) -> str:
    """The segment with the quotes, brackets and braces that it lacks at its end."""
    stack: list[str] = []
    quote, index = "", 0
    while index < len(segment):
        char = segment[index]
        if quote:
            if char == "\\":
                index += 1
            elif char == quote:
                quote = ""
        elif char == '"' or (char == "'" and _opens_string(segment, index)):
            quote = char
        elif char in "{[":
            stack.append("}" if char == "{" else "]")
        elif char in "}]" and stack:
            stack.pop()
        index += 1
    body = segment.rstrip("`\n ") if not quote else segment.rstrip()
    return (body if quote else body.rstrip(",")) + quote + "".join(reversed(stack))


def _plain(value: Any) -> Any:
    """A Python literal as JSON would have it; refuses what JSON cannot hold."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"{short(repr(value), 60)} is not JSON")


def _as_call(value: Any, call_id: str) -> ToolCall | None:
    """A call in one of the spellings models use; ``None`` when the object is something else."""
    if not isinstance(value, dict):
        return None
    for wrapper in ("tool_call", "function_call", "tool"):
        if isinstance(value.get(wrapper), dict):
            value = value[wrapper]
    name = value.get("tool")
    if isinstance(name, str) and name.strip():
        rest = {key: part for key, part in value.items() if key != "tool"}
        inner = rest.get("arguments")
        if len(rest) == 1 and isinstance(inner, dict):
            rest = inner
        return ToolCall(id=call_id, name=name.strip(), arguments=rest)
    name = value.get("name")
    for key in ("arguments", "parameters"):
        if isinstance(name, str) and isinstance(value.get(key), dict):
            return ToolCall(id=call_id, name=name.strip(), arguments=value[key])
    return None
