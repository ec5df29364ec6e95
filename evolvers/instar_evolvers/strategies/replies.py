"""Replies: reading what a proposer wrote, tolerant in form and strict in content.

Every function raises ``ValueError`` in words that the model can act on; the Lab shows them to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from instar_core.base import JsonValue, short

__all__ = ["json_array_in", "numbered_items", "section_in"]


def section_in(reply: str, tag: str) -> str:
    """The text inside ``<tag>…</tag>``, stripped.

    Raises:
        ValueError: If the section is missing or empty.
    """
    found = re.search(rf"<{tag}>(.*?)</{tag}>", reply, flags=re.DOTALL | re.IGNORECASE)
    if found is None or not found.group(1).strip():
        raise ValueError(f"the reply has no <{tag}>…</{tag}> section with text in it")
    return found.group(1).strip()


def numbered_items(text: str) -> tuple[str, ...]:
    """The items of a list written as ``1. …`` or ``- …``, one per line; 'none' gives no items."""
    items = []
    for line in text.splitlines():
        found = re.match(r"\s*(?:\d+[.)]|[-*])\s+(.*\S)", line)
        if found is not None and found.group(1).strip().lower() not in {"none", "none."}:
            items.append(found.group(1).strip())
    return tuple(items)


def json_array_in(reply: str) -> list[JsonValue]:
    """The first JSON array in a reply that parses, with or without a code fence around it.

    Raises:
        ValueError: If there is none; quotes the beginning of the reply.
    """
    for start in _positions(reply, "["):
        try:
            value, _ = json.JSONDecoder().raw_decode(reply, start)
        except json.JSONDecodeError:
            continue
        if isinstance(value, list):
            return value
    raise ValueError(f"the reply holds no JSON array; it begins {short(reply, 120)!r}")


def _positions(text: str, character: str) -> Iterator[int]:
    position = text.find(character)
    while position >= 0:
        yield position
        position = text.find(character, position + 1)
