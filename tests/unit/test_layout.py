"""The house: its folders are no packages, the standard library stays whole, files stay small."""

from __future__ import annotations

import ast
import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("core", "skills", "memory", "evolvers", "rl", "platform", "web")
PACKAGES = (
    "core/instar_core",
    "skills/instar_skills",
    "memory/instar_memory",
    "evolvers/instar_evolvers",
    "rl/instar_rl",
    "platform/instar",
    "web/instar_web",
)
LONGEST_MODULE = 500
LONGEST_FUNCTION = 60
MOST_PARAMETERS = 7

# Each exception by name, with its reason.
LONG_MODULES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}
MANY_PARAMETERS = {
    "platform/instar/cli/evolve.py:_spec": "one value per option of the command line",
    "platform/instar/cli/evolve.py:quote": "one value per option of the command line",
    "platform/instar/cli/evolve.py:start": "one value per option of the command line",
    "platform/instar/cli/history.py:lineage": "one value per option of the command line",
    "platform/instar/cli/history.py:merge": "one value per option of the command line",
    "platform/instar/cli/history.py:settle": "one value per option of the command line",
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_top_level_folder_is_a_package(folder: str) -> None:
    """A package named ``platform`` would shadow the standard library's module."""
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed(package: str) -> None:
    assert (ROOT / package / "__init__.py").exists()
    assert (ROOT / package / "py.typed").exists()


def test_tests_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_platform_is_the_standard_library_here() -> None:
    assert Path(str(platform.__file__)).parent == Path(sysconfig.get_paths()["stdlib"])


ASK = """
import platform, sys, sysconfig
from pathlib import Path
assert Path(platform.__file__).parent == Path(sysconfig.get_paths()["stdlib"]), platform.__file__
print("whole", platform.python_version())
"""


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "pytest", "-p", "no:cacheprovider", "-q", "--co", "tests/unit/test_layout.py"],
        ["-m", "celery", "--version"],
        ["-m", "uvicorn", "--version"],
        ["-m", "instar", "--version"],
    ],
    ids=lambda words: str(words[1]),
)
def test_platform_is_the_standard_library_under_the_start_commands(
    words: list[str], tmp_path: Path
) -> None:
    """``python -m`` puts the present folder first on the path: the one that has ``platform/``."""
    # A site hook asks in the very process of the start command, as it exits.
    (tmp_path / "sitecustomize.py").write_text(
        f"import atexit\natexit.register(lambda: exec({ASK!r}))\n", encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "whole" in done.stdout, done.stdout + done.stderr


def sources() -> Iterator[Path]:
    for folder in (*FOLDERS, "benchmarks", "examples", "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name_of(path)}:{node.name}", node


def test_modules_stay_within_500_lines() -> None:
    long = {}
    for path in sources():
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > LONGEST_MODULE and name_of(path) not in LONG_MODULES:
            long[name_of(path)] = lines
    assert long == {}


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from ``def`` on, its docstring left out: words are no complexity."""
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def test_functions_stay_within_60_lines() -> None:
    long = {}
    for name, node in functions():
        lines = code_lines(node)
        if lines > LONGEST_FUNCTION and name not in LONG_FUNCTIONS:
            long[name] = lines
    assert long == {}


def test_functions_take_at_most_7_parameters() -> None:
    many = {}
    for name, node in functions():
        taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len([item for item in taken if item.arg not in ("self", "cls")])
        if count > MOST_PARAMETERS and name not in MANY_PARAMETERS and "/routes/" not in name:
            many[name] = count
    assert many == {}


def test_exceptions_are_still_needed() -> None:
    """An exception whose reason is gone is taken off the list."""
    known = {name for name, _ in functions()}
    assert set(LONG_FUNCTIONS) | set(MANY_PARAMETERS) <= known
    assert all((ROOT / name).exists() for name in LONG_MODULES)


def test_the_floors_point_down() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


SQL_ALLOWED = {
    "platform/instar/backup/staging.py": "makes the empty database that a backup is unpacked into",
    "platform/instar/evolution/retry.py": "tells a database that is away from one that refuses",
    "platform/instar/jobs/install.py": "asks a server whether it has our database yet",
    "platform/instar/cli/demo/desk.py": "reads the sample's own SQLite file",
    "platform/instar/rollouts/state.py": "reads a task's own SQLite files",
}
"""Modules outside the store that speak SQL or with its driver, and why."""


def speaks_sql(tree: ast.Module) -> bool:
    """Whether a module builds or sends SQL; taking a session along is no SQL."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy"):
            if node.module != "sqlalchemy.ext.asyncio":
                return True
        elif isinstance(node, ast.Import):
            if any(name.name.startswith("sqlalchemy") for name in node.names):
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("execute", "executemany", "scalar", "scalars"):
                return True
    return False


def test_only_the_store_holds_sql() -> None:
    found = {
        name_of(path)
        for path in (ROOT / "platform/instar").rglob("*.py")
        if "platform/instar/store/" not in path.as_posix()
        and speaks_sql(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set(SQL_ALLOWED)
