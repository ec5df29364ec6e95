"""The ticket system: an MCP server over stdio on one SQLite file, named by ``DESK_DB``.

It opens the file for each call, so a test binding can exchange the file between rollouts. Run by
hand: ``DESK_DB=desk.db python server.py``.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

__all__ = ["server"]

QUEUES = ("harbor", "lantern", "anchor")
PRIORITIES = ("low", "normal", "high", "urgent")

server = MCPServer("support-desk", instructions="A small ticket system.")


@contextmanager
def _desk() -> Iterator[sqlite3.Connection]:
    path = os.environ.get("DESK_DB", "")
    if not path or not os.path.exists(path):
        raise FileNotFoundError(f"DESK_DB names no database file: {path!r}")
    connection = sqlite3.connect(path, timeout=10)
    connection.row_factory = sqlite3.Row
    try:
        with connection:
            yield connection
    finally:
        connection.close()


@server.tool()
def read_ticket(ticket: str) -> dict[str, str]:
    """Read one ticket: its text, customer, queue and priority."""
    with _desk() as desk:
        row = desk.execute(
            "SELECT id, text, customer, queue, priority FROM ticket WHERE id = ?", (ticket,)
        ).fetchone()
    if row is None:
        raise ToolError(f"There is no ticket {ticket!r}.")
    return {key: row[key] or "" for key in row.keys()}  # noqa: SIM118 - Row iterates over values


@server.tool()
def look_up_customer(customer: str) -> dict[str, str]:
    """Look up a customer by id: name and plan (basic, plus or gold)."""
    with _desk() as desk:
        row = desk.execute(
            "SELECT id, name, plan FROM customer WHERE id = ?", (customer,)
        ).fetchone()
    if row is None:
        raise ToolError(f"There is no customer {customer!r}.")
    return {"id": row["id"], "name": row["name"], "plan": row["plan"]}


@server.tool()
def assign_queue(ticket: str, queue: str) -> str:
    """Assign a ticket to one of the queues harbor, lantern or anchor."""
    if queue not in QUEUES:
        raise ToolError(f"There is no queue {queue!r}; the queues are {', '.join(QUEUES)}.")
    _update("queue", queue, ticket)
    return f"Ticket {ticket} is now in queue {queue}."


@server.tool()
def set_priority(ticket: str, priority: str) -> str:
    """Set a ticket's priority: low, normal, high or urgent."""
    if priority not in PRIORITIES:
        raise ToolError(f"There is no priority {priority!r}; use {', '.join(PRIORITIES)}.")
    _update("priority", priority, ticket)
    return f"Ticket {ticket} now has priority {priority}."


def _update(column: str, value: str, ticket: str) -> None:
    statement = {
        "queue": "UPDATE ticket SET queue = ? WHERE id = ?",
        "priority": "UPDATE ticket SET priority = ? WHERE id = ?",
    }[column]
    with _desk() as desk:
        if desk.execute(statement, (value, ticket)).rowcount != 1:
            raise ToolError(f"There is no ticket {ticket!r}.")


if __name__ == "__main__":
    server.run()
    sys.exit(0)
