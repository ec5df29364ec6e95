"""State: writing a task's environment into a sandbox copy, and reading what became of it.

Files are read and written directly, never through the agent's tools, so that the verdict does not
depend on what the agent says or on tools that it broke.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from instar.runtime.tools.config import EnvironmentSetup, StateReader, TestBinding
from instar_core.base import JsonValue, canonical_json, short
from instar_core.errors import EnvironmentFault

__all__ = ["prepare_folder", "read_state"]

Environment = Mapping[str, JsonValue]


def prepare_folder(folder: Path, binding: TestBinding, environment: Environment) -> None:
    """Makes the folder what a rollout starts from: template files, then the task's environment.

    The folder itself stays (a server may have it as its working directory); all in it is replaced.

    Raises:
        EnvironmentFault: If a template file is missing or a statement fails.
    """
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    for target in binding.template:
        source, destination = binding.source(target), folder / target
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, destination)
        except OSError as error:
            raise EnvironmentFault(
                f"The template file {str(source)!r} for {target!r} cannot be copied: "
                f"{error.strerror or error}.",
                remedy="Correct 'template' of the test binding, or restore the file.",
            ) from error
    for setup in binding.setup:
        _apply(setup, folder / setup.path, environment)


def _apply(setup: EnvironmentSetup, path: Path, environment: Environment) -> None:
    if setup.kind == "json_file":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(canonical_json(dict(environment)))
        return
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("pragma synchronous = off")  # a sandbox copy need not survive a crash
        connection.execute("begin")
        for statement in setup.statements:
            for values in _parameters(statement.for_each, environment):
                try:
                    connection.execute(statement.sql, _columns(values))
                except sqlite3.Error as error:
                    raise EnvironmentFault(
                        f"Preparing {setup.path!r} failed: {error} in {short(statement.sql)!r} "
                        f"with {short(repr(dict(values)))}.",
                        remedy="The task's 'environment' must hold what the binding's setup needs.",
                    ) from error
        connection.execute("commit")


def _parameters(for_each: str | None, environment: Environment) -> list[Environment]:
    if for_each is None:
        return [environment]
    rows = environment.get(for_each, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise EnvironmentFault(
            f"The environment's {for_each!r} must be a list of objects, not {short(repr(rows))}.",
            remedy="Correct the task's 'environment'.",
        )
    return [row for row in rows if isinstance(row, dict)]


def _columns(values: Environment) -> dict[str, Any]:
    """Values as SQLite takes them: lists and objects as JSON text."""
    return {
        name: canonical_json(value).decode() if isinstance(value, dict | list) else value
        for name, value in values.items()
    }


def read_state(folder: Path, reader: StateReader, environment: Environment) -> dict[str, JsonValue]:
    """The final state of a sandbox copy, by query name.

    Raises:
        EnvironmentFault: If the file or what a query needs is not there.
    """
    path = folder / reader.path
    if not path.is_file():
        raise EnvironmentFault(
            f"The final state is to be read from {reader.path!r}, which the sandbox copy lacks.",
            remedy="Correct 'state.path' of the test binding.",
        )
    if reader.kind == "json_file":
        try:
            return {reader.keys[0]: json.loads(path.read_bytes())}
        except ValueError as error:
            raise EnvironmentFault(f"{reader.path!r} is not JSON: {error}.") from error
    found: dict[str, JsonValue] = {}
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        connection.execute("pragma query_only = on")
        for name, query in reader.queries.items():
            try:
                rows = connection.execute(query, _columns(environment)).fetchall()
            except sqlite3.Error as error:
                raise EnvironmentFault(
                    f"The state query {name!r} failed: {error} in {short(query)!r}.",
                    remedy="Correct the test binding's query or the task's 'environment'.",
                ) from error
            found[name] = [{key: _plain(row[key]) for key in row.keys()} for row in rows]  # noqa: SIM118
    return found


def _plain(value: Any) -> JsonValue:
    return value.hex() if isinstance(value, bytes) else value
