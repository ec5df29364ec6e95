"""Tool servers as people register them, and the test bindings under which rollouts may use them.

A :class:`ToolServerConfig` says how the live server is run; production runs use it. A
:class:`TestBinding` says how a sandbox copy is run for one rollout: which files it starts from, how
a task's environment is written into it and how its final state is read. A night never uses the
live server unless an admin declared it free of effects.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from instar_core.base import Frozen
from instar_core.errors import UserError

__all__ = [
    "EnvironmentSetup",
    "LaunchSpec",
    "SqliteStatement",
    "StateReader",
    "TestBinding",
    "ToolServerConfig",
    "fill_placeholders",
]

PLACEHOLDERS = ("python", "root", "slot_dir")


def _inside(path: str) -> str:
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not path.strip():
        raise ValueError(f"{path!r} must be a relative path inside the slot's folder, without '..'")
    return path


class LaunchSpec(Frozen):
    """A program ready to start: command line, environment and folder, placeholders filled."""

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None


class SqliteStatement(Frozen):
    """One SQL statement run when an environment is prepared, with ``:name`` parameters.

    Without ``for_each`` the parameters are the task's environment; with it, the statement runs once
    for each object in the list of that name in the environment.
    """

    sql: str
    for_each: str | None = None


class EnvironmentSetup(Frozen):
    """How a task's environment gets into a fresh copy: SQL on a SQLite file, or a JSON file."""

    kind: Literal["sqlite", "json_file"]
    path: str = Field(description="file inside the slot's folder")
    statements: tuple[SqliteStatement, ...] = ()

    _relative = field_validator("path")(_inside)

    @model_validator(mode="after")
    def _needs_statements(self) -> EnvironmentSetup:
        if self.kind == "sqlite" and not self.statements:
            raise ValueError("setup of kind 'sqlite' needs at least one entry in 'statements'")
        return self


