"""Audit tampering: changes a sealed audit trail in every way and sees that the bad row is named.

``python -m benchmarks.audit_tampering --json`` builds a database of its own, fills and seals an
audit trail, and for each kind of attack takes a fresh copy of it, attacks as the superuser, and
verifies. It reports which were caught at the right row, and how many rows a second an untouched
trail is verified at.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from instar.audit.keys import ensure_signing_key
from instar.audit.verify import AuditReport, Evidence, verify_project
from instar.audit.writer import Sealer
from instar.settings import AuditSettings, Settings
from instar.store.audit import SYSTEM, AuditEntry, append_audit, link_of, stream_lines
from instar.store.session import Database
from instar.store.testing import APP_PASSWORD, PostgresCluster, create_database, start_cluster
from instar.store.urls import app_url
from instar_core.base import new_id

__all__ = ["KINDS", "main", "measure"]

T = TypeVar("T")
_ROWS = 5_000
_BATCH = 500
_TABLES = ("audit_event", "audit_head", "audit_checkpoint", "audit_sealed")


@dataclass(frozen=True, slots=True)
class Trail:
    """A copy of the audit trail that may be attacked."""

    cluster: PostgresCluster
    database: str
    project_id: str
    settings: Settings

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows of a statement as the superuser."""
        url = self.cluster.owner_url(self.database)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("set search_path = instar, pg_temp")
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def run(self, work: Callable[[Database], Awaitable[T]]) -> T:
        """Runs work as the application."""

        async def go() -> T:
            db = Database(app_url(self.cluster.owner_url(self.database), APP_PASSWORD))
            try:
                return await work(db)
            finally:
                await db.close()

        return asyncio.run(go())

    def write(self, count: int) -> None:
        """Appends events."""

        async def work(db: Database) -> None:
            for start in range(0, count, _BATCH):
                async with db.transaction(self.project_id) as session:
                    for step in range(start, min(count, start + _BATCH)):
                        entry = AuditEntry(
                            action="label.move",
                            subject=f"agent/{step % 40}",
                            details={"label": "production", "from": step, "to": step + 1},
                        )
                        await append_audit(session, self.project_id, entry, SYSTEM)

        self.run(work)

    def seal(self) -> None:
        """Writes a checkpoint."""

        async def work(db: Database) -> None:
            await Sealer.open(db, self.settings).seal_project(self.project_id)

        self.run(work)

    def verify(self) -> AuditReport:
        """What the verifier says."""
        evidence = Evidence.of(self.settings)
        return self.run(lambda db: verify_project(db, self.project_id, evidence))

    def compute_anew(self) -> None:
        """Computes the whole chain anew from what stands in the rows, and the head."""

        async def read(db: Database) -> list[tuple[str, str, str]]:
            links, previous = [], ""
            async with db.transaction(self.project_id) as session:
                async for line in stream_lines(session, self.project_id):
                    link = link_of(line._replace(previous_hash=previous), self.project_id)
                    links.append((previous, link, line.id))
                    previous = link
            return links

        links = self.run(read)
        with psycopg.connect(self.cluster.owner_url(self.database)) as connection:
            connection.cursor().executemany(
                "update instar.audit_event set previous_hash = %s, hash = %s where id = %s", links
            )
        self.sql(
            "update audit_head h set seq = e.seq, hash = e.hash, at = e.created_at "
            "from audit_event e where e.hash = %s",
            links[-1][1],
        )


def _delete(trail: Trail, row: int) -> int:
    trail.sql("delete from audit_event where seq = %s", row)
    return row


def _update(trail: Trail, row: int) -> int:
    trail.sql("update audit_event set actor = 'somebody else' where seq = %s", row)
    return row


def _reorder(trail: Trail, row: int) -> int:
    trail.sql(
        "update audit_event set seq = %s - seq where seq in (%s, %s)", 2 * row + 1, row, row + 1
    )
    return row


def _insert(trail: Trail, row: int) -> int:
    trail.sql("update audit_event set seq = seq + 1 where seq > %s", row)
    trail.sql(
        "insert into audit_event (id, project_id, stream, seq, actor_kind, actor, action, subject,"
        " details, previous_hash, hash, format, created_at) select %s, project_id, stream, seq + 1,"
        " actor_kind, actor, action, 'smuggled', details, hash, hash, 2, created_at"
        " from audit_event where seq = %s",
        *(new_id(), row),
    )
    trail.compute_anew()
    return row + 1


def _truncate(trail: Trail, row: int) -> int:
    trail.sql("delete from audit_event where seq >= %s", row)
    trail.sql(
        "update audit_head h set seq = e.seq, hash = e.hash, at = e.created_at "
        "from audit_event e where e.seq = %s",
        row - 1,
    )
    return row


