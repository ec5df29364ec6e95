"""Diffs: what changed between two contents, in the form of their kind.

Texts word by word, front matter as a structure and its body by words, file trees file by file,
structures place by place. The work is bounded: where a comparison would cost too much it becomes
coarser (lines instead of words, then all instead of lines), and both sides can still be read off.
"""

from __future__ import annotations

import re
from typing import Literal

from instar.registry.front_matter import header_values, split_front_matter
from instar_core.base import Frozen, JsonValue
from instar_core.kinds import Form
from instar_core.matching import Work, matching_blocks

__all__ = [
    "Diff",
    "FileChange",
    "JsonChange",
    "TextChange",
    "diff_contents",
    "diff_front_matter",
    "diff_json",
    "diff_text",
]

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_MOST_CHANGES = 20_000
_SHORT = 20_000


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


class FileChange(Frozen):
    """One file of a tree that is not what it was. Binary files are told by hash and size.

    ``old_path`` is where a renamed file was; ``text`` and ``json_changes`` are as in a
    :class:`Diff`.
    """

    op: Literal["add", "remove", "change", "rename"]
    path: str
    old_path: str = ""
    binary: bool = False
    old_size: int | None = None
    new_size: int | None = None
    old_digest: str = ""
    new_digest: str = ""
    text: tuple[TextChange, ...] = ()
    json_changes: tuple[JsonChange, ...] = ()


class Diff(Frozen):
    """The difference of two contents, in one of four forms.

    ``text`` has the words of a text or of the body under front matter; ``json_changes`` the places
    of a structure or of front matter; ``files`` the files of a tree.
    """

    kind: Literal["text", "front_matter", "tree", "json"]
    equal: bool
    text: tuple[TextChange, ...] = ()
    json_changes: tuple[JsonChange, ...] = ()
    files: tuple[FileChange, ...] = ()


def diff_contents(old: JsonValue, new: JsonValue, form: Form | None = None) -> Diff:
    """The difference between two contents.

    Args:
        old: The content before.
        new: The content after.
        form: How contents of the kind are compared; read off the contents when left out. A form
            that does not fit them is not insisted on.
    """
    work = Work()
    if isinstance(old, str) and isinstance(new, str):
        if form == "front_matter":
            return diff_front_matter(old, new, work)
        return Diff(kind="text", equal=old == new, text=diff_text(old, new, work))
    if form == "tree" and _is_tree(old) and _is_tree(new):
        from instar.registry.diff_trees import diff_trees

        return diff_trees(old, new, work)
    changes = diff_json(old, new, work=work)
    return Diff(kind="json", equal=not changes, json_changes=changes)


def diff_text(old: str, new: str, work: Work | None = None) -> tuple[TextChange, ...]:
    """Word-level changes. What is kept and removed spells ``old``, kept and added spells ``new``.

    Long texts are matched by lines first, and by words where the lines differ; a comparison with
    more than 20,000 changes is told by lines.

    Args:
        old: The text before.
        new: The text after.
        work: What may be spent on it, shared with other parts of one diff.
    """
    work = work or Work()
    if len(old) + len(new) <= _SHORT:
        return tuple(_changes(_WORDS.findall(old), _WORDS.findall(new), work))
    lines = _changes(_LINES.findall(old), _LINES.findall(new), work)
    changes: list[TextChange] = []
    place = 0
    while place < len(lines):
        here = lines[place]
        after = lines[place + 1] if place + 1 < len(lines) else None
        if here.op == "remove" and after is not None and after.op == "add":
            words = _changes(_WORDS.findall(here.text), _WORDS.findall(after.text), work)
            changes.extend(words)
            place += 2
        else:
            changes.append(here)
            place += 1
        if len(changes) > _MOST_CHANGES:
            return tuple(lines[: _MOST_CHANGES - 2]) + _rest(lines[_MOST_CHANGES - 2 :])
    return tuple(changes)


def _rest(lines: list[TextChange]) -> tuple[TextChange, ...]:
    """The remaining changes as one removal and one addition."""
    old = "".join(one.text for one in lines if one.op != "add")
    new = "".join(one.text for one in lines if one.op != "remove")
    found = (TextChange(op="remove", text=old), TextChange(op="add", text=new))
    return tuple(one for one in found if one.text)


