"""The supervisor: starts the services in order, restarts what dies, and says how they are.

One loop in the main thread, for children are tied to the thread that started them. A service starts
when those it needs are healthy; one that dies is started again after a growing pause.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType

from instar.embedded.files import rotate_log
from instar.embedded.layout import Layout
from instar.embedded.processes import Identity
from instar.embedded.services import OneShot, Service
from instar.embedded.status import ServiceState, ServiceStatus, Status, SupervisorState
from instar_core.errors import InfrastructureError, InstarError, StoreError

__all__ = ["Supervisor", "SupervisorOptions"]


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """How patient the supervisor is, and how long logs grow.

    Attributes:
        tick_s: Seconds between two looks at the children.
        health_s: Seconds between two questions to a running service.
        start_timeout_s: Seconds in which a required service must become healthy.
        first_pause_s: Pause before the first restart; doubled for each further one.
        longest_pause_s: Bound of that pause.
        calm_s: Healthy seconds after which earlier restarts are forgotten.
        unhealthy_s: Seconds without an answer after which a live process is stopped and restarted.
        log_bytes: Size at which a log is rotated.
        log_keep: Rotated logs kept.
    """

    tick_s: float = 0.1
    health_s: float = 2.0
    start_timeout_s: float = 120.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    calm_s: float = 60.0
    unhealthy_s: float = 60.0
    log_bytes: int = 10_000_000
    log_keep: int = 3


@dataclass(slots=True)
class _Unit:
    """A service with what the supervisor knows about it."""

    service: Service
    state: ServiceState = "waiting"
    restarts: int = 0
    recent: int = 0
    last_error: str = ""
    started_at: float = 0.0
    heard_at: float = 0.0
    reason: str = ""
    asked_at: float = 0.0
    start_after: float = 0.0
    identity: Identity | None = field(default=None)

    @property
    def up(self) -> bool:
        return self.state == "running"

    def view(self) -> ServiceStatus:
        return ServiceStatus(
            name=self.service.name,
            state=self.state,
            required=self.service.required,
            pid=self.identity.pid if self.identity else None,
            started=self.identity.started if self.identity else None,
            address=self.service.address,
            restarts=self.restarts,
            last_error=self.last_error or self.reason,
            log=str(self.service.log),
        )


class Supervisor:
    """Runs a list of services until it is told to stop.

    Args:
        services: In start order; stopped in reverse.
        layout: The data directory, for the status file.
        base: The parts of the status that do not change (pid, addresses).
        options: Patience and log sizes.
        on_ready: Called once, when all required services are healthy.
    """

    def __init__(
        self,
        services: Sequence[Service],
        layout: Layout,
        base: Status,
        options: SupervisorOptions | None = None,
        on_ready: Callable[[Status], None] | None = None,
    ) -> None:
        self._units = [_Unit(service) for service in services]
        self._layout = layout
        self._base = base
        self._options = options or SupervisorOptions()
        self._on_ready = on_ready
        self._stop = threading.Event()
        self._was_ready = False
        self._written = ""

    def run(self) -> None:
        """Starts everything, watches until SIGTERM, SIGINT or SIGHUP, and stops everything.

        Raises:
            InstarError: The first start failed; what had been started is stopped again.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask_to_stop)
        failure: InstarError | None = None
        try:
            while not self._stop.is_set():
                self._tick(time.monotonic())
                self._stop.wait(self._options.tick_s)
        except InstarError as error:
            failure = error
            raise
        finally:
            self._stop_all(failure)

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()

    def _tick(self, now: float) -> None:
        for unit in self._units:
            self._look_at(unit, now)
            if self._stop.is_set():
                return
        state = self._overall()
        status = self._status(state)
        self._write(status)
        if state == "ready" and not self._was_ready:
            self._was_ready = True
            if self._on_ready is not None:
                self._on_ready(status)
        for unit in self._units:
            rotate_log(
                unit.service.log, max_bytes=self._options.log_bytes, keep=self._options.log_keep
            )

    def _look_at(self, unit: _Unit, now: float) -> None:
        if unit.state in ("waiting", "backing_off"):
            if now >= unit.start_after and self._may_start(unit):
                self._start(unit, now)
            return
        if isinstance(unit.service, OneShot):
            self._look_at_step(unit)
            return
        status = unit.service.exit_status()
        if status is not None:
            self._died(unit, _ending(status), now)
            return
        eager = unit.state == "starting" and unit.service.required
        interval = 0.0 if eager else self._options.health_s
        if now - unit.asked_at < interval:
            return
        unit.asked_at = now
        answer = unit.service.ask()
        unit.reason = answer.reason
        if answer.heard:
            unit.heard_at = now
        if answer.ready:
            unit.state = "running"
            if now - unit.started_at > self._options.calm_s:
                unit.recent = 0
        elif answer.heard and not unit.service.required:
            # It lives and says what it lacks (the engine without a model): a restart is no use.
            unit.state = "not_ready"
        else:
            self._not_healthy(unit, now)

    def _not_healthy(self, unit: _Unit, now: float) -> None:
        if unit.state not in ("starting", "waiting"):
            unit.state = "unhealthy"
            silent = now - max(unit.heard_at, unit.started_at)
            if silent > self._options.unhealthy_s:
                unit.service.stop()
                self._died(unit, f"did not answer for {silent:.0f} s and was stopped", now)
        elif now - unit.started_at > self._options.start_timeout_s:
            message = f"did not become healthy within {self._options.start_timeout_s:g} s"
            if unit.service.required and not self._was_ready:
                raise self._failed(unit, message)
            unit.service.stop()
            self._died(unit, message, now)

    def _look_at_step(self, unit: _Unit) -> None:
        status = unit.service.exit_status()
        if status == 0:
            unit.state = "running"
            unit.identity = None
        elif status is not None:
            raise self._failed(unit, _ending(status))

    def _may_start(self, unit: _Unit) -> bool:
        up = {other.service.name for other in self._units if other.up}
        return all(name in up for name in unit.service.after)

    def _start(self, unit: _Unit, now: float) -> None:
        unit.state = "starting"
        unit.started_at = time.monotonic()
        unit.asked_at = 0.0
        try:
            unit.service.mark_log()
            unit.service.start()
        except InstarError as error:
            if not self._was_ready:
                raise
            self._died(unit, str(error), now)
            return
        except OSError as error:
            if not self._was_ready:
                raise StoreError(f"cannot start {unit.service.name}: {error}") from error
            self._died(unit, str(error), now)
            return
        unit.identity = unit.service.identity

    def _died(self, unit: _Unit, why: str, now: float) -> None:
        unit.restarts += 1
        unit.recent += 1
        # Who is killed from outside has no last words: what its log ends with is no cause.
        cause = "" if why == _ending(-signal.SIGKILL) else unit.service.cause()
        unit.last_error = ": ".join(filter(None, (why, cause)))
        if unit.service.required and not self._was_ready and unit.recent > 2:
            raise self._failed(unit, why)
        pause = min(
            self._options.longest_pause_s, self._options.first_pause_s * 2 ** (unit.recent - 1)
        )
        unit.state = "backing_off"
        unit.start_after = now + pause
        unit.identity = None

    def _failed(self, unit: _Unit, why: str) -> InstarError:
        cause = unit.service.cause()
        return InfrastructureError(
            f"{unit.service.name} {why}" + (f": {cause}" if cause else "."),
            remedy=f"(The log is {unit.service.log}.)",
        )

    def _overall(self) -> SupervisorState:
        if all(unit.up for unit in self._units if unit.service.required):
            troubled = any(unit.state in ("unhealthy", "backing_off") for unit in self._units)
            return "degraded" if troubled and self._was_ready else "ready"
        return "degraded" if self._was_ready else "starting"

    def _status(self, state: SupervisorState, failure: InstarError | None = None) -> Status:
        return self._base.model_copy(
            update={
                "state": state,
                "services": tuple(unit.view() for unit in self._units),
                "error": failure.message if failure else "",
                "remedy": failure.remedy if failure else "",
            }
        )

    def _write(self, status: Status) -> None:
        """Writes the status when anything in it changed."""
        text = status.model_dump_json(exclude={"updated_at"})
        if text != self._written:
            self._written = text
            status.model_copy(update={"updated_at": datetime.now(UTC)}).write(self._layout.status)

    def _stop_all(self, failure: InstarError | None) -> None:
        # A second Ctrl-C must not leave children behind half-way.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if failure is None:
            self._write(self._status("stopping"))
        for unit in reversed(self._units):
            unit.service.stop()
            unit.state = "stopped"
            unit.identity = None
        self._write(self._status("failed" if failure else "stopped", failure))


def _ending(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
