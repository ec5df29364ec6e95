"""Parts of merging: the units of a text, three-way hunks, and the order of named entries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from instar_core.base import JsonValue, canonical_json
from instar_core.matching import Work, matching_blocks

__all__ = ["ABSENT", "Absent", "Hunk", "merge_order", "merge_units", "same", "units"]

_LINES = re.compile(r"[^\n]*\n|[^\n]+")
_SENTENCES = re.compile(r"""[^\n]*?[.!?]["')\]]*[ \t]+(?=\S)|[^\n]*\n|[^\n]+""")


class Absent:
    """The value of a place that is not there."""


ABSENT = Absent()


class Hunk(NamedTuple):
    """A stretch of a merged text, or its three sides where they disagree.

    ``base_lines`` is how many lines of the base it covers.
    """

    sides: str | tuple[str, str, str]
    base_lines: int


def same(one: JsonValue | Absent, other: JsonValue | Absent) -> bool:
    """Whether two places hold the same value, to the byte: 1, 1.0 and true are three values."""
    if isinstance(one, Absent) or isinstance(other, Absent):
        return one is other
    if type(one) is not type(other):
        return False
    if isinstance(one, (dict, list)):
        return one == other and canonical_json(one) == canonical_json(other)
    return one == other


def units(text: str) -> list[str]:
    """What a text is merged by: its lines, and the sentences of a line. Joined they spell it."""
    found: list[str] = []
    for line in _LINES.findall(text):
        found.extend(_SENTENCES.findall(line))
    return found


def merge_units(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str], work: Work
) -> Iterator[Hunk]:
    """The hunks of a three-way merge (diff3; Khanna, Kunal & Pierce, FSTTCS 2007, section 3).

    Units that are the same on all three sides separate the hunks. A hunk that one side left alone
    takes the other side; one that both changed alike is taken once.
    """
    mine = _places(base, ours, work)
    other = _places(base, theirs, work)
    b = o = t = 0
    anchors: list[int | None] = [*sorted(set(mine) & set(other)), None]
    for anchor in anchors:
        if anchor is None:
            ends = (len(base), len(ours), len(theirs))
        else:
            ends = (anchor, mine[anchor], other[anchor])
        sides = (
            "".join(base[b : ends[0]]),
            "".join(ours[o : ends[1]]),
            "".join(theirs[t : ends[2]]),
        )
        if any(sides):
            yield Hunk(_decide(sides), sides[0].count("\n"))
        if anchor is None:
            return
        yield Hunk(base[anchor], base[anchor].count("\n"))
        b, o, t = ends[0] + 1, ends[1] + 1, ends[2] + 1


def _places(base: Sequence[str], side: Sequence[str], work: Work) -> dict[int, int]:
    """Place of a unit of the base → its place on a side, where it was kept."""
    return {
        block.left + step: block.right + step
        for block in matching_blocks(base, side, work=work)
        for step in range(block.size)
    }


def _decide(sides: tuple[str, str, str]) -> str | tuple[str, str, str]:
    base, ours, theirs = sides
    if ours == theirs or base == theirs:
        return ours
    return theirs if base == ours else sides


def merge_order(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str], alive: set[str]
) -> list[str] | None:
    """The order of merged entries, or ``None`` if both sides reordered them, differently.

    What a side added stays behind what it stood behind there; where both added at one place, the
    addition whose first name is smaller comes first, whichever side it is from.

    Args:
        base: Names in the base, in order.
        ours: Names on one side.
        theirs: Names on the other side.
        alive: Names that the merge keeps.
    """
    kept = [key for key in base if key in alive]
    known = set(kept)
    orders = []
    for side in (ours, theirs):
        here = set(side)
        order = [key for key in side if key in known]
        if order != [key for key in kept if key in here]:
            orders.append([*order, *(key for key in kept if key not in here)])
    if len(orders) == 2 and orders[0] != orders[1]:
        return None
    common = orders[0] if orders else kept
    mine, other = _additions(ours, known, alive), _additions(theirs, known, alive)
    merged: list[str] = []
    placed: set[str] = set()
    for anchor in [None, *common]:
        if anchor is not None:
            merged.append(anchor)
        for key in (
            key for run in sorted([mine.get(anchor, []), other.get(anchor, [])]) for key in run
        ):
            if key not in placed:
                placed.add(key)
                merged.append(key)
    return merged


def _additions(
    side: Sequence[str], known: set[str], alive: set[str]
) -> dict[str | None, list[str]]:
    """What a side added, by the entry of the base that it stands behind."""
    found: dict[str | None, list[str]] = {}
    anchor: str | None = None
    for key in side:
        if key in known:
            anchor = key
        elif key in alive:
            found.setdefault(anchor, []).append(key)
    return found
