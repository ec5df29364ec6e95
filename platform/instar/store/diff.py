"""Diffs: what changed between two contents, word by word for texts, path by path for structures."""

from __future__ import annotations

import difflib
import re
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import ArtifactRef, read_content, resolve
from instar_core.base import Frozen, JsonValue

__all__ = [
    "Diff",
    "JsonChange",
    "TextChange",
    "diff_contents",
    "diff_json",
    "diff_text",
    "diff_versions",
]

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_MAX_WORDS = 20_000


class TextChange(Frozen):
    """A stretch of text: kept, removed from the old, or added in the new."""

    op: Literal["keep", "remove", "add"]
    text: str


class JsonChange(Frozen):
    """One changed place of a structure, by JSON pointer; a text in both is diffed word by word."""

    op: Literal["remove", "add", "replace"]
    path: str
    old: JsonValue = None
    new: JsonValue = None
    words: tuple[TextChange, ...] = ()


class Diff(Frozen):
    """The difference of two contents: ``text`` when both are texts, ``json`` otherwise."""

    kind: Literal["text", "json"]
    equal: bool
    text: tuple[TextChange, ...] = ()
    json_changes: tuple[JsonChange, ...] = ()


def diff_contents(old: JsonValue, new: JsonValue) -> Diff:
    """The difference between two contents."""
    if isinstance(old, str) and isinstance(new, str):
        return Diff(kind="text", equal=old == new, text=diff_text(old, new))
    changes = diff_json(old, new)
    return Diff(kind="json", equal=not changes, json_changes=changes)


def diff_text(old: str, new: str) -> tuple[TextChange, ...]:
    """Word-level changes. What is kept and removed spells ``old``, kept and added spells ``new``.

    Texts of more than 20,000 words are compared line by line, which takes far less time.
    """
    a, b = _WORDS.findall(old), _WORDS.findall(new)
    if len(a) + len(b) > _MAX_WORDS:
        a, b = old.splitlines(keepends=True), new.splitlines(keepends=True)
    changes: list[TextChange] = []
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            changes.append(TextChange(op="keep", text="".join(a[a0:a1])))
            continue
        if a1 > a0:
            changes.append(TextChange(op="remove", text="".join(a[a0:a1])))
        if b1 > b0:
            changes.append(TextChange(op="add", text="".join(b[b0:b1])))
    return tuple(changes)


def diff_json(old: JsonValue, new: JsonValue, path: str = "") -> tuple[JsonChange, ...]:
    """Structural changes, in the order of the new value, then what is gone.

    Lists whose items are objects with an ``id`` (lessons, demonstrations) are compared by id, so
    that an inserted entry does not make every later one look changed; other lists by position.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        return _diff_mappings(old, new, path)
    if isinstance(old, list) and isinstance(new, list):
        by_id = _by_id(old), _by_id(new)
        if by_id[0] is not None and by_id[1] is not None:
            moved = _diff_order(list(by_id[0]), list(by_id[1]), path)
            return (*_diff_mappings(by_id[0], by_id[1], path), *moved)
        left, right = ({str(i): item for i, item in enumerate(side)} for side in (old, new))
        return _diff_mappings(left, right, path)
    if old == new and type(old) is type(new):
        return ()
    words = diff_text(old, new) if isinstance(old, str) and isinstance(new, str) else ()
    return (JsonChange(op="replace", path=path, old=old, new=new, words=words),)


async def diff_versions(
    session: AsyncSession, ref: ArtifactRef, old: str | int, new: str | int
) -> Diff:
    """The difference between two versions of one artifact.

    Raises:
        NotFoundError: If one of them does not exist.
    """
    left = (await resolve(session, ref, old)).version
    right = (await resolve(session, ref, new)).version
    return diff_contents(await read_content(session, left), await read_content(session, right))


def _diff_mappings(
    old: dict[str, JsonValue], new: dict[str, JsonValue], path: str
) -> tuple[JsonChange, ...]:
    changes: list[JsonChange] = []
    for key, value in new.items():
        place = f"{path}/{_escape(key)}"
        if key in old:
            changes.extend(diff_json(old[key], value, place))
        else:
            changes.append(JsonChange(op="add", path=place, new=value))
    for key, value in old.items():
        if key not in new:
            changes.append(JsonChange(op="remove", path=f"{path}/{_escape(key)}", old=value))
    return tuple(changes)


def _diff_order(old: list[str], new: list[str], path: str) -> tuple[JsonChange, ...]:
    """A change of order among the entries that both lists have."""
    before = [key for key in old if key in new]
    after = [key for key in new if key in old]
    if before == after:
        return ()
    return (JsonChange(op="replace", path=f"{path}#order", old=[*before], new=[*after]),)


def _by_id(items: list[JsonValue]) -> dict[str, JsonValue] | None:
    found: dict[str, JsonValue] = {}
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            return None
        found[str(item["id"])] = item
    return found if len(found) == len(items) else None


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
