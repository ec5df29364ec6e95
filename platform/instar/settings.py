"""Settings: one nested tree; the path in the tree gives the environment variable.

``INSTAR_API__PORT=8011`` sets ``settings.api.port``. ``DATABASE_URL`` and ``REDIS_URL`` are read as
they are usually named.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, BaseModel, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from instar.redaction import MASK, install_log_redaction, is_secret_variable, redact_text
from instar_core.errors import UserError

__all__ = [
    "ApiSettings",
    "AuditSettings",
    "EmbeddedSettings",
    "EngineSettings",
    "ModelPrice",
    "ModelSettings",
    "RegistrySettings",
    "SecretsSettings",
    "Settings",
    "WorkerSettings",
    "load_settings",
    "prepare_process",
]

_PROCESS_ENVIRONMENT = {
    # One thread each: many processes share few cores, and waiting threads must not spin.
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Nothing is fetched behind a person's back.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",
}


def prepare_process() -> None:
    """Sets what numeric and model libraries read when they are imported; call it before they are.

    Values that a person has set stay. Every entry point (command line, worker, engine) calls it.
    Its logs are redacted from then on.
    """
    install_log_redaction()
    for name, value in _PROCESS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _default_data_dir() -> Path:
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/var/lib/instar")
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "instar"


class ApiSettings(BaseModel):
    """Where the API listens."""

    host: str = Field(default="127.0.0.1", description="address the API binds to")
    port: int = Field(default=8321, ge=1, le=65535, description="TCP port of the API")
    allowed_hosts: list[str] = Field(
        default_factory=list,
        description="names under which people reach the API, as JSON (['instar.example.org']); "
        "loopback and the address it binds to are always allowed",
    )


class OidcSettings(BaseModel):
    """Sign-in at an identity provider (OpenID Connect); off while ``issuer`` is empty."""

    issuer: str = Field(default="", description="the provider's issuer address")
    client_id: str = Field(default="", description="what the provider calls this service")
    client_secret_env: str = Field(
        default="INSTAR_OIDC_CLIENT_SECRET",
        description="variable that holds the client secret; unset for a public client",
    )
    scopes: list[str] = Field(
        default_factory=lambda: ["openid", "email", "profile"], description="asked for, as JSON"
    )
    redirect_uri: str = Field(
        default="",
        description="this service's address as registered there, ending in /v1/auth/oidc/callback",
    )
    allowed_domains: list[str] = Field(
        default_factory=list,
        description="mail domains that may sign in, as JSON; all that the provider vouches for "
        "when empty",
    )
    groups_claim: str = Field(default="groups", description="claim that lists a person's groups")
    role_map: dict[str, dict[str, Literal["viewer", "operator", "approver", "admin"]]] = Field(
        default_factory=dict,
        description="group → project → role, as JSON; '*' stands for everybody. Such roles are set "
        "anew at each sign-in",
    )


class AuthSettings(BaseModel):
    """Sessions of people, and where they sign in."""

    session_idle_s: float = Field(
        default=12 * 3600.0, ge=120, description="seconds after which an unused session ends"
    )
    session_max_s: float = Field(
        default=7 * 86400.0, ge=120, description="seconds after which any session ends"
    )
    oidc: OidcSettings = Field(
        default_factory=OidcSettings, description="sign-in at an identity provider"
    )


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
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="number format; auto times both on this processor"
    )
    context: int = Field(
        default=8192, ge=16, description="most tokens of a prompt and its reply together"
    )
    max_waiting: int = Field(default=1024, ge=1, description="sequences that may wait for a slot")
    prefix_cache_mb: int = Field(
        default=256, ge=0, description="memory for prompt beginnings that are computed once"
    )


class ModelPrice(BaseModel):
    """What a model costs, in US dollars per million tokens; overrides the price list."""

    input: float = Field(ge=0.0, description="uncached input")
    output: float = Field(ge=0.0, description="output")
    cache_read: float | None = Field(default=None, ge=0.0, description="input read from a cache")
    cache_write: float | None = Field(default=None, ge=0.0, description="input put into a cache")


class ModelSettings(BaseModel):
    """How models are reached and what they cost. Providers' keys stay in their usual variables."""

    api_base: dict[str, str] = Field(
        default_factory=dict,
        description="address by model name ('openai/my-model') or provider ('openai'), as JSON",
    )
    prices: dict[str, ModelPrice] = Field(
        default_factory=dict, description="prices by model name, as JSON; else the price list's"
    )
    timeout_s: float = Field(default=120.0, gt=0, description="seconds one attempt of a call takes")
    max_attempts: int = Field(default=5, ge=1, description="attempts at a call that may pass")
    max_wait_s: float = Field(default=60.0, gt=0, description="longest pause between two attempts")
    scripts_dir: Path | None = Field(
        default=None, description="folder of reply scripts for models named 'scripted/…'"
    )
    embedder: str = Field(
        default="local/all-minilm-l6-v2", description="what turns texts into vectors"
    )


