"""Settings: one nested tree; the path in the tree gives the environment variable.

``INSTAR_API__PORT=8011`` sets ``settings.api.port``. ``DATABASE_URL`` and ``REDIS_URL`` are read as
they are usually named.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["ApiSettings", "EngineSettings", "Settings", "WorkerSettings", "load_settings"]


def _default_data_dir() -> Path:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/lib/instar")
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "instar"


class ApiSettings(BaseModel):
    """Where the API listens."""

    host: str = Field(default="127.0.0.1", description="address the API binds to")
    port: int = Field(default=8321, ge=1, le=65535, description="TCP port of the API")


class EngineSettings(BaseModel):
    """The local model engine."""

    enabled: bool = Field(default=True, description="start the local engine with `instar up`")
    host: str = Field(default="127.0.0.1", description="address the engine binds to")
    port: int = Field(default=8322, ge=1, le=65535, description="TCP port of the engine")
    threads: int = Field(default=1, ge=1, description="torch threads of the engine process")
    max_batch: int = Field(default=16, ge=1, description="sequences generated together")
    exact: bool = Field(
        default=False, description="float32, one sequence at a time: results do not depend on load"
    )


class WorkerSettings(BaseModel):
    """The Celery worker."""

    concurrency: int = Field(default=1, ge=1, description="jobs run at once by one worker process")
    rollout_concurrency: int = Field(default=24, ge=1, description="rollouts in flight in one run")
    lease_s: float = Field(default=15.0, gt=0, description="seconds a job lease lives unrenewed")
    reconcile_s: float = Field(default=2.0, gt=0, description="seconds between reconciler sweeps")


class Settings(BaseSettings):
    """All settings of the service."""

    model_config = SettingsConfigDict(
        env_prefix="INSTAR_", env_nested_delimiter="__", extra="ignore", env_file=None
    )

    data_dir: Path = Field(
        default_factory=_default_data_dir, description="where embedded services keep their state"
    )
    database_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("INSTAR_DATABASE_URL", "DATABASE_URL"),
        description="PostgreSQL to use instead of the embedded one (a login that owns a database)",
    )
    redis_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("INSTAR_REDIS_URL", "REDIS_URL"),
        description="Redis-protocol broker to use instead of the embedded one",
    )
    project: str = Field(default="default", description="project name the CLI works in")
    api: ApiSettings = Field(default_factory=ApiSettings, description="where the API listens")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="local model engine")
    worker: WorkerSettings = Field(default_factory=WorkerSettings, description="background worker")


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """The settings of this process, read once from the environment."""
    return Settings()
