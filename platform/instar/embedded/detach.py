"""Starting the supervisor in the background, and finding and stopping the one that runs."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from instar.embedded.layout import Layout
from instar.embedded.pg_stale import clear_stale_server
from instar.embedded.processes import Identity, stop_process
from instar.embedded.status import Status, read_status
from instar.embedded.up import stop_leftovers
from instar.settings import Settings
from instar_core.errors import InfrastructureError, InstarError, PrerequisiteError

__all__ = ["ensure_running", "read_running", "start_detached", "stop_running"]

_STOP_S = 45.0
_READY = ("ready", "degraded")


def _layout(settings: Settings) -> Layout:
    return Layout(settings.data_dir.expanduser().absolute())


def read_running(settings: Settings) -> Status | None:
    """The status of the service that runs on the data directory; ``None`` when none does."""
    found = read_status(_layout(settings).status)
    return found if found is not None and found.alive else None


def start_detached(settings: Settings) -> tuple[Status, str | None]:
    """Starts the supervisor in the background and waits until it is ready.

    Returns:
        The status, and the API key where this was the first start.

    Raises:
        InstarError: It did not start; the cause is the supervisor's own.
    """
    layout = _layout(settings)
    running = read_running(settings)
    if running is not None:
        raise PrerequisiteError(
            f"Instar already runs on {str(layout.data_dir)!r} (supervisor pid {running.pid}).",
            remedy="Look at it with `instar status`, or stop it with `instar down`.",
        )
    layout.prepare()
    had_key = layout.api_key.exists()
    log_path = layout.logs / "supervisor.log"
    with open(log_path, "ab", opener=_private) as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "instar.embedded"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "INSTAR_DATA_DIR": str(layout.data_dir)},
        )
    status = _wait_ready(child, layout, settings.embedded.start_timeout_s * 2, log_path)
    key = None if had_key else layout.api_key.read_text(encoding="ascii").strip()
    return status, key


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def ensure_running(settings: Settings) -> tuple[Status, str | None]:
    """The service that runs on the data directory, started where none does, once it is ready.

    Two callers at once start one service: the second waits for the first one's.

    Returns:
        As :func:`start_detached`.

    Raises:
        InstarError: It did not start; the cause is the supervisor's own.
    """
    layout = _layout(settings)
    if read_running(settings) is None:
        try:
            return start_detached(settings)
        except PrerequisiteError:
            if not _held(layout):
                raise
    deadline = time.monotonic() + settings.embedded.start_timeout_s * 2
    while time.monotonic() < deadline:
        status = read_running(settings)
        if status is not None and status.state in _READY:
            return status, None
        if status is None and not _held(layout):
            raise InfrastructureError(
                f"the service that was starting on {str(layout.data_dir)!r} has ended.",
                remedy=f"Try again; the cause stands in {layout.logs / 'supervisor.log'}.",
            )
        time.sleep(0.05)
    raise InfrastructureError(
        f"the service on {str(layout.data_dir)!r} did not become ready.",
        remedy="Look at `instar status`.",
    )


def _held(layout: Layout) -> bool:
    """Whether a supervisor holds the data directory at this moment."""
    try:
        lock = os.open(layout.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _wait_ready(
    child: subprocess.Popen[bytes], layout: Layout, timeout_s: float, log_path: Path
) -> Status:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        status = read_status(layout.status)
        ours = status is not None and status.pid == child.pid
        if status is not None and ours and status.state in _READY:
            return status
        if child.poll() is not None:
            raise _failure(status if ours else None, child.returncode, log_path)
        time.sleep(0.05)
    raise InfrastructureError(
        f"the supervisor (pid {child.pid}) did not become ready within {timeout_s:g} s.",
        remedy=f"Look at `instar status` and {log_path}.",
    )


def _failure(status: Status | None, code: int, log_path: Path) -> InstarError:
    if status is not None and status.error:
        return InfrastructureError(status.error, remedy=status.remedy)
    last = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    words = last[-1].removeprefix("error: ") if last else f"the supervisor ended with {code}."
    kind = PrerequisiteError if code == 2 else InfrastructureError
    return kind(words)


def stop_running(settings: Settings) -> bool:
    """Stops the service that runs on the data directory, and what a killed one left behind.

    Returns:
        Whether anything was stopped.
    """
    layout = _layout(settings)
    if not layout.lock.exists():
        return False
    stopped = False
    status = read_status(layout.status)
    supervisor: Identity | None = status.identity if status is not None else None
    if supervisor is not None and supervisor.alive:
        stopped = True
        stop_process(supervisor, [(signal.SIGTERM, _STOP_S), (signal.SIGKILL, 10.0)])
    lock = os.open(layout.lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        left = stop_leftovers(layout)
        if (layout.postgres / "cluster").exists():
            clear_stale_server(layout.postgres / "cluster", layout.socket_dir)
        if left and status is not None:
            status.model_copy(update={"state": "stopped", "services": ()}).write(layout.status)
        return stopped or bool(left)
    except BlockingIOError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        raise InfrastructureError(
            f"the supervisor (pid {holder or 'unknown'}) holds {str(layout.data_dir)!r} and did "
            "not stop.",
            remedy="Try again in a minute, or end that process.",
        ) from error
    finally:
        os.close(lock)
