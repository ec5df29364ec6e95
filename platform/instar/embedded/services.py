"""Services: what the supervisor can start, ask, and stop; one class per way of running."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from instar.embedded.checks import Answer
from instar.embedded.postgres import PostgresServer
from instar.embedded.processes import Identity, die_with_parent, identify, stop_process

__all__ = ["Command", "CommandService", "OneShot", "PostgresService", "Service"]

_STOP: tuple[tuple[signal.Signals, float], ...] = ((signal.SIGTERM, 8.0), (signal.SIGKILL, 5.0))


class Service(ABC):
    """One thing that runs.

    Attributes:
        name: Shown in the status.
        after: Names of the services that must be healthy before this one starts.
        required: Whether the whole counts as ready only with this one.
        address: Where it listens, for people.
        log: Its log file.
    """

    def __init__(
        self, name: str, *, after: Sequence[str], required: bool, address: str, log: Path
    ) -> None:
        self.name = name
        self.after = tuple(after)
        self.required = required
        self.address = address
        self.log = log
        self._log_start = 0

    @abstractmethod
    def start(self) -> None:
        """Starts the process. Must run in the main thread."""

    @abstractmethod
    def exit_status(self) -> int | None:
        """The exit status of the last process, or ``None`` while it runs (or never ran)."""

    @abstractmethod
    def ask(self) -> Answer:
        """How it is: silent, ready, or waiting for something it names."""

    @abstractmethod
    def stop(self) -> None:
        """Stops it and waits for its end. Does nothing when it is not running."""

    @property
    @abstractmethod
    def identity(self) -> Identity | None:
        """Who the process is, while it runs."""

    def cause(self, limit: int = 2000) -> str:
        """What the last process said of its end: its line 'error: …', else its last line."""
        try:
            with self.log.open("rb") as stream:
                end = self.log.stat().st_size
                stream.seek(max(self._log_start if self._log_start <= end else 0, end - limit))
                said = stream.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        for line in reversed(said):
            if line.startswith("error: "):
                return line.removeprefix("error: ")
        return said[-1].strip() if said else ""

    def mark_log(self) -> None:
        """Notes where the log ends now: what follows is said by the process about to start."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0


class PostgresService(Service):
    """The embedded database."""

    def __init__(self, server: PostgresServer, log: Path) -> None:
        super().__init__(
            "postgres", after=(), required=True, address=str(server.runtime_dir), log=log
        )
        self.server = server
        self._started = False

    def start(self) -> None:
        self._started = True
        self.server.start()

    def exit_status(self) -> int | None:
        return 1 if self._started and not self.server.running else None

    def ask(self) -> Answer:
        ready = self.server.ready()
        return Answer(ready, ready)

    def stop(self) -> None:
        self._started = False
        self.server.stop()

    @property
    def identity(self) -> Identity | None:
        return self.server.identity


@dataclass(frozen=True, slots=True)
class Command:
    """What a command service runs and how it is asked and stopped.

    Attributes:
        arguments: The command line.
        environment: The whole environment of the process.
        health: Asks the process with this pid how it is.
        death_signal: What the kernel sends it when the supervisor dies.
        stop_signals: What stops it, mildest first, each with seconds to wait.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    health: Callable[[int], Answer]
    death_signal: signal.Signals = signal.SIGTERM
    stop_signals: tuple[tuple[signal.Signals, float], ...] = field(default=_STOP)


class CommandService(Service):
    """A child process that runs until it is stopped."""

    def __init__(
        self,
        name: str,
        command: Command,
        *,
        after: Sequence[str],
        log: Path,
        required: bool = True,
        address: str = "",
    ) -> None:
        super().__init__(name, after=after, required=required, address=address, log=log)
        self.command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                self.command.arguments,
                env=dict(self.command.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A session of its own: Ctrl-C in a terminal reaches the supervisor alone, which
                # then stops everybody in order.
                start_new_session=True,
                # What our processes write into the data directory is nobody else's to read.
                umask=0o077,
                preexec_fn=die_with_parent(self.command.death_signal),
            )
        finally:
            os.close(log)

    def exit_status(self) -> int | None:
        return self._process.poll() if self._process is not None else None

    def ask(self) -> Answer:
        process = self._process
        if process is None or process.poll() is not None:
            return Answer(False)
        return self.command.health(process.pid)

    def stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            identity = identify(process.pid)
            if identity is not None:
                stop_process(identity, self.command.stop_signals, tree=True)
        process.wait()
        self._process = None

    @property
    def identity(self) -> Identity | None:
        if self._process is None or self._process.poll() is not None:
            return None
        return identify(self._process.pid)


class OneShot(CommandService):
    """A step that must end well before what comes after it may start (the migration)."""

    def ask(self) -> Answer:
        done = self.exit_status() == 0
        return Answer(done, done)
