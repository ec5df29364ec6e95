"""Exposed names: what a model calls a tool, within the strictest rule of any provider.

Providers accept ``^[a-zA-Z0-9_-]{1,64}$`` and reject the whole request otherwise. The exposed name
is a function of the set of (server, tool) pairs alone, so it is the same after every restart.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

__all__ = ["exposed_names"]

_ODD = re.compile(r"[^a-zA-Z0-9_-]")
_LIMIT = 64


def _suffixed(server: str, tool: str) -> str:
    digest = hashlib.sha256(f"{server}\0{tool}".encode()).hexdigest()[:8]
    plain = _ODD.sub("_", tool) or "tool"
    return f"{plain[: _LIMIT - 9]}_{digest}"


def exposed_names(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(server, tool) → exposed name; no two are equal.

    A tool keeps its own name where the rule allows it and no other server offers the same one. Else
    odd characters become ``_``, the rest is cut, and a hash of server and tool is appended.

    Args:
        pairs: Distinct (server name, tool name) pairs.
    """
    known = sorted(set(pairs))
    shared = Counter(tool for _, tool in known)
    names: dict[tuple[str, str], str] = {}
    for server, tool in known:
        plain = bool(tool) and len(tool) <= _LIMIT and not _ODD.search(tool)
        names[server, tool] = tool if plain and shared[tool] == 1 else _suffixed(server, tool)
    # A plain name may look like another tool's suffixed one; then the plain one gives way.
    taken = Counter(names.values())
    return {
        pair: _suffixed(*pair) if taken[name] > 1 and name == pair[1] else name
        for pair, name in names.items()
    }
