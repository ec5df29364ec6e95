"""`instar up`: checks the machine, takes the data directory, and supervises every service on it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from instar.embedded.broker import Broker, plan_broker
from instar.embedded.checks import Answer, ask_beat, ask_http, require_free_port
from instar.embedded.files import require_free_space
from instar.embedded.layout import Layout, Marker, Secrets
from instar.embedded.postgres import PostgresServer
from instar.embedded.processes import identify, stop_process
from instar.embedded.services import Command, CommandService, OneShot, PostgresService, Service
from instar.embedded.status import Status, read_status
from instar.embedded.supervisor import Supervisor, SupervisorOptions
from instar.redaction import is_secret_variable
from instar.settings import Settings, prepare_process
from instar_core.errors import PrerequisiteError

__all__ = ["stop_leftovers", "take_lock", "up"]

_OWNER_VARIABLES = ("DATABASE_URL", "INSTAR_DATABASE_URL", "REDIS_URL", "INSTAR_API_KEY")
"""What the services must not inherit: the owner's login and the admin's key."""
_INNER = ("INSTAR_APP_DATABASE_URL", "INSTAR_REDIS_URL")
"""Addresses with passwords, for those who work with database and broker."""


def up(settings: Settings, *, on_ready: Callable[[Status, str | None], None] | None = None) -> None:
    """Runs the service in the foreground until it is told to stop.

    Args:
        settings: Settings of this process.
        on_ready: Called once everything required is healthy, with the status and, at the first
            start, the new API key.

    Raises:
        PrerequisiteError: Something about the machine must change first (port, disk, directory,
            another supervisor); nothing is left running.
        InfrastructureError: A service did not start.
    """
    layout = Layout(settings.data_dir.expanduser().absolute())
    layout.prepare()
    lock = take_lock(layout)
    try:
        marker = layout.read_marker()
        require_free_space(layout.data_dir, settings.embedded.min_free_mb * 2**20)
        stop_leftovers(layout)
        _require_data(layout, marker, settings)
        require_free_port(settings.api.host, settings.api.port, "INSTAR_API__PORT")
        if settings.engine.enabled:
            require_free_port(settings.engine.host, settings.engine.port, "INSTAR_ENGINE__PORT")
        secrets = layout.ensure_secrets()
        had_key = layout.api_key.exists()

        def ready(status: Status) -> None:
            if on_ready is not None:
                new_key = None if had_key else layout.api_key.read_text(encoding="ascii").strip()
                on_ready(status, new_key)

        _run(settings, layout, secrets, ready)
    finally:
        os.close(lock)


def take_lock(layout: Layout) -> int:
    """Takes the data directory for this process alone; close the handle to give it back.

    Raises:
        PrerequisiteError: Another process has it.
    """
    lock = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        os.close(lock)
        raise PrerequisiteError(
            f"Instar already runs on {str(layout.data_dir)!r}"
            + (f" (supervisor pid {holder})." if holder else "."),
            remedy="Look at it with `instar status`, stop it with `instar down`, or name another "
            "directory with INSTAR_DATA_DIR.",
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)
    return lock


def stop_leftovers(layout: Layout) -> list[str]:
    """Stops what a killed supervisor left running, by pid and start time; call it under the lock.

    Returns:
        The names of the services that were stopped. PostgreSQL is left to its own start, which
        knows how to end it without harm.
    """
    status = read_status(layout.status)
    stopped: list[str] = []
    for service in status.services if status is not None else ():
        identity = service.identity
        if service.name == "postgres" or identity is None or not identity.alive:
            continue
        stop_process(identity, [(signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)], tree=True)
        stopped.append(service.name)
    return stopped


def _require_data(layout: Layout, marker: Marker, settings: Settings) -> None:
    """Refuses to begin anew where data has been: a lost database must not look like a fresh one."""
    kind = "external" if settings.database_url else "embedded"
    if marker.database and marker.database != kind:
        wanted = "DATABASE_URL" if marker.database == "external" else "no DATABASE_URL"
        raise PrerequisiteError(
            f"{str(layout.data_dir)!r} belongs to an installation with an {marker.database} "
            f"database, and this start would use an {kind} one.",
            remedy=f"Start with {wanted} as before, or name another directory with "
            "INSTAR_DATA_DIR.",
        )
    if marker.database == "embedded" and not (layout.postgres / "cluster").exists():
        raise PrerequisiteError(
            f"the database of this installation is gone: {str(layout.postgres / 'cluster')!r} does "
            f"not exist, though data was written since {marker.installed_at:%Y-%m-%d}.",
            remedy="Restore it from a backup, or begin anew in another directory "
            "(INSTAR_DATA_DIR).",
        )


def _run(
    settings: Settings, layout: Layout, secrets: Secrets, on_ready: Callable[[Status], None]
) -> None:
    me = identify(os.getpid())
    base = Status(
        state="starting",
        pid=os.getpid(),
        started=me.started if me else time.time(),
        api=f"http://{settings.api.host}:{settings.api.port}",
        engine=f"http://{settings.engine.host}:{settings.engine.port}"
        if settings.engine.enabled
        else "",
        data_dir=str(layout.data_dir),
    )
    options = SupervisorOptions(
        start_timeout_s=settings.embedded.start_timeout_s,
        log_bytes=int(settings.embedded.log_max_mb * 2**20),
        log_keep=settings.embedded.log_keep,
    )
    services = plan_services(settings, layout, secrets)
    Supervisor(services, layout, base, options, on_ready).run()


def plan_services(settings: Settings, layout: Layout, secrets: Secrets) -> list[Service]:
    """Everything to run, in start order."""
    prepare_process()
    services: list[Service] = []
    environment = {
        name: value for name, value in os.environ.items() if name not in _OWNER_VARIABLES
    }
    environment["INSTAR_DATA_DIR"] = str(layout.data_dir)
    environment["PYTHONUNBUFFERED"] = "1"
    # The set-up alone gets the owner's login; it goes no further.
    install = dict(environment)
    if not (settings.database_url and settings.app_database_url):
        install["INSTAR_APP_PASSWORD"] = secrets.app_password
    if settings.database_url:
        install["INSTAR_DATABASE_URL"] = settings.database_url
        app_url = settings.app_database_url or _as_app(settings.database_url, secrets)
        needs: tuple[str, ...] = ()
    else:
        server = PostgresServer(layout.postgres, log_path=layout.logs / "postgres.log")
        services.append(PostgresService(server, server.log_path))
        app_url = layout.app_database_url()
        needs = ("postgres",)
    broker: Broker | None = None
    if settings.redis_url is None:
        broker = plan_broker(layout.data_dir, secrets.broker_password, _harmless(environment))
    environment["INSTAR_APP_DATABASE_URL"] = app_url
    environment["INSTAR_REDIS_URL"] = broker.url if broker else settings.redis_url or ""
    environment["INSTAR_WORKER__NAME"] = settings.worker.name or f"local-{_tag(layout)}"
    for name in ("INSTAR_APP_DATABASE_URL", "INSTAR_WORKER__NAME"):
        install[name] = environment[name]
    services.append(
        OneShot(
            "install",
            Command(
                (sys.executable, "-m", "instar.jobs.install"), install, lambda _pid: Answer(True)
            ),
            after=needs,
            log=layout.logs / "install.log",
        )
    )
    if broker is not None:
        services.append(
            CommandService(
                "broker",
                broker.command,
                after=(),
                log=layout.logs / "broker.log",
                address=f"127.0.0.1:{broker.port} ({broker.kind})",
            )
        )
        needs = (*needs, "broker")
    services += _plan_own(settings, layout, environment, (*needs, "install"))
    return services


def _plan_own(
    settings: Settings, layout: Layout, environment: dict[str, str], needs: tuple[str, ...]
) -> list[Service]:
    """Engine, reconciler, worker and API."""
    engine, api = settings.engine, settings.api
    services: list[Service] = []
    if engine.enabled:
        services.append(
            CommandService(
                "engine",
                Command(
                    (sys.executable, "-m", "instar.engine"),
                    _harmless(environment),
                    lambda _pid: ask_http(engine.host, engine.port, "/healthz"),
                ),
                after=(),
                log=layout.logs / "engine.log",
                # Agents on a provider's model work without it; the status names it all the same.
                required=False,
                address=f"http://{engine.host}:{engine.port}",
            )
        )
    # It sees to jobs and asks no model: providers' keys are not for it.
    inner = {**_harmless(environment), **{name: environment[name] for name in _INNER}}
    for name, its in (("reconciler", inner), ("worker", environment)):
        services.append(_beating(name, layout, its, needs))
    services.append(
        CommandService(
            "api",
            Command(
                (
                    *(sys.executable, "-m", "uvicorn", "instar.api.app:app"),
                    *("--host", api.host, "--port", str(api.port), "--no-access-log"),
                    *("--timeout-graceful-shutdown", "5"),
                ),
                environment,
                lambda _pid: ask_http(api.host, api.port, "/healthz"),
            ),
            after=needs,
            log=layout.logs / "api.log",
            address=f"http://{api.host}:{api.port}",
        )
    )
    return services


def _beating(
    name: str, layout: Layout, environment: dict[str, str], needs: tuple[str, ...]
) -> CommandService:
    """A process of ours without a port: it touches a file while it lives and works."""
    beat: Path = layout.data_dir / f"{name}.beat"
    return CommandService(
        name,
        Command(
            (sys.executable, "-m", f"instar.jobs.{name}"),
            {**environment, "INSTAR_BEAT_FILE": str(beat)},
            lambda pid: ask_beat(beat, pid, now=time.time()),
            # A worker asked politely would first finish its job, for minutes, beside the next one.
            death_signal=signal.SIGKILL,
            stop_signals=((signal.SIGTERM, 12.0), (signal.SIGKILL, 5.0)),
        ),
        after=needs,
        log=layout.logs / f"{name}.log",
    )


def _harmless(environment: dict[str, str]) -> dict[str, str]:
    """The environment without keys, passwords and the addresses that hold them."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _INNER and not is_secret_variable(name)
    }


def _tag(layout: Layout) -> str:
    """A short name of this data directory, so that its workers' leases can be told from others'."""
    return hashlib.sha256(os.fsencode(layout.data_dir)).hexdigest()[:8]


def _as_app(url: str, secrets: Secrets) -> str:
    """The owner's database address with the service's own role in it."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    login = f"instar_app:{quote(secrets.app_password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{where}"))
