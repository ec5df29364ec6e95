"""Merging: two changes of one content become one, or the places where they disagree are told.

Nothing is settled silently. A place that only one side changed takes that change; a place that both
changed alike is changed once; everywhere else there is a :class:`Conflict` with all three versions
of the place, and no merged content, unless the caller says which side shall win: then what the
other side loses is listed as :class:`Dropped`. Exchanging the sides changes only their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias, cast

from instar.registry.front_matter import header_blocks, header_values, split_front_matter
from instar.registry.merge_parts import ABSENT, Absent, merge_order, merge_units, same, units
from instar.registry.tree_files import file_bytes
from instar_core.base import Frozen, JsonValue, content_hash
from instar_core.kinds import Form
from instar_core.matching import Work

__all__ = ["Conflict", "Dropped", "Merge", "Prefer", "Side", "merge_contents"]

Side = Literal["base", "ours", "theirs"]
Prefer = Literal["none", "ours", "theirs"]
Place: TypeAlias = "JsonValue | Absent"


class Conflict(Frozen):
    """A place that both sides changed, differently; ``missing`` names the sides without it.

    ``path`` is a JSON pointer, with a file's path or ``/body`` as its first part where the content
    has those; empty for a plain text. ``line`` counts the base's lines from 1.
    """

    path: str
    what: Literal["text", "value", "presence", "order", "file", "header"]
    base: JsonValue = None
    ours: JsonValue = None
    theirs: JsonValue = None
    missing: tuple[Side, ...] = ()
    line: int | None = None
    note: str = ""


class Dropped(Frozen):
    """What a side had at a place of conflict, and lost because the other one was preferred."""

    path: str
    side: Side
    content: JsonValue = None


class Merge(Frozen):
    """The merged content where ``clean``; else none, and every conflict."""

    clean: bool
    content: JsonValue = None
    conflicts: tuple[Conflict, ...] = ()
    dropped: tuple[Dropped, ...] = ()


def merge_contents(
    form: Form,
    base: JsonValue,
    ours: JsonValue,
    theirs: JsonValue,
    *,
    prefer: Prefer = "none",
) -> Merge:
    """Merges two changes of one content.

    Args:
        form: How contents of the kind are merged: by lines and sentences, by header and body, file
            by file, or place by place (lists of objects with an ``id`` by that id).
        base: What both sides started from.
        ours: One side.
        theirs: The other one.
        prefer: The side that wins where both changed a place; ``none`` leaves it a conflict.

    Returns:
        The merge. It is clean wherever one side equals the base or the other side.
    """
    merging = _Merging(prefer)
    merged: Place
    if form == "front_matter":
        merged = merging.value("", base, ours, theirs, merging.header_and_body)
    elif form == "tree":
        merged = merging.value("", base, ours, theirs, tree=True)
    else:
        merged = merging.value("", base, ours, theirs)
    clean = not merging.conflicts and not isinstance(merged, Absent)
    return Merge(
        clean=clean,
        content=cast("JsonValue", merged) if clean else None,
        conflicts=tuple(merging.conflicts),
        dropped=tuple(merging.dropped),
    )


class _Merging:
    """One merge under way: what it met so far."""

    def __init__(self, prefer: Prefer) -> None:
        self.prefer = prefer
        self.conflicts: list[Conflict] = []
        self.dropped: list[Dropped] = []
        self.work = Work()

    def value(
        self,
        path: str,
        base: Place,
        ours: Place,
        theirs: Place,
        text: Callable[[str, str, str, str], str] | None = None,
        *,
        tree: bool = False,
    ) -> Place:
        """The merged value of one place."""
        for one, other, wins in (
            (ours, theirs, ours),
            (base, ours, theirs),
            (base, theirs, ours),
        ):
            if same(one, other):
                return wins
        if isinstance(base, str) and isinstance(ours, str) and isinstance(theirs, str):
            return (text or self.text)(path, base, ours, theirs)
        empty = base is ABSENT
        if isinstance(ours, dict) and isinstance(theirs, dict):
            if empty or isinstance(base, dict):
                before = {} if empty else cast("dict[str, JsonValue]", base)
                return self._mapping(path, before, ours, theirs, tree=tree)
        elif isinstance(ours, list) and isinstance(theirs, list):
            lists = [_by_id([] if empty else base), _by_id(ours), _by_id(theirs)]
            if all(one is not None for one in lists):
                keyed = cast("list[dict[str, JsonValue]]", lists)
                return self._entries(path, *keyed)
        lost = any(side is ABSENT for side in (ours, theirs))
        return self._settle(path, "presence" if lost else "value", (base, ours, theirs))

    def text(self, path: str, base: str, ours: str, theirs: str) -> str:
        """A text merged by lines, and within lines by sentences."""
        merged: list[str] = []
        line = 1
        for hunk in merge_units(units(base), units(ours), units(theirs), self.work):
            if isinstance(hunk.sides, str):
                merged.append(hunk.sides)
            else:
                found = self._settle(path, "text", hunk.sides, line=line)
                merged.append(cast("str", found))
            line += hunk.base_lines
        return "".join(merged)

    def header_and_body(self, path: str, base: str, ours: str, theirs: str) -> str:
        """A text with front matter: the header key by key on its own lines, then the body."""
        parts = [split_front_matter(side) for side in (base, ours, theirs)]
        if parts[0] is None or parts[1] is None or parts[2] is None:
            return self.text(path, base, ours, theirs)
        b, o, t = parts[0], parts[1], parts[2]
        opening = self._atom(f"{path}/header", b.opening, o.opening, t.opening)
        closing = self._atom(f"{path}/header", b.closing, o.closing, t.closing)
        header = self._header(f"{path}/header", b.header, o.header, t.header)
        body = cast("str", self.value(f"{path}/body", b.body, o.body, t.body))
        return opening + header + closing + body

    def _header(self, path: str, base: str, ours: str, theirs: str) -> str:
        blocks = [header_blocks(side) for side in (base, ours, theirs)]
        if blocks[0] is None or blocks[1] is None or blocks[2] is None:
            return cast("str", self.value(path, base, ours, theirs))
        sides = [cast("dict[str, JsonValue]", one) for one in blocks]
        found = self._mapping(path, *sides)
        merged = "".join(cast("str", found[key]) for key in found)
        readable = header_values(ours) is not None and header_values(theirs) is not None
        if readable and header_values(merged) is None:
            # Both headers can be read and their merge cannot: only a person sees what is meant.
            return cast("str", self._settle(path, "header", (base, ours, theirs)))
        return merged

    def _atom(self, path: str, base: str, ours: str, theirs: str) -> str:
        if ours == theirs or base == ours:
            return theirs
        if base == theirs:
            return ours
        return cast("str", self._settle(path, "header", (base, ours, theirs)))

    def _mapping(
        self,
        path: str,
        base: dict[str, JsonValue],
        ours: dict[str, JsonValue],
        theirs: dict[str, JsonValue],
        *,
        tree: bool = False,
    ) -> dict[str, JsonValue]:
        found: dict[str, JsonValue] = {}
        for key in sorted({*base, *ours, *theirs}):
            sides: list[Place] = [one.get(key, ABSENT) for one in (base, ours, theirs)]
            place = f"{path}/{_escape(key)}"
            if tree and key == "files" and all(isinstance(one, dict) for one in sides):
                merged: Place = self._files(cast("list[dict[str, JsonValue]]", sides))
            else:
                merged = self.value(place, sides[0], sides[1], sides[2])
            if not isinstance(merged, Absent):
                found[key] = merged
        order = merge_order(list(base), list(ours), list(theirs), set(found))
        # The order of an object's keys says nothing; any will do where the sides disagree.
        return {key: found[key] for key in order or sorted(found)}

    def _entries(
        self,
        path: str,
        base: dict[str, JsonValue],
        ours: dict[str, JsonValue],
        theirs: dict[str, JsonValue],
    ) -> list[JsonValue]:
        """A list of objects with ids: each entry by its id, then their order."""
        found = self._mapping(path, base, ours, theirs)
        order = merge_order(list(base), list(ours), list(theirs), set(found))
        if order is None:
            names = [cast("JsonValue", list(side)) for side in (base, ours, theirs)]
            settled = self._settle(f"{path}#order", "order", (names[0], names[1], names[2]))
            wanted = [key for key in cast("list[str]", settled) if key in found]
            order = [*wanted, *(key for key in found if key not in wanted)]
        return [found[key] for key in order]

    def _files(self, sides: list[dict[str, JsonValue]]) -> dict[str, JsonValue]:
        base, ours, theirs = sides
        found: dict[str, JsonValue] = {}
        for path in sorted({*base, *ours, *theirs}):
            before, mine, other = (side.get(path, ABSENT) for side in sides)
            merged = self._file(path, before, mine, other)
            if not isinstance(merged, Absent):
                found[path] = merged
        for path in found:
            folders = {"/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)}
            for folder in sorted(folders & set(found)):
                # One side made a file where the other one made a folder.
                self.conflicts.append(
                    Conflict(path=folder, what="file", ours=_shown_file(found[folder]))
                )
        order = merge_order(list(base), list(ours), list(theirs), set(found))
        return {path: found[path] for path in order or sorted(found)}

    def _file(self, path: str, base: Place, ours: Place, theirs: Place) -> Place:
        texts = all(isinstance(side, str) for side in (base, ours, theirs))
        if texts:
            return self.value(path, base, ours, theirs, self.header_and_body)
        for one, other, wins in ((ours, theirs, ours), (base, ours, theirs), (base, theirs, ours)):
            if same(one, other) or file_bytes(one) == file_bytes(other):
                return wins
        lost = any(side is ABSENT for side in (ours, theirs))
        return self._settle(path, "presence" if lost else "file", (base, ours, theirs))

    def _settle(
        self,
        path: str,
        what: Literal["text", "value", "presence", "order", "file", "header"],
        sides: tuple[Place, Place, Place],
        *,
        line: int | None = None,
    ) -> Place:
        """One side of a place that both changed, if a side is preferred; else a conflict."""
        names: tuple[Side, Side, Side] = ("base", "ours", "theirs")
        shown = [None if isinstance(one, Absent) else _shown_file(one) for one in sides]
        if self.prefer != "none":
            loser: Side = "theirs" if self.prefer == "ours" else "ours"
            lost = shown[names.index(loser)]
            self.dropped.append(Dropped(path=path, side=loser, content=lost))
            return sides[names.index(self.prefer)]
        self.conflicts.append(
            Conflict(
                path=path,
                what=what,
                base=shown[0],
                ours=shown[1],
                theirs=shown[2],
                missing=tuple(n for n, one in zip(names, sides, strict=True) if one is ABSENT),
                line=line,
            )
        )
        return sides[1]


def _by_id(items: object) -> dict[str, JsonValue] | None:
    """The entries of a list by their ids; ``None`` unless each is an object with its own id."""
    if not isinstance(items, list):
        return None
    found: dict[str, JsonValue] = {}
    for item in cast("Iterable[JsonValue]", items):
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            return None
        found[str(item["id"])] = item
    return found if len(found) == len(items) else None


def _shown_file(value: JsonValue) -> JsonValue:
    """A place as a conflict shows it: binary files by hash and size."""
    if isinstance(value, dict) and set(value) == {"base64"}:
        content = file_bytes(value)
        if content is not None:
            return {"sha256": content_hash(content), "size": len(content)}
    return value


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
