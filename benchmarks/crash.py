"""Crash: kills worker, API, PostgreSQL and supervisor under a running night, and audits what
follows.

The whole service runs twice on fresh data directories with the same seeds: once undisturbed, once
under kills drawn at random over the calls. Both nights must come to the same candidates, choices,
verdicts and versions; no call whose result was recorded may be performed again; no budget may be
overrun.

Run: ``python -m benchmarks.crash --kills 10 --json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.crash_audit import Night, audit, fingerprint, register_agent

__all__ = ["main"]

CLASSES = ("worker", "api", "postgres", "supervisor")
_DEADLINE_S = 600.0
_PATIENCE_S = 90.0
_IN_FLIGHT = 24


@dataclass(slots=True)
class Kill:
    """One kill: whom, after which performed call, and what happened afterwards."""

    what: str
    at_call: int = 0
    at: float = 0.0
    back_after_s: float = 0.0
    effects_after_kill: int = 0


@dataclass(slots=True)
class Stack:
    """One installation: its data directory, its port, and the calls that its world performed."""

    directory: Path
    port: int
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, directory: Path) -> Stack:
        """A stack on a new directory, with short leases so that a dead worker is soon replaced."""
        from instar.embedded.checks import free_port

        directory.mkdir(mode=0o711)
        stack = cls(directory / "data", free_port())
        (directory / "tally").mkdir(mode=0o777)
        stack.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("INSTAR_")},
            "INSTAR_DATA_DIR": str(stack.directory),
            "INSTAR_API__PORT": str(stack.port),
            "INSTAR_ENGINE__ENABLED": "false",
            "INSTAR_WORKER__LEASE_S": "3",
            "INSTAR_WORKER__RECONCILE_S": "0.5",
            "INSTAR_WORKER__CALL_TALLY": str(stack.tally),
        }
        return stack

    @property
    def tally(self) -> Path:
        """Where the world notes each call that it really performed."""
        return self.directory.parent / "tally" / "calls.jsonl"

    def up(self) -> None:
        """Starts everything and waits until it is ready."""
        done = subprocess.run(
            [sys.executable, "-m", "instar", "up", "--detach", "--json"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the stack did not start: {done.stderr[-2000:]}{self.logs()}")

    def down(self) -> None:
        """Stops everything."""
        subprocess.run(
            [sys.executable, "-m", "instar", "down"],
            env=self.environment,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def status(self) -> dict[str, Any]:
        """What the supervisor says."""
        found: dict[str, Any] = json.loads((self.directory / "status.json").read_text())
        return found

    def performed(self) -> int:
        """How many calls were really performed so far."""
        try:
            return self.tally.read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def night(self) -> Night:
        """The database of this stack, for starting and auditing a night."""
        from instar.embedded.layout import Layout

        key = (self.directory / "api.key").read_text(encoding="ascii").strip()
        return Night(
            Layout(self.directory).app_database_url(), f"http://127.0.0.1:{self.port}", key
        )

    def kill(self, what: str) -> None:
        """SIGKILL without warning: the whole process tree of a worker, else the one process."""
        import psutil

        status = self.status()
        pid = status["pid"]
        if what != "supervisor":
            pid = next(one["pid"] for one in status["services"] if one["name"] == what)
        victims = [psutil.Process(pid)]
        if what == "worker":
            victims += victims[0].children(recursive=True)
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGKILL)

    def logs(self) -> str:
        """The ends of all logs."""
        paths = sorted((self.directory / "logs").glob("*.log"))
        return "".join(f"\n== {path.name}\n{path.read_text()[-1500:]}" for path in paths)


def _plan_kills(count: int, rng: random.Random) -> list[Kill]:
    """Kills of all classes in random order, at least two of each from eight on."""
    classes = [CLASSES[index % len(CLASSES)] for index in range(count)]
    rng.shuffle(classes)
    return [Kill(what) for what in classes]


def _alive(stack: Stack, what: str) -> bool:
    """Whether somebody runs whom this kill could meet."""
    import psutil

    try:
        status = stack.status()
        pid = status["pid"]
        if what != "supervisor":
            pid = next(one["pid"] for one in status["services"] if one["name"] == what)
        return pid is not None and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, psutil.NoSuchProcess):
        return False


@dataclass(slots=True)
class Striker:
    """Kills one after the other, each at a random place in its share of the calls that remain."""

    stack: Stack
    calls: int
    rng: random.Random
    over: Callable[[], bool]

    def strike(self, kill: Kill, kills_left: int) -> None:
        """Waits for the kill's place, kills, and waits until the night goes on."""
        stack, now = self.stack, self.stack.performed()
        # The last tenth is left alone: after each kill there must be something to go on with.
        share = max(0.0, 0.88 * self.calls - now) / kills_left
        place = now + int(self.rng.uniform(0.1, 1.0) * share)
        self._wait(lambda: stack.performed() >= place, f"call {place}")
        self._wait(lambda: _alive(stack, kill.what), f"{kill.what} to live")
        # Somewhere between two commits, or within one: a commit takes a few milliseconds.
        time.sleep(self.rng.uniform(0.0, 0.02))
        kill.at, kill.at_call = time.time(), stack.performed()
        began = time.monotonic()
        stack.kill(kill.what)
        # Calls in flight may still end; only more than those show that the night goes on.
        beyond = stack.performed() + _IN_FLIGHT
        if kill.what == "supervisor":
            stack.up()
        self._wait(lambda: stack.performed() > beyond, f"calls after the {kill.what}'s kill")
        kill.back_after_s = round(time.monotonic() - began, 2)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if self.over():
                raise RuntimeError(f"the night ended while the bench waited for {what}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {_PATIENCE_S:.0f} s for {what}")
            time.sleep(0.004)