class WorkerSettings(BaseModel):
    """The Celery worker."""

    concurrency: int = Field(default=1, ge=1, description="jobs run at once by one worker process")
    rollout_concurrency: int = Field(default=24, ge=1, description="rollouts in flight in one run")
    lease_s: float = Field(default=15.0, gt=0, description="seconds a job lease lives unrenewed")
    name: str = Field(
        default="", description="name of this worker in leases; the host's name when empty"
    )
    reconcile_s: float = Field(default=2.0, gt=0, description="seconds between reconciler sweeps")
    call_tally: Path | None = Field(
        default=None,
        description="file that gets a line for each call a world really performed (crash audits)",
    )


class SecretsSettings(BaseModel):
    """Where the keys are that secrets are encrypted with; never in the database."""

    key_file: Path | None = Field(
        default=None,
        description="file with the keyring (JSON, readable by its owner alone); "
        "<data_dir>/secrets.keys when empty",
    )
    keys: SecretStr = Field(
        default=SecretStr(""),
        description="keys instead of a file: base64 of 32 bytes each, separated by commas; the "
        "first one encrypts, all of them decrypt",
    )
    abandon: str = Field(
        default="",
        description="id of a key that is lost for good: the next start deletes what only it opens",
    )


class AuditSettings(BaseModel):
    """How the audit chain is sealed."""

    checkpoint_s: float = Field(
        default=60.0, gt=0, description="seconds between signed checkpoints, while anything happens"
    )
    dir: Path | None = Field(
        default=None,
        description="folder of the checkpoints' copies outside the database; 'audit' in the data "
        "directory when unset. Better on another disk or machine",
    )
    signing_key_file: Path | None = Field(
        default=None,
        description="file of the private key that signs checkpoints; 'audit_signing.key' in the "
        "data directory when unset",
    )


class RegistrySettings(BaseModel):
    """Limits of what the registry stores."""

    max_content_bytes: int = Field(
        default=5_000_000, ge=1, description="largest content of one version (5 MB)"
    )


class EmbeddedSettings(BaseModel):
    """What `instar up` starts and how it keeps its files."""

    min_free_mb: int = Field(
        default=500, ge=0, description="refuse to start with less free disk space (MiB)"
    )
    log_max_mb: float = Field(
        default=10.0, gt=0, description="size at which a log is rotated (MiB)"
    )
    log_keep: int = Field(default=3, ge=0, description="rotated logs kept per service")
    start_timeout_s: float = Field(
        default=120.0, gt=0, description="seconds in which each service must become healthy"
    )


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
    app_database_url: str | None = Field(
        default=None,
        description="the same database for the service's own role instar_app; `instar up` fills it "
        "in for its processes",
    )
    redis_url: str | None = Field(
        default=None,
        validation_alias=AliasChoices("INSTAR_REDIS_URL", "REDIS_URL"),
        description="Redis-protocol broker to use instead of the embedded one",
    )
    project: str = Field(default="default", description="project name the CLI works in")
    api: ApiSettings = Field(default_factory=ApiSettings, description="where the API listens")
    auth: AuthSettings = Field(default_factory=AuthSettings, description="people's sessions")
    engine: EngineSettings = Field(default_factory=EngineSettings, description="local model engine")
    models: ModelSettings = Field(
        default_factory=ModelSettings, description="model providers, prices, retries"
    )
    worker: WorkerSettings = Field(default_factory=WorkerSettings, description="background worker")
    secrets: SecretsSettings = Field(
        default_factory=SecretsSettings, description="keys of the encrypted secrets"
    )
    audit: AuditSettings = Field(
        default_factory=AuditSettings, description="the audit chain's checkpoints"
    )
    registry: RegistrySettings = Field(
        default_factory=RegistrySettings, description="limits of what is stored"
    )
    embedded: EmbeddedSettings = Field(
        default_factory=EmbeddedSettings, description="supervisor of `instar up`"
    )


@lru_cache(maxsize=1)
def load_settings() -> Settings:
    """The settings of this process, read once from the environment.

    Raises:
        UserError: A variable has a value that the setting does not take; names each of them.
    """
    try:
        return Settings()
    except ValidationError as error:
        wrong = "; ".join(
            _wrong("__".join(str(part) for part in item["loc"]).upper(), item["input"])
            + redact_text(f": {item['msg']}")
            for item in error.errors()
        )
        raise UserError(
            f"settings are wrong: {wrong}.",
            remedy="Correct or unset these environment variables.",
        ) from error


def _wrong(name: str, value: object) -> str:
    """A variable with its wrong value, which is not shown where it may be a secret."""
    shown = MASK if is_secret_variable(name) else redact_text(repr(value))
    return f"INSTAR_{name}={shown}"
