"""Processes: who a pid really is, children that die with their parent, and stopping by identity.

A pid alone names nobody: the kernel hands it out again. An :class:`Identity` adds the start time,
and everything here that sends a signal checks both first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

__all__ = ["Identity", "die_with_parent", "identify", "stop_process", "wait_gone"]

_PR_SET_PDEATHSIG = 1
_START_SLACK_S = 2.0
"""Two readings of a start time may differ by the clock tick and the boot time's rounding."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One process: its pid and its start time (seconds since the epoch)."""

    pid: int
    started: float

    def process(self) -> psutil.Process | None:
        """The live process, or ``None`` when it is gone, a zombie, or somebody else by now."""
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            same = abs(process.create_time() - self.started) <= _START_SLACK_S
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None
        return process if same else None

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return self.process() is not None


def identify(pid: int) -> Identity | None:
    """The identity of the process that has this pid now, or ``None`` when nobody has it."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return Identity(pid, process.create_time())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def wait_gone(identity: Identity, timeout_s: float) -> bool:
    """Whether the process ended within the time."""
    deadline = time.monotonic() + timeout_s
    while identity.alive:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def stop_process(
    identity: Identity, signals: Sequence[tuple[signal.Signals, float]], *, tree: bool = False
) -> bool:
    """Sends the signals one after the other, each with a time to end in, until the process is gone.

    Args:
        identity: Whom to stop; checked again before each signal.
        signals: Signal and seconds to wait after it, mildest first.
        tree: Also kill descendants that are left when the process itself is gone.

    Returns:
        Whether the process is gone.
    """
    process = identity.process()
    descendants: list[Identity] = []
    if process is not None and tree:
        descendants = _descendants(process)
    gone = process is None
    for number, wait_s in signals:
        process = identity.process()
        if process is None:
            gone = True
            break
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            gone = True
            break
        gone = wait_gone(identity, wait_s)
        if gone:
            break
    for child in descendants:
        left = child.process()
        if left is not None:
            left.kill()
    return gone


def _descendants(process: psutil.Process) -> list[Identity]:
    found: list[Identity] = []
    try:
        for child in process.children(recursive=True):
            identity = identify(child.pid)
            if identity is not None:
                found.append(identity)
    except psutil.NoSuchProcess:
        return found
    return found


def die_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """A ``preexec_fn`` that makes the kernel send ``number`` to the child when its parent dies.

    The kernel watches the *thread* that forked, so the caller must be the main thread.

    Args:
        number: The signal, such as SIGINT for PostgreSQL's fast shutdown.

    Returns:
        The function, or ``None`` on systems without parent-death signals (the next start then finds
        and stops the orphan).

    Raises:
        RuntimeError: Outside the main thread, whose end would count as the parent's death.
    """
    if not sys.platform.startswith("linux"):
        return None
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("children with a parent-death signal must be started by the main thread")
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def arm() -> None:
        # Runs after any change of user, which would clear the signal again.
        libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os._exit(1)

    return arm