class StateReader(Frozen):
    """How the final state of the environment is read after a rollout, without asking the server.

    ``sqlite`` runs each query (``:name`` parameters come from the task's environment) and gives a
    list of row objects under the query's name; ``json_file`` gives the file's JSON value under the
    file's name without its ending.
    """

    kind: Literal["sqlite", "json_file"]
    path: str = Field(description="file inside the slot's folder")
    queries: dict[str, str] = Field(default_factory=dict, description="query name → SELECT")

    _relative = field_validator("path")(_inside)

    @model_validator(mode="after")
    def _needs_queries(self) -> StateReader:
        if self.kind == "sqlite" and not self.queries:
            raise ValueError(
                "a state reader of kind 'sqlite' needs at least one entry in 'queries'"
            )
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the final state that this reader fills in."""
        return tuple(self.queries) if self.kind == "sqlite" else (PurePosixPath(self.path).stem,)


class TestBinding(Frozen):
    """How rollouts run a sandbox copy of a tool server.

    Placeholders in ``command``, ``args``, ``env`` and ``cwd``: ``{slot_dir}`` (a private folder of
    this copy), ``{python}`` (this interpreter) and ``{root}`` (the folder of the file that declared
    the binding). ``command`` empty means: the live server's program and folder. Arguments and
    environment are never the live server's: they may name live data or hold credentials, so a
    binding of a server with arguments gives its own. Python tools need no command.
    """

    __test__: ClassVar[bool] = False  # not a test class, whatever pytest makes of the name

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    root: str = Field(default="", description="folder against which template sources are resolved")
    template: dict[str, str] = Field(
        default_factory=dict,
        description="file in the slot's folder → source file copied there at each reset",
    )
    setup: tuple[EnvironmentSetup, ...] = ()
    state: StateReader | None = None
    restart_between: bool = Field(
        default=False,
        description="restart the server at each reset; needed where it keeps state in memory",
    )

    @field_validator("template")
    @classmethod
    def _targets_inside(cls, value: dict[str, str]) -> dict[str, str]:
        for target in value:
            _inside(target)
        return value

    def source(self, target: str) -> Path:
        """The template file to copy to ``target``; relative sources count from ``root``."""
        return Path(self.root or ".") / self.template[target]


class ToolServerConfig(Frozen):
    """A registered tool source: an MCP server over stdio, or a module of Python functions.

    ``effect_free`` is an admin's declaration that calls change nothing anywhere; only then may
    rollouts run the server without a test binding. Even then they run a copy of their own, without
    ``env``: it may hold production credentials. A server that needs a key to answer takes a test
    binding with a key made for tests.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    kind: Literal["mcp_stdio", "python"] = "mcp_stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    functions: tuple[str, ...] = Field(
        default=(), description="for kind 'python': entries 'module:function'"
    )
    root: str = Field(default="", description="folder meant by {root} in command, args, env, cwd")
    start_timeout_s: float = Field(default=30.0, gt=0)
    call_timeout_s: float = Field(default=60.0, gt=0, description="absolute limit of one call")
    idle_timeout_s: float = Field(
        default=30.0, gt=0, description="limit without an answer or progress notice"
    )
    max_output_bytes: int = Field(
        default=50_000,
        ge=256,
        description="what a model sees of one result; head and tail are kept",
    )
    max_message_bytes: int = Field(
        default=16_000_000, ge=4096, description="longest message read from the server at all"
    )
    effect_free: bool = False
    test_bindings: dict[str, TestBinding] = Field(
        default_factory=dict, description="binding name → binding; a task set names one of them"
    )

    @model_validator(mode="after")
    def _complete(self) -> ToolServerConfig:
        if self.kind == "mcp_stdio" and not self.command:
            raise ValueError(f"server {self.name!r} of kind 'mcp_stdio' needs a 'command'")
        if self.kind == "python" and not self.functions:
            raise ValueError(f"server {self.name!r} of kind 'python' needs 'functions'")
        return self

    def launch_live(self) -> LaunchSpec:
        """How the live server is started (production only)."""
        values = {"python": sys.executable, "root": self.root or "."}
        return _launch(self.command, self.args, self.env, self.cwd, values)

    def launch_bound(self, binding: TestBinding, slot_dir: Path) -> LaunchSpec:
        """How the sandbox copy is started in ``slot_dir``; never carries the live environment."""
        values = {
            "python": sys.executable,
            "root": binding.root or self.root or ".",
            "slot_dir": str(slot_dir),
        }
        command = binding.command or self.command
        cwd = binding.cwd or (None if binding.command else self.cwd)
        return _launch(command, binding.args, binding.env, cwd, values)

    def inherits_arguments(self, binding: TestBinding) -> bool:
        """Whether the binding leaves the arguments to the live server, which may name live data."""
        return (
            self.kind == "mcp_stdio"
            and bool(self.args)
            and not binding.args
            and not binding.command
        )


def _launch(
    command: str,
    args: tuple[str, ...],
    env: Mapping[str, str],
    cwd: str | None,
    values: Mapping[str, str],
) -> LaunchSpec:
    return LaunchSpec(
        command=fill_placeholders(command, values),
        args=tuple(fill_placeholders(arg, values) for arg in args),
        env={name: fill_placeholders(value, values) for name, value in env.items()},
        cwd=None if cwd is None else fill_placeholders(cwd, values),
    )


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """The text with ``{python}``, ``{root}`` and ``{slot_dir}`` replaced; other braces stay.

    Raises:
        UserError: If the text names a known placeholder that has no value here (``{slot_dir}`` in a
            live command).
    """
    for name in PLACEHOLDERS:
        mark = "{" + name + "}"
        if mark in text:
            if name not in values:
                raise UserError(
                    f"{text!r} uses {mark}, which only test bindings have.",
                    remedy="Use {python} or {root} here, or move the entry to a test binding.",
                )
            text = text.replace(mark, values[name])
    return text
