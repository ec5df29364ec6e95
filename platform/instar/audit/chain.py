"""The chain: walks every stream's rows in one pass and says which is the first that does not hold.

Memory does not grow with the number of rows. What is wrong is said in words, as far as the rows
themselves tell: missing, changed, inserted, reordered, back-dated, of another stream, of a format
that was downgraded, or a head that knows another end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import AuditLine, link_of, stream_lines
from instar.store.checkpoints import (
    HeadState,
    SealedHead,
    find_follower,
    find_number,
    read_links,
)
from instar_core.base import Frozen

__all__ = ["BadRow", "ChainWalk", "walk_chain"]

_FORMATS = (1, 2)
_NEARBY = 1_000
"""How far from its place a row that was moved is looked for."""
_STREAMS = 10_000
"""Among how many streams the one that a foreign row came from is looked for."""
_EXPLAINED = 100
"""Streams whose trouble is explained; where more are broken, one row was not the cause."""


class BadRow(Frozen):
    """The first row of a stream that does not hold; without an id where there is no row."""

    stream: str
    seq: int | None = None
    id: str | None = None
    what: str


@dataclass(slots=True)
class _Trouble:
    """The first row that does not hold, and the one that was accepted before it."""

    line: AuditLine
    previous: AuditLine | None
    expected: int


@dataclass(slots=True)
class _Trail:
    """How far one stream has been walked."""

    stream: str
    expected: int = 1
    previous: AuditLine | None = None
    trouble: _Trouble | None = None

    def step(self, line: AuditLine, project_id: str) -> None:
        """Accepts the next row, or notes that it does not hold."""
        if self.trouble is not None:
            return
        before = self.previous
        if (
            line.seq == self.expected
            and line.previous_hash == (before.hash if before else "")
            and line.format in _FORMATS
            and line.hash == link_of(line, project_id)
            and not (before and before.format > line.format)
            and not (before and before.format == 2 and line.moment < before.moment)
        ):
            self.previous, self.expected = line, self.expected + 1
        else:
            self.trouble = _Trouble(line, before, self.expected)


@dataclass(slots=True)
class ChainWalk:
    """What a walk found.

    Attributes:
        rows: Rows read.
        streams: Streams that have rows.
        bad: Stream → its first bad row.
    """

    rows: int = 0
    streams: int = 0
    bad: dict[str, BadRow] = field(default_factory=dict)


async def walk_chain(
    session: AsyncSession, project_id: str, heads: Mapping[str, HeadState]
) -> ChainWalk:
    """Walks all streams of a project against their links and their heads.

    Args:
        session: A snapshot of the project.
        project_id: The project.
        heads: What ``audit_head`` says, read in the same snapshot.
    """
    walk = ChainWalk()
    seen: set[str] = set()
    troubles: list[_Trouble] = []
    trail: _Trail | None = None
    async for line in stream_lines(session, project_id):
        walk.rows += 1
        if trail is None or trail.stream != line.stream:
            if trail is not None:
                _close(trail, heads, walk, troubles)
            trail = _Trail(line.stream)
            seen.add(line.stream)
        trail.step(line, project_id)
    if trail is not None:
        _close(trail, heads, walk, troubles)
    walk.streams = len(seen)
    for stream in heads.keys() - seen:
        if heads[stream].seq:
            walk.bad[stream] = _tail_lost(stream, 0, heads[stream].seq)
    for trouble in troubles[:_EXPLAINED]:
        walk.bad[trouble.line.stream] = await _explain(session, project_id, trouble, list(heads))
    return walk


def _close(
    trail: _Trail, heads: Mapping[str, HeadState], walk: ChainWalk, troubles: list[_Trouble]
) -> None:
    """Notes the trouble of a stream that has been walked, or holds its end against its head."""
    stream = trail.stream
    if trail.trouble is not None:
        trouble = trail.trouble
        troubles.append(trouble)
        walk.bad[stream] = BadRow(
            stream=stream,
            seq=trouble.expected,
            id=trouble.line.id,
            what=f"row {trouble.expected} does not follow from the row before",
        )
        return
    last, head = trail.previous, heads.get(stream)
    assert last is not None, "a walked stream without trouble has a row"
    if head is None:
        what = f"the stream's head is missing; its last row is {last.seq}"
    elif head.seq > last.seq:
        walk.bad[stream] = _tail_lost(stream, last.seq, head.seq)
        return
    elif head.seq < last.seq:
        what = f"row {last.seq} lies beyond the stream's head, which knows {head.seq}: inserted"
    elif head.hash != last.hash:
        what = f"the stream's head was changed, or row {last.seq}: they have different links"
    elif head.moment != last.moment and last.format != 1:
        what = f"the stream's head was changed: its moment is not that of row {last.seq}"
    else:
        return
    walk.bad[stream] = BadRow(stream=stream, seq=last.seq, id=last.id, what=what)


def _tail_lost(stream: str, last: int, known: int) -> BadRow:
    return BadRow(
        stream=stream,
        seq=last + 1,
        what=f"row {last + 1} is missing: the tail was lost, the stream's head knows {known} rows",
    )


async def _explain(
    session: AsyncSession, project_id: str, trouble: _Trouble, streams: list[str]
) -> BadRow:
    """What is wrong with a row, as far as the rows around it tell."""
    line, before, place = trouble.line, trouble.previous, trouble.expected
    if line.seq > place:
        what = f"row {place} is missing: row {line.seq} follows " + (
            f"row {before.seq}" if before else "the beginning"
        )
        return BadRow(stream=line.stream, seq=place, what=what)
    if line.seq < place:
        return await _second(session, project_id, trouble)
    if line.format not in _FORMATS:
        return _bad(line, f"it has the format {line.format}, which does not exist")
    if link_of(line, project_id) == line.hash:
        return _out_of_line(trouble)
    moved = await _moved(session, project_id, trouble)
    if moved is not None:
        return moved
    if line.format == 1 and link_of(line._replace(format=2), project_id) == line.hash:
        return _bad(line, "its format was downgraded, so that its moment would not be covered")
    for stream in streams[:_STREAMS]:
        if link_of(line, project_id, stream=stream) == line.hash:
            return _bad(line, f"it is a row of another stream, {stream!r}")
    if before is not None and line.moment < before.moment:
        return _bad(line, f"it was back-dated: {line.moment} is before row {before.seq}")
    return _bad(line, "it was changed: what stands in it does not match its link")


def _bad(line: AuditLine, what: str) -> BadRow:
    return BadRow(stream=line.stream, seq=line.seq, id=line.id, what=f"row {line.seq}: {what}")


async def _second(session: AsyncSession, project_id: str, trouble: _Trouble) -> BadRow:
    """Two rows of one number: the one that no row was made after was inserted."""
    line, before = trouble.line, trouble.previous
    if before is None or line.seq != before.seq:
        return _bad(line, "it was inserted: its number is not one that a row can have here")
    followed = await find_follower(session, project_id, line.stream, line.hash)
    if followed and not await find_follower(session, project_id, line.stream, before.hash):
        line = before
    return _bad(line, "it was inserted: there are two rows of this number")


def _out_of_line(trouble: _Trouble) -> BadRow:
    """A row that holds by itself but was not made after the one before it."""
    line, before = trouble.line, trouble.previous
    if before is not None and line.previous_hash == before.hash:
        if before.format > line.format:
            return _bad(line, "its format was downgraded and the chain computed anew")
        return _bad(line, f"it was back-dated: {line.moment} is before row {before.seq}")
    if before is None:
        return _bad(line, "it does not begin the stream: rows before it were taken out")
    what = f"it was changed and its link computed anew: row {line.seq} was made after another"
    return _bad(before, what)


async def _moved(session: AsyncSession, project_id: str, trouble: _Trouble) -> BadRow | None:
    """What happened where a row holds under another number than it has; ``None`` if it does not."""
    line = trouble.line
    nearby = range(max(1, line.seq - _NEARBY), line.seq + _NEARBY + 1)
    was = next((n for n in nearby if link_of(line, project_id, seq=n) == line.hash), None)
    if was is None:
        return None
    parent = (0, "")
    if line.previous_hash:
        found = await find_number(session, project_id, line.stream, line.previous_hash)
        if found is None:
            what = f"row {line.seq} was taken out: what has its number now was row {was}"
            return BadRow(stream=line.stream, seq=line.seq, what=what)
        parent = found
    if was < line.seq and parent[0] == was - 1:
        rows = await read_links(session, project_id, SealedHead(line.stream, was - 1, was))
        identity = rows[was][0] if was in rows else None
        what = f"row {was} was inserted: row {line.seq} was row {was} before"
        return BadRow(stream=line.stream, seq=was, id=identity, what=what)
    return _bad(line, f"the rows were reordered: this one was row {was}")
