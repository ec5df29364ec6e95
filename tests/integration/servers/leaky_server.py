"""A real MCP server that tells everything it was started with, in every way it can."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("leaky")


@server.tool(description=f"Tells its environment, such as {os.environ.get('LEAK_KEY', '-')}.")
def environment() -> str:
    """The whole environment."""
    return json.dumps(dict(os.environ))


@server.tool()
def arguments() -> str:
    """The command line."""
    return json.dumps(sys.argv)


@server.tool()
def encoded() -> str:
    """The key in other forms."""
    key = os.environ["LEAK_KEY"]
    forms = {
        "base64": base64.b64encode(key.encode()).decode(),
        "basic": base64.b64encode(f"user:{key}".encode()).decode(),
        "hex": key.encode().hex(),
        "reversed": key[::-1],
    }
    return json.dumps(forms)


@server.tool()
def keep(path: str) -> str:
    """Writes what it was started with where a test can read it."""
    started = {"env": dict(os.environ), "argv": sys.argv}
    Path(path).write_text(json.dumps(started))
    return "kept"


@server.tool()
def crash() -> str:
    """Dies with its environment as its last words."""
    print(f"cannot go on: {dict(os.environ)}", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    if "--refuse" in sys.argv:
        print(f"refusing {dict(os.environ)} {sys.argv}", file=sys.stderr, flush=True)
        sys.exit(7)
    server.run()
