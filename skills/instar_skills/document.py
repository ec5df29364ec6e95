"""SKILL.md: its header and body, read leniently with every objection listed.

The rules are those of the Agent Skills specification (agentskills.io, August 2026). Real files
break them in small ways, so :func:`read_document` mends what can be mended (a byte-order mark, a
colon in an unquoted value), lists what a strict reader would refuse, and gives up only where no
name or description can be found.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Any

from pydantic import Field

from instar_core.base import Frozen, JsonValue, short
from instar_core.errors import InvalidContent

__all__ = ["SkillDocument", "name_problem", "read_document", "split_header"]

FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
_MAX_HEADER = 64 * 1024
_MAX_DEPTH = 32
_MAX_NAME, _MAX_DESCRIPTION, _MAX_COMPATIBILITY = 64, 1024, 500
_ADVISED_LINES = 500
_HEADER = re.compile(r"\A---[ \t]*\n(.*?)(?:^|\n)---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FIELD_START = re.compile(r"([A-Za-z][\w-]*):[ \t]+")


class SkillDocument(Frozen):
    """A SKILL.md: the known fields, those of other clients, the body, and the objections."""

    name: str = ""
    description: str
    license: str = ""
    compatibility: str = ""
    allowed_tools: str = ""
    metadata: dict[str, str] = Field(default_factory=dict)
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    body: str = ""
    problems: tuple[str, ...] = ()


def split_header(text: str) -> tuple[str, str] | None:
    """Header (without its ``---`` lines) and body of a text; ``None`` where it has no header.

    A byte-order mark and other systems' line ends are passed over; the body is given with ``\\n``.
    """
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    found = _HEADER.match(plain)
    return None if found is None else (found[1], plain[found.end() :])


def read_document(text: str, *, folder: str = "") -> SkillDocument:
    """What a SKILL.md says.

    Args:
        text: The file.
        folder: Name of the folder it lies in, which the skill's name must equal; empty: unknown.

    Returns:
        The document. ``problems`` lists, in words, everything a strict reader would refuse.

    Raises:
        InvalidContent: If there is no header, it cannot be read as YAML even after values with a
            colon were quoted (names the line), or it has no description.
    """
    parts = split_header(text)
    if parts is None:
        raise InvalidContent(
            "SKILL.md does not start with a header between two '---' lines.",
            remedy="Start it with: ---, name: …, description: …, ---.",
        )
    header, body = parts
    problems: list[str] = []
    if text.startswith("\ufeff"):
        problems.append("it starts with a byte-order mark")
    fields = _read_header(header, problems)
    description = _text(fields, "description", problems)
    if not description.strip():
        raise InvalidContent(
            "SKILL.md has no description, by which an agent would choose it.",
            remedy="Add: description: what it does and when to use it.",
        )
    document = SkillDocument(
        name=_text(fields, "name", problems),
        description=description,
        license=_text(fields, "license", problems),
        compatibility=_text(fields, "compatibility", problems),
        allowed_tools=_text(fields, "allowed-tools", problems),
        metadata=_metadata(fields.get("metadata"), problems),
        extra={key: value for key, value in fields.items() if key not in FIELDS},
        body=body,
    )
    problems.extend(_objections(document, folder))
    return document.model_copy(update={"problems": tuple(problems)})


def name_problem(name: str) -> str | None:
    """Why a text cannot be a skill's name, in words; ``None`` when it can."""
    if not name:
        return "it has no name"
    if len(name) > _MAX_NAME:
        return f"its name has {len(name)} characters; at most {_MAX_NAME} are allowed"
    if unicodedata.normalize("NFKC", name) != name:
        return f"its name {short(name)!r} holds characters that look like others (NFKC)"
    if name.startswith("-") or name.endswith("-") or "--" in name:
        return f"its name {name!r} has a hyphen at an end, or two in a row"
    if not all(letter == "-" or letter.isdigit() or letter.isalpha() for letter in name):
        return f"its name {short(name)!r} holds more than letters, digits and hyphens"
    if name != name.lower():
        return f"its name {name!r} has capital letters"
    return None


