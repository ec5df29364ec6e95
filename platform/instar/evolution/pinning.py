"""Pinning: which code an evolver is, as one digest, so that a run is never resumed under other
code."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from functools import lru_cache
from pathlib import Path

from instar_core.lab import Evolver

__all__ = ["evolver_digest"]


def evolver_digest(evolver: Evolver) -> str:
    """The sha256 over the sources that decide what an evolver does.

    Its own package, and the packages whose behaviour shows in the journal: the evolvers' shared
    strategies, the Lab and the words of the core.
    """
    home = type(evolver).__module__.split(".")[0]
    parts = sorted({home, "instar_evolvers", "instar_core"})
    return hashlib.sha256("".join(_package_digest(name) for name in parts).encode()).hexdigest()


@lru_cache(maxsize=16)
def _package_digest(name: str) -> str:
    module = importlib.import_module(name)
    source = Path(inspect.getfile(module))
    files = sorted(source.parent.rglob("*.py")) if source.name == "__init__.py" else [source]
    root = source.parent
    digest = hashlib.sha256()
    for path in files:
        relative = path.relative_to(root).as_posix()
        if relative.startswith(("selfcheck/", "worlds/", "testing")):
            continue  # never part of an evolver
        digest.update(relative.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
