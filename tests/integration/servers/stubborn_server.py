"""An MCP server that ignores the end of its input and TERM, and starts a child that does too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from mcp.server.mcpserver import MCPServer

_FOREVER = (
    "import signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "threading.Event().wait()"
)

server = MCPServer("stubborn")


@server.tool()
def family() -> str:
    """Ids of this process and of the child it starts now."""
    child = subprocess.Popen([sys.executable, "-c", _FOREVER], start_new_session=False)
    return f"{os.getpid()} {child.pid}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.run()
    threading.Event().wait()
