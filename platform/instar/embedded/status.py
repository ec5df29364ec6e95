"""Status: the file in which the supervisor says who runs, where, and how they are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from instar import __version__
from instar.embedded.files import private_write
from instar.embedded.processes import Identity
from instar_core.base import Frozen

__all__ = ["ServiceState", "ServiceStatus", "Status", "SupervisorState", "read_status"]

ServiceState = Literal[
    "waiting", "starting", "running", "not_ready", "unhealthy", "backing_off", "stopped"
]
"""``not_ready``: it lives and says what it lacks, such as the engine without a model."""
SupervisorState = Literal["starting", "ready", "degraded", "stopping", "stopped", "failed"]


class ServiceStatus(Frozen):
    """One supervised service."""

    name: str
    state: ServiceState
    required: bool = True
    pid: int | None = None
    started: float | None = Field(default=None, description="process start, seconds since 1970")
    address: str = ""
    restarts: int = 0
    last_error: str = ""
    log: str = ""

    @property
    def identity(self) -> Identity | None:
        """Who the process is, where one runs."""
        if self.pid is None or self.started is None:
            return None
        return Identity(self.pid, self.started)


class Status(Frozen):
    """The whole service on this machine."""

    state: SupervisorState
    version: str = __version__
    pid: int | None = None
    started: float | None = None
    api: str = ""
    engine: str = ""
    data_dir: str = ""
    services: tuple[ServiceStatus, ...] = ()
    error: str = ""
    remedy: str = ""
    updated_at: datetime = Field(default_factory=lambda: datetime.now(UTC))

    @property
    def identity(self) -> Identity | None:
        """Who the supervisor is."""
        if self.pid is None or self.started is None:
            return None
        return Identity(self.pid, self.started)

    @property
    def alive(self) -> bool:
        """Whether that supervisor runs now (the file outlives a kill)."""
        identity = self.identity
        return identity is not None and identity.alive

    def service(self, name: str) -> ServiceStatus | None:
        """One service by name."""
        return next((item for item in self.services if item.name == name), None)

    def write(self, path: Path) -> None:
        """Replaces the file."""
        private_write(path, self.model_dump_json(indent=1) + "\n", durable=False)


def read_status(path: Path) -> Status | None:
    """What the file says; ``None`` when there is none or it is not readable as a status."""
    try:
        return Status.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        return None
