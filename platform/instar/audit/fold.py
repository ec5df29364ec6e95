"""The fold: all checkpoints of a project, from database and copies, held against the rows.

A checkpoint counts only with a signature of a trusted key. Where the database and a copy differ,
the copy's claims are held against the rows too: they tell which row was lost or changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pydantic import ValidationError
from sqlalchemy.ext.asyncio import AsyncSession

from instar.audit.chain import BadRow
from instar.audit.checkpoint import LINK_DIGITS, Checkpoint, Head, checkpoint_problem, root_of
from instar.audit.keys import PublicKey
from instar.audit.writer import as_checkpoint
from instar.store.checkpoints import (
    HeadState,
    SealedHead,
    SealedRows,
    read_links,
    read_sealed_heads,
    read_sealed_rows,
    stream_checkpoints,
)

__all__ = ["CHECKPOINTS", "Copy", "Fold"]

CHECKPOINTS = "checkpoints"
"""What stands as the stream of a checkpoint that does not hold."""
_BATCH = 500
_OPEN_TRANSACTION = timedelta(hours=1)
"""A row may commit this long after its moment; until then a checkpoint in between lacks it."""
_LAG = timedelta(minutes=10)
"""A copy that could not be written this long counts as cut."""
_LOCATED = 200_000
"""Rows of one claim that are looked through for the first that differs."""


@dataclass(slots=True)
class Copy:
    """A copy of the checkpoints outside the database.

    Attributes:
        name: What it is called in findings.
        lines: Its checkpoints in order.
        whole: Whether it ought to have all of the database's; a copy kept elsewhere may be older,
            and may be only its end.
        count: Checkpoints read from it.
    """

    name: str
    lines: Iterator[Checkpoint]
    whole: bool
    count: int = 0
    _next: Checkpoint | None = None
    _last: Checkpoint | None = None
    _ended: bool = False

    def peek(self) -> Checkpoint | None:
        """The next one, without taking it; a line that merely repeats the last is passed over."""
        while self._next is None and not self._ended:
            found = next(self.lines, None)
            if found is None:
                self._ended = True
            elif self._last is None or found.hash != self._last.hash:
                self._next = found
        return self._next

    def take(self, seq: int) -> Checkpoint | None:
        """The checkpoint of that number, if it is the next one."""
        found = self.peek()
        if found is None or found.seq > seq:
            return None
        self._next, self._last = None, found
        self.count += 1
        return found


class _Claim(NamedTuple):
    """One stream's part of a checkpoint."""

    head: SealedHead
    hash: str
    links: str
    seq: int
    at: str
    floor: str
    where: str


