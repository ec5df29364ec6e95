"""Merge reports: what a merged content keeps of its sources, and what it drops of each.

A person who decides on a merge sees both sources and, of each, every sentence, entry, value and
file that the merge does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from instar.registry.merge_parts import units
from instar_core.base import Frozen, JsonValue, canonical_json, content_hash

__all__ = ["Lost", "dropped_from"]

_MOST = 500


class Lost(Frozen):
    """Something of a source that a merge does not hold: a stretch of text, an entry or a value."""

    path: str
    content: JsonValue


def dropped_from(source: JsonValue, merged: JsonValue, *, most: int = _MOST) -> list[Lost]:
    """What of a source is not in a merged content, in the source's order.

    Texts are compared by sentence and line, wherever they stand; lists of objects by ``id``; what
    is elsewhere by its place. At most ``most`` items are told.

    Args:
        source: One of the merged contents.
        merged: What the merge holds.
        most: The longest list that is given.
    """
    found: list[Lost] = []
    for lost in _lost("", source, merged):
        found.append(lost)
        if len(found) == most:
            break
    return found


def _lost(path: str, source: JsonValue, merged: JsonValue) -> Iterator[Lost]:
    if isinstance(source, str) and isinstance(merged, str):
        yield from _lost_text(path, source, merged)
    elif isinstance(source, dict):
        there = merged if isinstance(merged, dict) else {}
        for key, value in source.items():
            place = f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in there:
                yield Lost(path=place, content=_shown(value))
            else:
                yield from _lost(place, value, there[key])
    elif isinstance(source, list):
        yield from _lost_entries(path, source, merged if isinstance(merged, list) else [])
    elif canonical_json(source) != canonical_json(merged):
        yield Lost(path=path, content=source)


def _lost_text(path: str, source: str, merged: str) -> Iterator[Lost]:
    there = Counter(unit.strip() for unit in units(merged))
    for unit in units(source):
        words = unit.strip()
        if not words:
            continue
        if there[words] > 0:
            there[words] -= 1
        else:
            yield Lost(path=path, content=unit)


def _lost_entries(path: str, source: list[JsonValue], merged: list[JsonValue]) -> Iterator[Lost]:
    named = {str(one["id"]): one for one in merged if isinstance(one, dict) and "id" in one}
    equal = Counter(canonical_json(one) for one in merged)
    for place, item in enumerate(source):
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            name = str(item["id"])
            if name in named:
                yield from _lost(f"{path}/{name}", item, named[name])
            else:
                yield Lost(path=f"{path}/{name}", content=_shown(item))
            continue
        key = canonical_json(item)
        if equal[key] > 0:
            equal[key] -= 1
        else:
            yield Lost(path=f"{path}/{place}", content=_shown(item))


def _shown(value: JsonValue) -> JsonValue:
    """A lost value; a binary file by its hash."""
    if isinstance(value, dict) and set(value) == {"base64"}:
        return {"sha256": content_hash(value), "base64_characters": len(str(value["base64"]))}
    return value
