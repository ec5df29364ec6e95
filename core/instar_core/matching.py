"""Matching: which stretches of two sequences are the same, found within a bound on the work.

Items that are unique on both sides are anchors (patience diff, B. Cohen 2003); between anchors the
shortest edit script is searched greedily (Myers, "An O(ND) Difference Algorithm and Its
Variations", Algorithmica 1, 1986, section 4). The work is counted, and where it runs out the rest
counts as different: the answer is then coarser, never wrong, and never takes quadratic time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Block", "Work", "matching_blocks"]

_MOST_EDITS = 2_000


@dataclass(slots=True)
class Work:
    """How many comparisons may still be made; shared by the parts of one task, and used up."""

    left: int = 4_000_000


class Block(NamedTuple):
    """A stretch of equal items: ``a[left : left + size] == b[right : right + size]``."""

    left: int
    right: int
    size: int


class _Region(NamedTuple):
    left: int
    left_end: int
    right: int
    right_end: int


def matching_blocks(
    a: Sequence[Hashable], b: Sequence[Hashable], *, work: Work | None = None
) -> list[Block]:
    """The equal stretches of two sequences, in order, without overlap, and as long as they can be.

    Args:
        a: One sequence.
        b: The other one.
        work: What may be spent; whatever is not compared when it is used up counts as different.

    Returns:
        The blocks; the same for the same input on every machine.
    """
    numbers: dict[Hashable, int] = {}
    left = [numbers.setdefault(item, len(numbers)) for item in a]
    right = [numbers.setdefault(item, len(numbers)) for item in b]
    found: list[Block] = []
    work = work or Work()
    waiting = [_Region(0, len(left), 0, len(right))]
    while waiting:
        region = waiting.pop()
        region, ends = _trim(left, right, region)
        found.extend(ends)
        if region.left == region.left_end or region.right == region.right_end:
            continue
        anchors = _anchors(left, right, region)
        if anchors:
            waiting.extend(_between(anchors, region))
            found.extend(Block(i, j, 1) for i, j in anchors)
            continue
        blocks, used = _shortest(left, right, region, work.left)
        work.left -= used
        found.extend(blocks)
    return _joined(found)


def _trim(a: list[int], b: list[int], region: _Region) -> tuple[_Region, list[Block]]:
    """The region without what its two sides begin and end with alike, and those blocks."""
    i, i_end, j, j_end = region
    while i < i_end and j < j_end and a[i] == b[j]:
        i, j = i + 1, j + 1
    while i < i_end and j < j_end and a[i_end - 1] == b[j_end - 1]:
        i_end, j_end = i_end - 1, j_end - 1
    blocks = []
    if i > region.left:
        blocks.append(Block(region.left, region.right, i - region.left))
    if i_end < region.left_end:
        blocks.append(Block(i_end, j_end, region.left_end - i_end))
    return _Region(i, i_end, j, j_end), blocks


def _anchors(a: list[int], b: list[int], region: _Region) -> list[tuple[int, int]]:
    """Places of items that occur once on each side, as the longest run that rises on both."""
    mine = Counter(a[region.left : region.left_end])
    theirs = Counter(b[region.right : region.right_end])
    place = {
        b[j]: j
        for j in range(region.right, region.right_end)
        if theirs[b[j]] == 1 and mine.get(b[j]) == 1
    }
    pairs = [(i, place[a[i]]) for i in range(region.left, region.left_end) if a[i] in place]
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for index, (_, j) in enumerate(pairs):
        at = bisect_left(tails, j)
        if at == len(tails):
            tails.append(j)
            ends.append(index)
        else:
            tails[at] = j
            ends[at] = index
        before.append(ends[at - 1] if at else -1)
    chain: list[tuple[int, int]] = []
    index = ends[-1] if ends else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


def _between(anchors: list[tuple[int, int]], region: _Region) -> list[_Region]:
    edges = [(region.left - 1, region.right - 1), *anchors, (region.left_end, region.right_end)]
    return [
        _Region(i + 1, i_end, j + 1, j_end)
        for (i, j), (i_end, j_end) in zip(edges, edges[1:], strict=False)
        if i_end > i + 1 and j_end > j + 1
    ]


def _shortest(a: list[int], b: list[int], region: _Region, work: int) -> tuple[list[Block], int]:
    """Blocks of a shortest edit script of a region and the work done; no blocks when it ran out."""
    n, m = region.left_end - region.left, region.right_end - region.right
    if not set(a[region.left : region.left_end]) & set(b[region.right : region.right_end]):
        return [], n + m
    used = n + m
    furthest = {1: 0}
    rounds: list[dict[int, int]] = []
    for edits in range(min(n + m, _MOST_EDITS) + 1):
        rounds.append(dict(furthest))
        used += 2 * edits + 1
        if used > work:
            return [], used
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
            x = furthest[k + 1] if down else furthest[k - 1] + 1
            y = start = x - k
            while x < n and y < m and a[region.left + x] == b[region.right + y]:
                x, y = x + 1, y + 1
            used += y - start
            furthest[k] = x
            if x >= n and y >= m:
                return _trace(rounds, region, n, m), used
    return [], used


def _trace(rounds: list[dict[int, int]], region: _Region, x: int, y: int) -> list[Block]:
    """The blocks of the path that reached (x, y), walked back round by round."""
    blocks: list[Block] = []
    for edits in range(len(rounds) - 1, -1, -1):
        furthest, k = rounds[edits], x - y
        down = k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1])
        from_k = k + 1 if down else k - 1
        from_x = furthest[from_k]
        if edits == 0:
            from_x = 0
        turn_x = from_x if down or edits == 0 else from_x + 1
        if x > turn_x:
            blocks.append(Block(region.left + turn_x, region.right + turn_x - k, x - turn_x))
        x, y = from_x, from_x - from_k
    return blocks


def _joined(blocks: Iterable[Block]) -> list[Block]:
    """The blocks in order, neighbours made one."""
    joined: list[Block] = []
    for block in sorted(blocks):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.left + last.size == block.left
            and last.right + last.size == block.right
        ):
            joined[-1] = last._replace(size=last.size + block.size)
        else:
            joined.append(block)
    return joined
