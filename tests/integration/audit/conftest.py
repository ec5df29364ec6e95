"""A project with an audit trail of three streams, sealed twice, and what an attacker does to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from instar.audit.keys import ensure_signing_key
from instar.audit.verify import AuditReport, Evidence, verify_project
from instar.audit.writer import Sealer
from instar.settings import AuditSettings, Settings
from instar.store.audit import ADMIN, SYSTEM, AuditEntry, Author, append_audit
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import new_id


@dataclass
class Trail:
    """A project's audit trail under test."""

    database: MigratedDatabase
    settings: Settings
    run: str

    @property
    def copy(self) -> Path:
        """The copy of the checkpoints outside the database."""
        assert self.settings.audit.dir is not None
        return self.settings.audit.dir / f"{self.database.project_id}.jsonl"

    def write(self, count: int, stream: str = ADMIN, by: Author = SYSTEM) -> None:
        """Appends events, each in its own transaction."""

        async def work(db: Database) -> None:
            for step in range(count):
                async with db.transaction(self.database.project_id) as session:
                    entry = AuditEntry(
                        action="test.step",
                        subject=f"thing/{step}",
                        details={"step": step, "text": "ä\u0000\u2028", "x": 1.5e-7},
                        stream=stream,
                    )
                    await append_audit(session, self.database.project_id, entry, by)

        self.database.run(work)

    def seal(self) -> int:
        """Seals the project; how many checkpoints that made."""

        async def work(db: Database) -> int:
            sealer = Sealer.open(db, self.settings)
            return len(await sealer.seal_project(self.database.project_id))

        return self.database.run(work)

    def verify(self, **more: Any) -> AuditReport:
        """The verifier's answer."""
        evidence = Evidence.of(self.settings, **more)
        return self.database.run(lambda db: verify_project(db, self.database.project_id, evidence))

    def rows(self, stream: str = ADMIN) -> list[tuple[Any, ...]]:
        """Number and id of a stream's rows."""
        return self.database.query(
            "select seq, cast(id as text) from audit_event where stream = %s order by seq", stream
        )

    def id_of(self, seq: int, stream: str = ADMIN) -> str:
        """The id of a row."""
        return str(dict(self.rows(stream))[seq])

    def compute_anew(self, stream: str = ADMIN) -> None:
        """Computes a stream's links anew from what stands in its rows, and its head, as an attacker
        with the source code would."""
        from instar.store.audit import link_of, stream_lines

        async def lines(db: Database) -> list[Any]:
            async with db.transaction(self.database.project_id) as session:
                return [
                    line async for line in stream_lines(session, self.database.project_id, stream)
                ]

        previous = ""
        for line in self.database.run(lines):
            changed = line._replace(previous_hash=previous)
            link = link_of(changed, self.database.project_id)
            self.database.query(
                "update audit_event set previous_hash = %s, hash = %s where id = %s",
                *(previous, link, line.id),
            )
            previous = link
        self.database.query(
            "update audit_head h set seq = e.seq, hash = e.hash, at = e.created_at "
            "from audit_event e where e.stream = h.stream and h.stream = %s and e.hash = %s",
            *(stream, previous),
        )


@pytest.fixture
def trail(database: MigratedDatabase, tmp_path: Path) -> Iterator[Trail]:
    """Ten admin rows and four of a run; the first six and two are sealed, then the rest."""
    settings = Settings(data_dir=tmp_path / "data", audit=AuditSettings(dir=tmp_path / "elsewhere"))
    ensure_signing_key(settings)
    made = Trail(database, settings, new_id())
    made.write(6)
    made.write(2, made.run, Author("run", made.run))
    assert made.seal() == 1
    made.write(4)
    made.write(2, made.run, Author("run", made.run))
    assert made.seal() == 1
    yield made
