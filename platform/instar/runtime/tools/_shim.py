"""Exec shim: starts a program so that it, and all it starts, die with the process that wanted it.

Run as ``python -I -S _shim.py PARENT_PID PROGRAM [ARGUMENT …]`` in a process session of its own.
It asks the kernel to kill the program when its parent dies, leaves a small watcher that kills the
whole process group when parent or program is gone (wrappers such as npx start the real server as a
grandchild, which no parent-death signal reaches), and then becomes the program.
"""

from __future__ import annotations

import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1


def _die_with(parent: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew of our wish
        os._exit(0)


def _watch(parent: int, program: int) -> None:
    os.closerange(0, 256)  # the program's pipes must close when the program does
    poll = select.poll()
    for pid in (parent, program):
        try:
            poll.register(os.pidfd_open(pid), select.POLLIN)
        except ProcessLookupError:
            break
    else:
        poll.poll()
    os.killpg(program, signal.SIGKILL)


def _leave_watcher(parent: int) -> None:
    if not hasattr(os, "pidfd_open"):
        return
    program = os.getpid()
    child = os.fork()
    if child == 0:
        # A second fork hands the watcher to init: the program never sees a child it did not start.
        if os.fork() == 0:
            try:
                _watch(parent, program)
            finally:
                os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)


def main(arguments: list[str]) -> int:
    """Becomes the program; returns only when it cannot be started (126 or 127, as shells do)."""
    parent, command = int(arguments[0]), arguments[1:]
    _die_with(parent)
    _leave_watcher(parent)
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        print(f"{command[0]}: program not found", file=sys.stderr)
        return 127
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