@dataclass(slots=True)
class Fold:
    """Folds the checkpoints of one project; findings are kept, the first of each kind.

    Attributes:
        session: A snapshot of the project.
        project_id: The project.
        installation: The installation's id, which every checkpoint must name.
        trusted: Fingerprint → key.
        copies: Copies outside the database.
        state: Stream → (number, link) as of the last checkpoint.
        count: Checkpoints in the database.
        rows: Stream → first row that does not match what was sealed.
        problems: Checkpoints that do not hold, in order.
        overdue: Moment of a row that should have been sealed long ago; empty if there is none.
    """

    session: AsyncSession
    project_id: str
    installation: str
    trusted: Mapping[str, PublicKey]
    copies: list[Copy]
    state: dict[str, tuple[int, str]] = field(default_factory=dict)
    count: int = 0
    rows: dict[str, BadRow] = field(default_factory=dict)
    problems: list[BadRow] = field(default_factory=list)
    overdue: str = ""
    _last: Checkpoint | None = None
    _sealed: int = 0
    _floor: str = ""
    _claims: list[_Claim] = field(default_factory=list)
    _lacking: dict[str, Checkpoint] = field(default_factory=dict)

    async def run(self) -> None:
        """Folds everything."""
        async for stored in self._stored():
            await self._take_before(stored.seq)
            await self._take(stored.seq, stored)
        await self._take_before(None)
        await self._flush()
        self._check_end()

    async def check_unsealed(self, heads: Mapping[str, HeadState]) -> int:
        """Checks the moments of what no checkpoint has yet; returns how many rows that are."""
        waiting = [
            SealedHead(stream, self.state.get(stream, (0, ""))[0], head.seq)
            for stream, head in heads.items()
            if head.seq > self.state.get(stream, (0, ""))[0]
        ]
        floor = _earlier(self._floor)
        due = _as_text(datetime.now(UTC) - _LAG)
        for start in range(0, len(waiting), _BATCH):
            part = waiting[start : start + _BATCH]
            for head, found in zip(
                part, await read_sealed_rows(self.session, self.project_id, part), strict=True
            ):
                moment = found.first_moment
                if moment is not None and moment < floor:
                    self._back_dated(head, moment, self._floor)
                if moment is not None and moment < due:
                    self.overdue = min(self.overdue or moment, moment)
        return sum(head.seq - head.since for head in waiting)

    async def check_sealed(self) -> None:
        """Holds what the sealer goes by against the checkpoints: a number that was raised would
        keep rows from ever being sealed."""
        if self.problems:
            return
        noted = await read_sealed_heads(self.session, self.project_id)
        for stream in sorted(noted.keys() | self.state.keys()):
            told, sealed = noted.get(stream, 0), self.state.get(stream, (0, ""))[0]
            if told != sealed and stream not in self.rows:
                self.rows[stream] = BadRow(
                    stream=stream,
                    seq=sealed + 1,
                    what=f"row {sealed + 1}: the note of what is sealed was changed: it names row "
                    f"{told}, and the checkpoints sealed rows up to {sealed}",
                )

    async def _stored(self) -> AsyncIterator[Checkpoint]:
        """The database's checkpoints; those that have not the format's form are findings."""
        async for stored in stream_checkpoints(self.session, self.project_id):
            self.count += 1
            try:
                yield as_checkpoint(stored)
            except ValidationError:
                self._problem(self.count, "its document does not have the form of a checkpoint")

    async def _take_before(self, seq: int | None) -> None:
        """Takes what only copies have, up to the database's next checkpoint."""
        while True:
            nexts = [found.seq for copy in self.copies if (found := copy.peek()) is not None]
            if not nexts or (seq is not None and min(nexts) >= seq):
                return
            await self._take(min(nexts), None)

    async def _take(self, seq: int, stored: Checkpoint | None) -> None:
        """Takes the checkpoint of one number, from wherever it is."""
        chosen, where = None, ""
        if stored is not None:
            problem = checkpoint_problem(stored, self.trusted)
            if problem:
                self._problem(seq, problem)
            else:
                chosen = stored
        for copy in self.copies:
            found = copy.take(seq)
            if found is None:
                if stored is not None and copy.whole:
                    self._lacking.setdefault(copy.name, stored)
                continue
            if copy.whole and copy.name in self._lacking:
                lost = self._lacking.pop(copy.name)
                self._problem(lost.seq, f"{copy.name} lacks it, though it has later ones")
            problem = checkpoint_problem(found, self.trusted)
            if problem:
                self._problem(seq, f"in {copy.name}: {problem}")
                continue
            if stored is None:
                self._problem(seq, f"the database lacks it, {copy.name} has it: {_SET_BACK}")
            elif found.hash != stored.hash:
                self._problem(seq, f"{copy.name} has another one of this number: {_SET_BACK}")
            if chosen is None or found.hash != chosen.hash:
                chosen, where = found, f" in {copy.name}"
        if chosen is not None:
            await self._fold(chosen, where)

    async def _fold(self, one: Checkpoint, where: str) -> None:
        """Checks a genuine checkpoint against the one before, and takes its claims."""
        document, last = one.document, self._last
        if (document.project, document.installation) != (self.project_id, self.installation):
            self._problem(one.seq, f"it is of another project or installation{where}")
            return
        if document.seq != (last.seq + 1 if last else 1):
            self._problem(one.seq - 1, f"it is missing: checkpoint {one.seq} follows another")
        elif document.previous != (last.hash if last else ""):
            self._problem(one.seq, f"it was not made after the one before it{where}")
        if last is not None and document.at < last.document.at:
            self._problem(one.seq, f"its moment is before the one before it{where}")
        for head in document.heads:
            await self._claim(one, head, where)
        if document.complete:
            self._floor = document.at
            if (document.streams, document.rows) != (len(self.state), self._sealed):
                self._problem(one.seq, f"it does not name every row that it counts{where}")
        self._last = one

    async def _claim(self, one: Checkpoint, head: Head, where: str) -> None:
        since = self.state.get(head.stream, (0, ""))[0]
        if head.seq <= since:
            self._problem(one.seq, f"it takes {head.stream!r} back from row {since}{where}")
            return
        self.state[head.stream] = (head.seq, head.hash)
        self._sealed += head.seq - since
        self._claims.append(
            _Claim(
                SealedHead(head.stream, since, head.seq),
                *(head.hash, head.links, one.seq, one.document.at, self._floor, where),
            )
        )
        if len(self._claims) >= _BATCH:
            await self._flush()

    async def _flush(self) -> None:
        """Holds the waiting claims against the rows."""
        claims, self._claims = self._claims, []
        found = await read_sealed_rows(self.session, self.project_id, [c.head for c in claims])
        for claim, rows in zip(claims, found, strict=True):
            if claim.head.stream not in self.rows:
                await self._hold(claim, rows)

    async def _hold(self, claim: _Claim, rows: SealedRows) -> None:
        head = claim.head
        if rows.hash != claim.hash:
            self.rows[head.stream] = await self._locate(claim)
        elif rows.moment is not None and rows.moment > claim.at:
            what = f"row {head.seq} is dated after checkpoint {claim.seq}, which sealed it"
            self.rows[head.stream] = BadRow(stream=head.stream, seq=head.seq, id=rows.id, what=what)
        elif rows.first_moment is not None and rows.first_moment < _earlier(claim.floor):
            self._back_dated(head, rows.first_moment, claim.floor)

    async def _locate(self, claim: _Claim) -> BadRow:
        """The first row of a claim that is not what was sealed."""
        head = claim.head
        sealed = f"checkpoint {claim.seq}{claim.where} sealed"
        if head.seq - head.since <= _LOCATED:
            rows = await read_links(self.session, self.project_id, head)
            pieces = [
                claim.links[at : at + LINK_DIGITS] for at in range(0, len(claim.links), LINK_DIGITS)
            ]
            for place, number in enumerate(range(head.since + 1, head.seq + 1)):
                if number not in rows:
                    what = f"row {number} is missing: {sealed} rows up to {head.seq}"
                    return BadRow(stream=head.stream, seq=number, what=what)
                identity, link = rows[number]
                if place < len(pieces) and not link.startswith(pieces[place]):
                    what = (
                        f"row {number} was changed or replaced and the chain computed anew: "
                        f"{sealed} another link"
                    )
                    return BadRow(stream=head.stream, seq=number, id=identity, what=what)
        what = (
            f"one of the rows {head.since + 1} to {head.seq} was changed and the chain computed "
            f"anew: {sealed} another link for the last"
        )
        return BadRow(stream=head.stream, seq=head.since + 1, what=what)

    def _back_dated(self, head: SealedHead, moment: str, floor: str) -> None:
        number = head.since + 1
        self.rows.setdefault(
            head.stream,
            BadRow(
                stream=head.stream,
                seq=number,
                what=f"row {number} was back-dated: it is dated {moment}, and the checkpoint of "
                f"{floor} does not have it",
            ),
        )

    def _check_end(self) -> None:
        """What can be said only when everything was folded."""
        last = self._last
        if last is not None and last.document.complete and not self.problems:
            if root_of(self.state) != last.document.root:
                self._problem(last.seq, "its root is not that of the heads that were sealed")
        now = datetime.now(UTC)
        for name, lost in self._lacking.items():
            if now - _moment(lost.document.at) > _LAG:
                self._problem(lost.seq, f"{name} lacks it: the copy was cut, or cannot be written")

    def _problem(self, seq: int, what: str) -> None:
        self.problems.append(BadRow(stream=CHECKPOINTS, seq=seq, what=f"checkpoint {seq}: {what}"))


_SET_BACK = "the database was set back to an older backup, or its checkpoints were cut"


def _moment(at: str) -> datetime:
    return datetime.fromisoformat(at)


def _earlier(at: str) -> str:
    """The earliest moment that a row which a checkpoint of ``at`` lacks can have."""
    if not at:
        return ""
    return _as_text(_moment(at) - _OPEN_TRANSACTION)


def _as_text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