def _restore(trail: Trail, row: int) -> int:
    for table in _TABLES:
        trail.sql(f"create table public.old_{table} as table {table}")
    last = int(trail.sql("select seq from audit_head")[0][0])
    trail.write(20)
    trail.seal()
    for table in _TABLES:
        trail.sql(f"delete from {table}")
        trail.sql(f"insert into {table} select * from public.old_{table}")
    return last + 1


def _back_date(trail: Trail, row: int) -> int:
    trail.sql(
        "update audit_event set created_at = created_at - interval '1 microsecond' where seq = %s",
        row,
    )
    trail.compute_anew()
    return row


def _rewrite(trail: Trail, row: int) -> int:
    trail.sql("update audit_event set subject = 'agent/other' where seq = %s", row)
    trail.compute_anew()
    return row


def _foreign(trail: Trail, row: int) -> int:
    trail.sql("update audit_event set stream = %s where seq = %s", new_id(), row)
    return row


def _downgrade(trail: Trail, row: int) -> int:
    trail.sql("update audit_event set format = 1 where seq = %s", row)
    trail.compute_anew()
    return row


KINDS: dict[str, Callable[[Trail, int], int]] = {
    "deleted row": _delete,
    "updated row": _update,
    "reordered rows": _reorder,
    "inserted row, chain computed anew": _insert,
    "truncated tail, head put right": _truncate,
    "restored old backup": _restore,
    "back-dated, chain computed anew": _back_date,
    "rewritten, chain computed anew": _rewrite,
    "row moved to another stream": _foreign,
    "format downgraded, chain computed anew": _downgrade,
}
"""Kind of attack → what does it; returns the number of the first bad row."""


def measure(rows: int = _ROWS) -> dict[str, Any]:
    """Attacks a trail of so many rows in every way."""
    directory = Path(tempfile.mkdtemp(prefix="instar-t"))
    if os.geteuid() == 0:
        directory.chmod(0o711)
    try:
        cluster = start_cluster(directory)
        try:
            return _measure(cluster, directory, rows)
        finally:
            cluster.server.stop(timeout_s=0.0)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure(cluster: PostgresCluster, directory: Path, rows: int) -> dict[str, Any]:
    made = create_database(cluster)
    settings = Settings(data_dir=directory / "data", audit=AuditSettings(dir=directory / "base"))
    ensure_signing_key(settings)
    base = Trail(cluster, made.name, made.project_id, settings)
    for _ in range(4):
        base.write(rows // 4)
        base.seal()
    started = time.perf_counter()
    untouched = base.verify()
    took = time.perf_counter() - started
    caught = {name: _attack(base, attack, directory) for name, attack in KINDS.items()}
    return {
        "untouched_ok": untouched.ok,
        "kinds": caught,
        "all_caught": all(caught.values()),
        "rows": untouched.rows,
        "checkpoints": untouched.checkpoints,
        "verify_rows_per_s": round(untouched.rows / took),
    }


def _attack(base: Trail, attack: Callable[[Trail, int], int], directory: Path) -> bool:
    """Whether the verifier names the first bad row of a copy that was attacked."""
    name = base.cluster.create(template=base.database)
    folder = Path(tempfile.mkdtemp(dir=directory)) / "audit"
    assert base.settings.audit.dir is not None, "set where the trail was made"
    shutil.copytree(base.settings.audit.dir, folder)
    audit = base.settings.audit.model_copy(update={"dir": folder})
    settings = base.settings.model_copy(update={"audit": audit})
    trail = Trail(base.cluster, name, base.project_id, settings)
    try:
        last = int(trail.sql("select seq from audit_head")[0][0])
        row = attack(trail, last * 3 // 5)
        report = trail.verify()
        bad = report.bad
        return not report.ok and bad is not None and (bad.stream, bad.seq) == ("admin", row)
    finally:
        base.cluster.drop(name)


def main(argv: list[str] | None = None) -> int:
    """Prints the result; 1 if an attack was not caught at the right row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of words")
    parser.add_argument("--rows", type=int, default=_ROWS, help="rows of the trail")
    options = parser.parse_args(argv)
    if options.rows < 40:
        parser.error("--rows must be 40 or more")
    result = measure(options.rows)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        for name, caught in result["kinds"].items():
            print(f"{'caught' if caught else 'MISSED':8} {name}")
        print(f"{result['rows']} rows verified at {result['verify_rows_per_s']} rows a second")
    return 0 if result["all_caught"] and result["untouched_ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
