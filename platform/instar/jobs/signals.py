"""What a worker process and its children tell each other: stop, and live no longer than I do."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys

__all__ = ["StopFlag", "die_with_worker", "stop_flag"]

_PR_SET_PDEATHSIG = 1


class StopFlag:
    """One byte that a process shares with the children it forks: set once, never cleared."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 1)

    def set(self) -> None:
        """Asks everybody who shares the flag to come to an end."""
        self._page[0] = 1

    @property
    def is_set(self) -> bool:
        """Whether anybody asked."""
        return self._page[0] == 1


stop_flag = StopFlag()
"""The flag of this process and its children; made before the worker forks."""


def die_with_worker(parent: int) -> None:
    """Makes the kernel kill this forked child when the worker's main process dies.

    Args:
        parent: Pid of the main process; when it is gone already the child ends at once.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