def _objections(document: SkillDocument, folder: str) -> list[str]:
    found = []
    named = name_problem(document.name)
    if named is not None:
        found.append(named)
    if folder and document.name and document.name != folder:
        found.append(f"its name {short(document.name)!r} is not that of its folder, {folder!r}")
    if len(document.description) > _MAX_DESCRIPTION:
        found.append(
            f"its description has {len(document.description)} characters; at most "
            f"{_MAX_DESCRIPTION} are allowed"
        )
    if len(document.compatibility) > _MAX_COMPATIBILITY:
        found.append(f"'compatibility' is longer than {_MAX_COMPATIBILITY} characters")
    for key in document.extra:
        found.append(f"the field {short(key)!r} is not one of the specification's")
    lines = document.body.count("\n")
    if lines > _ADVISED_LINES:
        found.append(f"its body has {lines} lines; at most {_ADVISED_LINES} are advised")
    return found


def _read_header(header: str, problems: list[str]) -> dict[str, JsonValue]:
    if len(header) > _MAX_HEADER:
        raise InvalidContent(
            f"the header of SKILL.md has {len(header):,} characters; the limit is {_MAX_HEADER:,}."
        )
    fields, fault = _parse_yaml(header, problems)
    if fault:
        quoted, first = _quote_values(header)
        fields, again = _parse_yaml(quoted, problems)
        if again:
            raise InvalidContent(
                f"the header of SKILL.md is no valid YAML: {fault}.",
                remedy="Put values that hold ':' or start with a bracket in quotes.",
            )
        problems.append(f"its header is YAML only after quoting a value ({first}): {fault}")
    return fields


def _parse_yaml(header: str, problems: list[str]) -> tuple[dict[str, JsonValue], str]:
    """The fields, every scalar as text, and what is wrong ('' for nothing)."""
    import yaml

    try:
        opening, closing, depth = _opening(), _closing(), 0
        for token in yaml.scan(header):
            where = f"line {token.start_mark.line + 2}"
            if isinstance(token, yaml.AliasToken | yaml.AnchorToken):
                return {}, f"{where}: anchors and aliases are not read"
            depth += isinstance(token, opening)
            depth -= isinstance(token, closing)
            if depth > _MAX_DEPTH:
                # The time to read them grows with the square of the depth.
                return (
                    {},
                    f"{where}: lists and maps are inside each other beyond {_MAX_DEPTH} levels",
                )
        node = yaml.compose(header, Loader=yaml.BaseLoader)
        if node is None:
            return {}, ""
        if not isinstance(node, yaml.MappingNode):
            return {}, "it is no list of 'field: value' lines"
        keys = [str(key.value) for key, _ in node.value]
        for key in sorted(key for key, count in Counter(keys).items() if count > 1):
            problems.append(f"the field {short(key)!r} is there twice; the last one counts")
        loaded: Any = yaml.load(header, Loader=yaml.BaseLoader)  # noqa: S506 - builds texts only
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 2 if error.problem_mark else 2
        return {}, f"line {line}: {error.problem}"
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return {}, short(str(error) or type(error).__name__)
    if not isinstance(loaded, dict):
        return {}, "it is no list of 'field: value' lines"
    return {str(key): value for key, value in loaded.items()}, ""


def _opening() -> tuple[type, ...]:
    """Tokens that begin a list or a map."""
    import yaml

    return (
        yaml.FlowSequenceStartToken,
        yaml.FlowMappingStartToken,
        yaml.BlockSequenceStartToken,
        yaml.BlockMappingStartToken,
    )


def _closing() -> tuple[type, ...]:
    """Tokens that end one."""
    import yaml

    return (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)


def _quote_values(header: str) -> tuple[str, str]:
    """The header with plain values of top-level fields in quotes, and the first line changed."""
    lines, first = [], ""
    for line in header.split("\n"):
        found = _FIELD_START.match(line)
        value = line[found.end() :].rstrip() if found else ""
        if (
            found
            and value
            and value[0] not in "'\"|>"
            and (":" in value or value[0] in "[]{}&*#!%@`,?")
        ):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            first = first or found[1]
            line = f'{found[1]}: "{escaped}"'
        lines.append(line)
    return "\n".join(lines), first


def _text(fields: dict[str, JsonValue], field: str, problems: list[str]) -> str:
    value = fields.get(field, "")
    if isinstance(value, str):
        return value
    problems.append(f"the field {field!r} is no text")
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(str(one) for one in value)
    return ""


def _metadata(value: JsonValue, problems: list[str]) -> dict[str, str]:
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        problems.append("the field 'metadata' is no list of 'key: text' lines")
        return {}
    found: dict[str, str] = {}
    for key, one in value.items():
        if isinstance(one, str):
            found[key] = one
        else:
            problems.append(f"'metadata' holds {short(key)!r}, which is no text")
    return found
