"""The worker: one Celery process with forked children, each running one job at a time.

Run as ``python -m instar.jobs.worker [--include MODULE]``. On SIGTERM the running jobs are asked to
come to an end and give their leases back, so that the next worker goes on at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from celery import signals

from instar.jobs.app import QUEUES, app
from instar.jobs.signals import die_with_worker, stop_flag
from instar.settings import Settings, load_settings
from instar_core.errors import StoreError

__all__ = ["main"]

_BEAT_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the worker until SIGTERM.

    Returns:
        The exit status of the Celery worker.
    """
    parser = argparse.ArgumentParser(prog="python -m instar.jobs.worker")
    parser.add_argument(
        "--include", action="append", default=[], help="module that registers kinds of jobs"
    )
    parser.add_argument("--loglevel", default="info")
    options = parser.parse_args(arguments)
    settings = load_settings()
    for module in options.include:
        import_module(module)
    _free_former_leases(settings)
    _connect(os.getpid())
    app.worker_main(
        [
            *("worker", "--pool", "prefork", "--concurrency", str(settings.worker.concurrency)),
            *("--loglevel", options.loglevel, "--queues", ",".join(QUEUES)),
            # One machine, one worker: no need to hear others. `fair` hands a child one bell only.
            *("--without-gossip", "--without-mingle", "--without-heartbeat", "-O", "fair"),
            *("--hostname", f"{settings.worker.name or 'worker'}-{os.getpid()}@%h"),
        ]
    )
    return 0


def _free_former_leases(settings: Settings) -> None:
    """Ends what a killed worker of this name held; its connections are closed before the fork."""
    from instar.jobs.leases import free_former_leases

    try:
        ended = asyncio.run(free_former_leases(settings))
    except StoreError as error:
        # Not worth a failed start: the leases end by themselves.
        print(f"former leases are left to their time: {error}", file=sys.stderr)
        return
    if ended:
        print(f"freed {ended} lease(s) of the worker before this one", flush=True)


def _connect(main_pid: int) -> None:
    """Ties Celery's signals to ours (strong references: Celery keeps weak ones)."""

    def child_started(**_: Any) -> None:
        die_with_worker(main_pid)

    def shutting_down(**_: Any) -> None:
        stop_flag.set()

    def ready(**_: Any) -> None:
        beat_file = os.environ.get("INSTAR_BEAT_FILE")
        if beat_file:
            start_beating(Path(beat_file))

    signals.worker_process_init.connect(child_started, weak=False)
    signals.worker_shutting_down.connect(shutting_down, weak=False)
    signals.worker_ready.connect(ready, weak=False)


def start_beating(path: Path) -> None:
    """Touches a file with this process's pid now and every few seconds, from a daemon thread."""
    stop = threading.Event()

    def beat() -> None:
        while True:
            path.write_text(f"{os.getpid()}\n", encoding="ascii")
            if stop.wait(_BEAT_S):
                return

    threading.Thread(target=beat, name="beat", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
