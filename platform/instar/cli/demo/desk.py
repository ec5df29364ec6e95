"""The live desk: the sample's production database, which a night must never touch."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from instar.cli.demo.plan import Plan

__all__ = ["open_live_desk", "read_queue"]


def open_live_desk(plan: Plan) -> None:
    """Makes the live database where it does not exist, with the fresh tickets in no queue."""
    if plan.live_db is None:
        return
    from examples.support_desk.build import CUSTOMERS, SCHEMA

    plan.live_db.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(plan.live_db)) as desk, desk:
        for statement in SCHEMA:
            desk.execute(statement)
        desk.executemany("INSERT OR IGNORE INTO customer VALUES (:id, :name, :plan)", CUSTOMERS)
        rows = [{**ticket, "customer": ticket["customer"]["id"]} for ticket in plan.fresh]
        desk.executemany(
            "INSERT OR REPLACE INTO ticket (id, text, customer) VALUES (:id, :text, :customer)",
            rows,
        )


def read_queue(live_db: Path, ticket: str) -> Any:
    """The queue that the live desk has for a ticket; ``None`` when it has none yet."""
    with closing(sqlite3.connect(f"file:{live_db}?mode=ro", uri=True)) as desk:
        row = desk.execute("SELECT queue FROM ticket WHERE id = ?", (ticket,)).fetchone()
    return row[0] if row else None
