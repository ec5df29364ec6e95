"""What each entry point may load: looked up in ``sys.modules``, never timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HEAVY = (
    "torch",
    "transformers",
    "sentence_transformers",
    "litellm",
    "sqlalchemy",
    "langgraph",
    "celery",
    "mcp",
    "reasoning_gym",
    "numpy",
    "fastapi",
    "httpx",
    "psycopg",
    "alembic",
)


def loaded_by(code: str, *words: str) -> set[str]:
    """The top-level modules that a program has loaded at its end."""
    ending = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print('\\nLOADED ' + json.dumps("
        "sorted({name.partition('.')[0] for name in sys.modules}))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", ending + code, *words],
        env={**os.environ, "INSTAR_APP_DATABASE_URL": "postgresql://nobody@localhost/none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.rpartition("LOADED ")[2]))


@pytest.mark.parametrize(
    "words", [["--help"], ["evolve", "--help"], ["up", "--help"], ["--version"]]
)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    loaded = loaded_by("from instar.cli.main import main\nmain()\n", *words)
    assert "typer" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_supervisor_loads_no_model_and_no_server() -> None:
    loaded = loaded_by("import instar.embedded.up, instar.embedded.detach\n")
    assert loaded.isdisjoint(HEAVY)


def test_the_worker_loads_nothing_that_must_not_live_through_a_fork() -> None:
    """No torch, no model client, no tool server and no database pool before the fork."""
    loaded = loaded_by("import instar.jobs.worker, instar.jobs.tasks\n")
    assert "celery" in loaded
    assert loaded.isdisjoint({"torch", "litellm", "mcp", "langgraph", "sqlalchemy", "psycopg"})


def test_the_core_needs_no_platform() -> None:
    loaded = loaded_by("import instar_core.lab, instar_core.evolution, instar_core.candidates\n")
    assert "instar" not in loaded
    assert loaded.isdisjoint(HEAVY)


def test_an_old_python_is_told_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.version_info = (3, 9, 2); import instar"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Instar needs Python 3.11 or later; this is Python 3.9.2" in done.stderr
    assert "Traceback" not in done.stderr


ENTRIES = {
    "worker": "import instar.jobs.app",
    "command line": "import sys; sys.argv = ['instar', '--version']; "
    "from instar.cli.main import main; main()",
    "API": "import instar.api.app; instar.api.app.app",
}


@pytest.mark.parametrize("entry", list(ENTRIES))
def test_every_entry_point_bounds_its_threads(entry: str) -> None:
    """Set before numeric libraries are imported, and a person's own value stays."""
    names = (
        "OMP_NUM_THREADS",
        "OMP_WAIT_POLICY",
        "LITELLM_LOCAL_MODEL_COST_MAP",
        "HF_HUB_OFFLINE",
    )
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["OMP_WAIT_POLICY"] = "ACTIVE"
    environment["INSTAR_APP_DATABASE_URL"] = "postgresql://nobody@localhost/none"
    ending = (
        "import atexit, os\n"
        f"atexit.register(lambda: print(*(os.environ.get(name) for name in {names!r})))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", ending + ENTRIES[entry]],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1].split() == ["1", "ACTIVE", "True", "1"]
