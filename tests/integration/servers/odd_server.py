"""A hand-written MCP server of the older era that does everything a client must survive."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

TOOLS: list[Any] = [
    {"name": "echo", "inputSchema": {"type": "object"}},
    {"name": "echo", "inputSchema": {"type": "object"}, "description": "again"},
    {"name": "no_schema"},
    {"name": "null_schema", "inputSchema": None},
    {"name": "string_schema", "inputSchema": {"type": "string"}},
    {"name": "odd_type", "inputSchema": {"type": "object", "properties": {"a": {"type": "thing"}}}},
    {"inputSchema": {"type": "object"}},
    "not a tool",
    {"name": "größe.messen", "inputSchema": {"type": "object", "properties": None}},
    {"name": "big", "inputSchema": {"type": "object"}},
    {"name": "hang", "inputSchema": {"type": "object"}},
    {"name": "die", "inputSchema": {"type": "object"}},
    {"name": "refuse", "inputSchema": {"type": "object"}},
    {
        "name": "structured",
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
]


def page(cursor: str | None) -> dict[str, Any]:
    """Two pages, the second of which names itself as the next."""
    if cursor is None:
        return {"tools": TOOLS, "nextCursor": "2"}
    return {"tools": [{"name": "last", "inputSchema": {"type": "object"}}], "nextCursor": "2"}


def result_of(name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a call; ``None`` for one that is never answered."""
    if name == "die":
        print("I am dying", file=sys.stderr, flush=True)
        os._exit(5)
    if name == "hang":
        return None
    if name == "big":
        text = "é" * arguments["characters"]
        return {"content": [{"type": "text", "text": text}]}
    if name == "refuse":
        text = f"no such thing: {json.dumps(arguments, ensure_ascii=False)}"
        return {"content": [{"type": "text", "text": text}], "isError": True}
    if name == "structured":
        return {"content": [], "structuredContent": arguments}
    return {"content": [{"type": "text", "text": json.dumps(arguments, ensure_ascii=False)}]}


def answer(request: dict[str, Any]) -> dict[str, Any] | None:
    """The reply to one message, if it gets one."""
    method, params = request.get("method"), request.get("params") or {}
    if "id" not in request:
        return None
    if method == "initialize":
        result: dict[str, Any] | None = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        }
    elif method == "tools/list":
        result = page(params.get("cursor"))
    elif method == "tools/call":
        result = result_of(params["name"], params["arguments"])
    else:
        error = {"code": -32601, "message": "unknown method"}
        return {"jsonrpc": "2.0", "id": request["id"], "error": error}
    return None if result is None else {"jsonrpc": "2.0", "id": request["id"], "result": result}


def main() -> None:
    """Answers lines until the input ends; chats on stdout, as it should not."""
    print("odd server starting", flush=True)
    for line in sys.stdin:
        reply = answer(json.loads(line))
        if reply is not None:
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