async def _run_night(stack: Stack, kills: list[Kill], calls: int, seed: int) -> dict[str, Any]:
    """One night on a stack, with kills; what the audit found."""
    night = stack.night()
    try:
        await register_agent(night, seed)
        run_id = await night.start(seed)
        watch = asyncio.create_task(night.watch(run_id))
        striker = Striker(stack, calls, random.Random(f"strike:{seed}"), watch.done)
        began = time.monotonic()
        for index, kill in enumerate(kills):
            await asyncio.to_thread(striker.strike, kill, len(kills) - index)
        await asyncio.wait_for(watch, _DEADLINE_S)
        seconds = time.monotonic() - began
        for kill in kills:
            kill.effects_after_kill = await night.effects_after(run_id, kill.at)
        found = await audit(night, run_id, stack.tally)
        return {**found, "fingerprint": await fingerprint(night, run_id), "seconds": seconds}
    finally:
        await night.close()


def _one(directory: Path, kills: list[Kill], calls: int, seed: int) -> tuple[dict[str, Any], int]:
    stack = Stack.make(directory)
    try:
        stack.up()
        found = asyncio.run(_run_night(stack, kills, calls, seed))
        return found, stack.performed()
    except BaseException:
        print(stack.logs(), file=sys.stderr)
        raise
    finally:
        stack.down()


def run(count: int, seed: int) -> dict[str, Any]:
    """Both nights and their comparison."""
    root = Path(tempfile.mkdtemp(prefix="instar-crash-"))
    root.chmod(0o711)
    rng = random.Random(f"kills:{seed}")
    calm, calls = _one(root / "calm", [], 0, seed)
    kills = _plan_kills(count, rng)
    rough, _ = _one(root / "rough", kills, calls, seed)
    shutil.rmtree(root, ignore_errors=True)  # kept only where something failed
    return {
        "kills": [
            {key: value for key, value in asdict(kill).items() if key != "at"} for kill in kills
        ],
        "identical": calm["fingerprint"]["hash"] == rough["fingerprint"]["hash"],
        "recorded_repaid": rough["recorded_repaid"],
        "in_flight_lost": rough["in_flight_lost"],
        "most_lost_at_once": rough["most_lost_at_once"],
        "overshoot": rough["overshoot"],
        "rollouts": rough["rollouts"],
        "calls": calls,
        "most_in_flight": rough["most_in_flight"],
        "state": rough["state"],
        "verdict": rough["verdict"],
        "hash": rough["fingerprint"]["hash"],
        "calm": {
            "state": calm["state"],
            "verdict": calm["verdict"],
            "hash": calm["fingerprint"]["hash"],
            "rollouts": calm["rollouts"],
            "seconds": round(calm["seconds"], 1),
            "effects_per_s": round(calm["effects"] / calm["seconds"], 1),
            "most_in_flight": calm["most_in_flight"],
        },
        "different": [
            part
            for part in calm["fingerprint"]
            if calm["fingerprint"][part] != rough["fingerprint"][part]
        ],
        "seconds": round(rough["seconds"], 1),
        "seed": seed,
    }


def is_good(report: dict[str, Any]) -> bool:
    """Whether every promise held."""
    idle = [kill for kill in report["kills"] if not kill["effects_after_kill"]]
    broken = report["recorded_repaid"] or report["overshoot"]
    return bool(report["identical"] and report["rollouts"] >= 500 and not broken and not idle)


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0 when every promise held."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="kills, spread over all classes")
    parser.add_argument("--seed", type=int, help="seed of world, run and kills; drawn if left out")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    report = run(options.kills, seed)
    if options.json:
        print(json.dumps(report))
    else:
        for key, value in report.items():
            print(f"{key}: {value}")
    return 0 if is_good(report) else 1


if __name__ == "__main__":
    sys.exit(main())