def diff_front_matter(old: str, new: str, work: Work | None = None) -> Diff:
    """The difference of two texts with front matter: its places, and the words of the body.

    A header that was only written differently (spaces, quotes, comments) is told as one change of
    the place ``#text``.
    """
    work = work or Work()
    before, after = split_front_matter(old), split_front_matter(new)
    if before is None or after is None:
        return Diff(kind="text", equal=old == new, text=diff_text(old, new, work))
    left, right = header_values(before.header), header_values(after.header)
    changes: tuple[JsonChange, ...] = ()
    if left is not None and right is not None:
        changes = diff_json(left, right, work=work)
    head, new_head = "".join(before[:3]), "".join(after[:3])
    if head != new_head and not changes:
        words = diff_text(head, new_head, work)
        changes = (JsonChange(op="replace", path="#text", old=head, new=new_head, words=words),)
    return Diff(
        kind="front_matter",
        equal=old == new,
        json_changes=changes,
        text=diff_text(before.body, after.body, work),
    )


def diff_json(
    old: JsonValue, new: JsonValue, path: str = "", work: Work | None = None
) -> tuple[JsonChange, ...]:
    """Structural changes, in the order of the new value, then what is gone.

    Lists whose items are objects with an ``id`` (lessons, demonstrations) are compared by id, so
    that an inserted entry does not make every later one look changed; other lists by position.
    """
    work = work or Work()
    if isinstance(old, dict) and isinstance(new, dict):
        return _diff_mappings(old, new, path, work)
    if isinstance(old, list) and isinstance(new, list):
        by_id = _by_id(old), _by_id(new)
        if by_id[0] is not None and by_id[1] is not None:
            moved = _diff_order(by_id[0], by_id[1], path)
            return (*_diff_mappings(by_id[0], by_id[1], path, work), *moved)
        left, right = ({str(i): item for i, item in enumerate(side)} for side in (old, new))
        return _diff_mappings(left, right, path, work)
    if old == new and type(old) is type(new):
        return ()
    words = diff_text(old, new, work) if isinstance(old, str) and isinstance(new, str) else ()
    return (JsonChange(op="replace", path=path, old=old, new=new, words=words),)


def _changes(a: list[str], b: list[str], work: Work) -> list[TextChange]:
    changes: list[TextChange] = []
    left = right = 0
    ends = (len(a), len(b), 0)
    for block in [*matching_blocks(a, b, work=work), ends]:
        i, j, size = block
        if i > left:
            changes.append(TextChange(op="remove", text="".join(a[left:i])))
        if j > right:
            changes.append(TextChange(op="add", text="".join(b[right:j])))
        if size:
            changes.append(TextChange(op="keep", text="".join(a[i : i + size])))
        left, right = i + size, j + size
    return changes


def _diff_mappings(
    old: dict[str, JsonValue], new: dict[str, JsonValue], path: str, work: Work
) -> tuple[JsonChange, ...]:
    changes: list[JsonChange] = []
    for key, value in new.items():
        place = f"{path}/{_escape(key)}"
        if key in old:
            changes.extend(diff_json(old[key], value, place, work))
        else:
            changes.append(JsonChange(op="add", path=place, new=value))
    for key, value in old.items():
        if key not in new:
            changes.append(JsonChange(op="remove", path=f"{path}/{_escape(key)}", old=value))
    return tuple(changes)


def _diff_order(
    old: dict[str, JsonValue], new: dict[str, JsonValue], path: str
) -> tuple[JsonChange, ...]:
    """A change of order among the entries that both lists have."""
    before: list[JsonValue] = [key for key in old if key in new]
    after: list[JsonValue] = [key for key in new if key in old]
    if before == after:
        return ()
    return (JsonChange(op="replace", path=f"{path}#order", old=before, new=after),)


def _by_id(items: list[JsonValue]) -> dict[str, JsonValue] | None:
    found: dict[str, JsonValue] = {}
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            return None
        found[str(item["id"])] = item
    return found if len(found) == len(items) else None


def _is_tree(content: JsonValue) -> bool:
    return isinstance(content, dict) and isinstance(content.get("files"), dict)


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
