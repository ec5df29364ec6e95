"""Evolvers must replay: no clock, no randomness, no concurrency and no set order of their own.

Whatever they need of these comes from the Lab. The lab itself, the worlds and the selfcheck are the
other side of that door and may use them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import instar_evolvers

_ROOT = Path(instar_evolvers.__file__).parent
_OTHER_SIDE = ("lab", "worlds", "selfcheck")
_BANNED_MODULES = {"time", "random", "uuid", "secrets", "threading", "concurrent", "uuid_utils"}
_BANNED_CALLS = {
    ("asyncio", name)
    for name in ("gather", "create_task", "ensure_future", "wait", "as_completed", "TaskGroup")
} | {("datetime", "now"), ("datetime", "utcnow"), ("date", "today"), ("os", "urandom")}
_ALLOWED_IMPORTS = {("random", "Random")}


def violations(source: str, name: str = "<evolver>") -> list[str]:
    """What in this source could differ between a run and its replay."""
    return [f"{name}:{line}: {what}" for line, what in sorted(set(_find(ast.parse(source))))]


def _find(tree: ast.AST) -> Iterator[tuple[int, str]]:
    sets = _names_of_sets(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in _BANNED_MODULES:
                    yield node.lineno, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if (node.module, alias.name) in _ALLOWED_IMPORTS:
                    continue
                banned = node.module.split(".")[0] in _BANNED_MODULES
                if banned or (node.module, alias.name) in _BANNED_CALLS:
                    yield node.lineno, f"from {node.module} import {alias.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in _BANNED_CALLS:
                yield node.lineno, f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call) and _is_bare_random(node):
            yield node.lineno, "Random() of its own; use lab.rng"
        for iterated in _iterated(node):
            if _is_set(iterated, sets):
                yield iterated.lineno, "iterates over a set; sort it first"


def _is_bare_random(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "Random"


def _iterated(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions whose order a node lets through."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.iter
    elif isinstance(node, ast.Starred):
        yield node.value
    elif isinstance(node, ast.Call):
        called = node.func
        ordered = isinstance(called, ast.Name) and called.id in {
            "list",
            "tuple",
            "enumerate",
            "zip",
            "map",
            "iter",
            "next",
        }
        joins = isinstance(called, ast.Attribute) and called.attr in {"join", "extend"}
        if ordered or joins:
            yield from node.args


def _names_of_sets(tree: ast.AST) -> frozenset[str]:
    """Names that are somewhere assigned a set."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _is_set(node.value, frozenset()):
                names.update(t.id for t in targets if isinstance(t, ast.Name))
    return frozenset(names)


def _is_set(node: ast.expr, names: frozenset[str]) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in {"set", "frozenset"}
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub)):
        return _is_set(node.left, names) or _is_set(node.right, names)
    return False


def test_evolvers_use_nothing_that_does_not_replay() -> None:
    found: list[str] = []
    for path in sorted(_ROOT.rglob("*.py")):
        inside = path.relative_to(_ROOT)
        if inside.parts[0] not in _OTHER_SIDE:
            found += violations(path.read_text(encoding="utf-8"), str(inside))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import random",
        "from random import choice",
        "from uuid import uuid4",
        "import asyncio\nasyncio.gather()",
        "from asyncio import create_task",
        "import asyncio\nasync with asyncio.TaskGroup() as group: pass",
        "from datetime import datetime\ndatetime.now()",
        "from random import Random\nrng = Random(3)",
        "for x in {1, 2}: pass",
        "xs = [x for x in set(ys)]",
        "seen = set()\nfor x in seen: pass",
        "seen: set[str] = set()\ntext = ','.join(seen)",
        "xs = list({1, 2} | other)",
        "xs = [*{1, 2}]",
    ],
)
def test_each_banned_thing_is_found(source: str) -> None:
    if "async with" in source:
        source = source.replace("async with", "async def f():\n    async with")
    assert violations(source)


@pytest.mark.parametrize(
    "source",
    [
        "from random import Random\ndef f(rng: Random) -> None: rng.random()",
        "seen = set()\nfor x in sorted(seen): pass",
        "if x in {1, 2}: pass",
        "import asyncio\nawaitable = asyncio.CancelledError",
        "for x in [1, 2]: pass",
    ],
)
def test_what_replays_is_let_through(source: str) -> None:
    assert not violations(source)
