"""Stale servers: what a killed supervisor left behind in a PostgreSQL data directory.

A pid file is believed only when its pid is a live, non-zombie ``postgres`` working in this very
data directory; backends of a killed postmaster count too, for they still hold its shared memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil

from instar.embedded.processes import Identity, identify, stop_process
from instar_core.errors import StoreError

__all__ = ["clear_stale_server"]

_GRACE_S = 10.0


def clear_stale_server(cluster_dir: Path, runtime_dir: Path) -> None:
    """Makes a data directory ready for a new postmaster. The caller holds the directory's lock.

    A server that is still there (an orphan on its way down) gets ten seconds, then is stopped; then
    its pid file and socket locks are removed. A pid file that names anybody else is just removed.

    Raises:
        StoreError: A process that works in the directory cannot be stopped.
    """
    pid_file = cluster_dir / "postmaster.pid"
    deadline = time.monotonic() + _GRACE_S
    while (found := _servers(cluster_dir)) and time.monotonic() < deadline:
        # An orphan that nobody told to stop (no parent-death signal here) is told now.
        _interrupt_postmaster(pid_file, found)
        time.sleep(0.05)
    for identity in _servers(cluster_dir):
        if not stop_process(identity, [(signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)]):
            raise StoreError(
                f"PostgreSQL process {identity.pid} still works in {str(cluster_dir)!r} and could "
                "not be stopped.",
                remedy=f"End process {identity.pid} and start again.",
            )
    pid_file.unlink(missing_ok=True)
    for leftover in runtime_dir.glob(".s.PGSQL.*"):
        with contextlib.suppress(FileNotFoundError):
            leftover.unlink()


def _interrupt_postmaster(pid_file: Path, found: list[Identity]) -> None:
    named = _named_pid(pid_file)
    for identity in found:
        if identity.pid == named:
            process = identity.process()
            if process is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGINT)


def _named_pid(pid_file: Path) -> int | None:
    """The pid in a pid file; ``None`` for a missing, empty or cut-off one."""
    try:
        first = pid_file.read_text(encoding="ascii", errors="replace").partition("\n")[0].strip()
    except FileNotFoundError:
        return None
    return int(first) if first.isdigit() else None


def _servers(cluster_dir: Path) -> list[Identity]:
    """All live ``postgres`` processes whose working directory is this cluster."""
    wanted = os.path.realpath(cluster_dir)
    found: list[Identity] = []
    for process in psutil.process_iter():
        try:
            if process.name() != "postgres" or os.path.realpath(process.cwd()) != wanted:
                continue
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
            continue
        identity = identify(process.pid)
        if identity is not None:
            found.append(identity)
    return found
