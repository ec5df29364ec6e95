"""A small real MCP server over stdio: notes in a SQLite file that is opened for every call."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("notes")


def _database() -> sqlite3.Connection:
    connection = sqlite3.connect(os.environ["NOTES_DB"], isolation_level=None)
    connection.execute("create table if not exists notes (id text primary key, text text)")
    return connection


@server.tool()
def write_note(id: str, text: str) -> str:
    """Writes or replaces a note."""
    with closing(_database()) as connection:
        connection.execute("insert or replace into notes values (?, ?)", (id, text))
    return f"note {id} written"


@server.tool()
def read_note(id: str) -> str:
    """Reads a note."""
    with closing(_database()) as connection:
        row = connection.execute("select text from notes where id = ?", (id,)).fetchone()
    if row is None:
        raise ToolError(f"there is no note {id!r}")
    return str(row[0])


@server.tool()
async def wait_for_ever() -> str:
    """Says so through the named pipe ``BUSY``, then never answers."""
    await anyio.Path(os.environ["BUSY"]).write_text("busy")
    await anyio.sleep_forever()
    return "unreachable"


@server.tool()
def process_id() -> str:
    """The id of this server's process, which differs between copies."""
    return str(os.getpid())


if __name__ == "__main__":
    server.run()
