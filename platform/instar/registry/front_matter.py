"""Front matter: a header of ``key: value`` lines between ``---``, and the text after it.

Headers are compared as structures and merged key by key on their own lines, so that what nobody
changed keeps its bytes. A header that is no such list stays one text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from instar_core.base import JsonValue

__all__ = ["FrontMatter", "header_blocks", "header_values", "split_front_matter"]

_FENCE = re.compile(r"---[ \t]*\r?\n")
_END = re.compile(r"^---[ \t]*(?:\r?\n|\Z)", re.MULTILINE)
_KEY = re.compile(r"""(?P<key>[^\s#:'"\[\]{}&*!|>%@`,-][^:\r\n]*):(?=\s|$)""")
_MOST_CHARACTERS = 64 * 1024
_MOST_DEPTH = 32


class FrontMatter(NamedTuple):
    """A text in its parts; together they spell it: ``opening + header + closing + body``."""

    opening: str
    header: str
    closing: str
    body: str


def split_front_matter(text: str) -> FrontMatter | None:
    """The parts of a text that begins with front matter, or ``None``."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    start = _FENCE.match(text, len(mark))
    if start is None:
        return None
    end = _END.search(text, start.end())
    if end is None:
        return None
    return FrontMatter(
        text[: start.end()], text[start.end() : end.start()], end.group(), text[end.end() :]
    )


def header_blocks(header: str) -> dict[str, str] | None:
    """Key → its lines, in order; lines before the first key go under ``""``.

    ``None`` where a key stands twice or the header does not begin with keys.
    """
    blocks: dict[str, str] = {}
    current = ""
    for line in header.splitlines(keepends=True):
        found = None if line[:1] in " \t#\r\n-" else _KEY.match(line)
        if found is not None:
            current = found["key"].rstrip(" \t")
            if current in blocks:
                return None
        elif not current and line.strip() and not line.startswith("#"):
            return None
        blocks[current] = blocks.get(current, "") + line
    return blocks


def header_values(header: str) -> JsonValue:
    """The header as a structure, every scalar as it is written; ``None`` where it cannot be read.

    Headers that are long, deep, or refer to parts of themselves are not read: they can stand for
    structures of any size.
    """
    import yaml

    if len(header) > _MOST_CHARACTERS:
        return None
    depth = 0
    try:
        for event in yaml.parse(header, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                return None
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _MOST_DEPTH:
                return None
        values = yaml.load(header, Loader=yaml.BaseLoader)  # noqa: S506 - makes only texts, lists, maps
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return _json(values)


def _json(value: object) -> JsonValue:
    if isinstance(value, dict):
        return {str(key): _json(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_json(one) for one in value]
    return None if value is None else str(value)
