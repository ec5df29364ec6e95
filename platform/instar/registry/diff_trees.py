"""Diffs of file trees: which files came, went, moved or changed, and how each changed."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple, cast

from instar.registry.diffs import (
    Diff,
    FileChange,
    diff_front_matter,
    diff_json,
    diff_text,
)
from instar.registry.tree_files import file_bytes
from instar_core.base import JsonValue, content_hash
from instar_core.matching import Work

__all__ = ["diff_trees"]

_WORD = re.compile(r"\w+")
_ALIKE = 0.6
_MOST_PAIRS = 400
_MOST_CHARACTERS = 200_000


class _File(NamedTuple):
    content: bytes
    text: str | None
    digest: str


def diff_trees(old: JsonValue, new: JsonValue, work: Work | None = None) -> Diff:
    """The difference of two file trees, ``{"files": {path: text or {"base64": …}}}``.

    A file that is gone here and there under another name there is told as renamed: where the bytes
    are the same, or, among few files, where most of its words are.
    """
    work = work or Work()
    before, after = _files(old), _files(new)
    gone = {path: before[path] for path in before if path not in after}
    fresh = {path: after[path] for path in after if path not in before}
    renamed = _renames(gone, fresh)
    changes: list[FileChange] = []
    for path, file in after.items():
        if path in before:
            if before[path].content != file.content:
                changes.append(_change("change", path, before[path], file, work))
        elif path in renamed:
            was = renamed[path]
            changes.append(_change("rename", path, gone[was], file, work, was))
        else:
            changes.append(_change("add", path, None, file, work))
    moved = set(renamed.values())
    changes.extend(
        _change("remove", path, file, None, work)
        for path, file in gone.items()
        if path not in moved
    )
    left = {key: value for key, value in _mapping(old).items() if key != "files"}
    right = {key: value for key, value in _mapping(new).items() if key != "files"}
    beside = diff_json(left, right, work=work)
    return Diff(
        kind="tree", equal=not changes and not beside, files=tuple(changes), json_changes=beside
    )


def _mapping(content: JsonValue) -> dict[str, JsonValue]:
    return content if isinstance(content, dict) else {}


def _files(tree: JsonValue) -> dict[str, _File]:
    found: dict[str, _File] = {}
    for path, value in cast("dict[str, JsonValue]", _mapping(tree)["files"]).items():
        content = file_bytes(value)
        if content is None:
            content = repr(value).encode()
        found[path] = _File(
            content, value if isinstance(value, str) else None, content_hash(content)
        )
    return found


def _renames(gone: dict[str, _File], fresh: dict[str, _File]) -> dict[str, str]:
    """New path → old path of files that moved."""
    renamed: dict[str, str] = {}
    by_digest: dict[str, list[str]] = {}
    for path, file in gone.items():
        by_digest.setdefault(file.digest, []).append(path)
    for path, file in fresh.items():
        if file.content and by_digest.get(file.digest):
            renamed[path] = by_digest[file.digest].pop(0)
    taken = set(renamed.values())
    sources = {p: f.text for p, f in gone.items() if f.text and p not in taken}
    targets = {p: f.text for p, f in fresh.items() if f.text and p not in renamed}
    if len(sources) * len(targets) > _MOST_PAIRS:
        return renamed
    words = {
        side: {
            path: Counter(_WORD.findall(text[:_MOST_CHARACTERS])) for path, text in found.items()
        }
        for side, found in (("old", sources), ("new", targets))
    }
    ranked = sorted(
        (-_alike(words["old"][was], words["new"][now]), now, was)
        for was in sources
        for now in targets
    )
    for likeness, now, was in ranked:
        if -likeness >= _ALIKE and now not in renamed and was not in taken:
            renamed[now] = was
            taken.add(was)
    return renamed


def _alike(one: Counter[str], other: Counter[str]) -> float:
    most = max(one.total(), other.total())
    return (one & other).total() / most if most else 0.0


def _change(  # noqa: PLR0913 - a file's two sides with their names
    op: str, path: str, old: _File | None, new: _File | None, work: Work, old_path: str = ""
) -> FileChange:
    facts = {
        "op": op,
        "path": path,
        "old_path": old_path,
        "binary": any(side is not None and side.text is None for side in (old, new)),
        "old_size": None if old is None else len(old.content),
        "new_size": None if new is None else len(new.content),
        "old_digest": "" if old is None else old.digest,
        "new_digest": "" if new is None else new.digest,
    }
    before = "" if old is None else old.text
    after = "" if new is None else new.text
    if before is not None and after is not None and before != after:
        both = old is not None and new is not None
        inner = diff_front_matter(before, after, work) if both else None
        facts["text"] = diff_text(before, after, work) if inner is None else inner.text
        facts["json_changes"] = () if inner is None else inner.json_changes
    return FileChange.model_validate(facts)
