"""The data directory: what lies where, the secrets of an installation, and its marker.

The marker says which version wrote the directory, so that an older Instar refuses it, and that data
existed, so that an empty database is never taken for a new installation.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from pydantic import Field, ValidationError

from instar import __version__
from instar.embedded.files import private_write
from instar_core.base import Frozen
from instar_core.errors import PrerequisiteError

__all__ = ["LAYOUT_FORMAT", "Layout", "Marker", "Secrets"]

LAYOUT_FORMAT = 1
"""Raised whenever an older Instar could not read what a newer one writes into the directory."""


_OWN = frozenset({"models", "logs", "installation.json"})
"""What other parts may have put into the directory before the first start."""


class Marker(Frozen):
    """``instar.json``: which version wrote this data directory, and with which database."""

    format: int = LAYOUT_FORMAT
    version: str = __version__
    installed_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    database: str = Field(default="", description="'embedded' or 'external'; empty before data")
    schema_revision: str = ""


class Secrets(Frozen):
    """What the first start makes up; kept in one 0600 file and never printed."""

    app_password: str = Field(default_factory=lambda: secrets.token_urlsafe(24))
    broker_password: str = Field(default_factory=lambda: secrets.token_urlsafe(24))


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths inside one data directory."""

    data_dir: Path

    @property
    def marker(self) -> Path:
        """``instar.json``, the marker."""
        return self.data_dir / "instar.json"

    @property
    def postgres(self) -> Path:
        """Directory of the embedded PostgreSQL."""
        return self.data_dir / "postgres"

    @property
    def restoring(self) -> Path:
        """``restoring.json``: a restore began here and has not ended."""
        return self.data_dir / "restoring.json"

    @property
    def logs(self) -> Path:
        """Directory of the services' logs."""
        return self.data_dir / "logs"

    @property
    def status(self) -> Path:
        """``status.json``: who runs, where, and how they are."""
        return self.data_dir / "status.json"

    @property
    def lock(self) -> Path:
        """Lock of the supervisor."""
        return self.data_dir / "supervisor.lock"

    @property
    def secrets(self) -> Path:
        """The secrets file, 0600."""
        return self.data_dir / "secrets.json"

    @property
    def api_key(self) -> Path:
        """The API key for the command line on this machine, 0600."""
        return self.data_dir / "api.key"

    @property
    def audit_key(self) -> Path:
        """The private key that signs audit checkpoints, 0600; backups leave it out."""
        return self.data_dir / "audit_signing.key"

    @property
    def audit(self) -> Path:
        """Directory of the checkpoints' copies outside the database, and of the public keys."""
        return self.data_dir / "audit"

    @property
    def socket_dir(self) -> Path:
        """Directory of PostgreSQL's socket."""
        from instar.embedded.files import short_runtime_dir

        return short_runtime_dir(self.postgres, "pg")

    def prepare(self) -> None:
        """Makes the directory, private to this user (enterable by ``nobody`` when root).

        Raises:
            PrerequisiteError: It cannot be made or written, or holds something else than Instar's.
        """
        self.refuse_unfinished()
        try:
            known = not self.data_dir.exists() or self.marker.exists()
            self.data_dir.mkdir(parents=True, exist_ok=True)
            foreign = [item.name for item in self.data_dir.iterdir() if item.name not in _OWN]
            if foreign and not known:
                raise PrerequisiteError(
                    f"{str(self.data_dir)!r} holds other files ({foreign[0]!r}) and no "
                    "'instar.json'.",
                    remedy="Name an empty or new directory with INSTAR_DATA_DIR.",
                )
            self.make()
            if not self.marker.exists():
                self.write_marker(Marker())
        except OSError as error:
            raise PrerequisiteError(
                f"the data directory {str(self.data_dir)!r} cannot be written: {error.strerror}.",
                remedy="Give this user the right to write it, or name another with "
                "INSTAR_DATA_DIR.",
            ) from error

    def make(self) -> None:
        """Makes the directory as it must be, and sees that it can be written.

        Raises:
            OSError: It cannot.
        """
        self.data_dir.mkdir(parents=True, exist_ok=True)
        os.chmod(self.data_dir, 0o711 if os.geteuid() == 0 else 0o700)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        probe = self.data_dir / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()

    def refuse_unfinished(self) -> None:
        """Refuses a directory in which a restore began and did not end.

        Raises:
            PrerequisiteError: It is such a directory.
        """
        if self.restoring.exists():
            raise PrerequisiteError(
                f"a restore into {str(self.data_dir)!r} began and did not end; what it holds is "
                "not whole.",
                remedy="Run `instar restore FILE` again, which starts over, or name another "
                "directory with INSTAR_DATA_DIR.",
            )

    def read_marker(self) -> Marker:
        """The marker, checked: a directory of a newer Instar is refused.

        Raises:
            PrerequisiteError: It was written by a newer version, or cannot be read.
        """
        try:
            raw = json.loads(self.marker.read_text(encoding="utf-8"))
            wrote = int(raw.get("format", 0))
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise PrerequisiteError(
                f"{str(self.marker)!r} cannot be read: {error}.",
                remedy="Restore it from a backup, or name another directory with INSTAR_DATA_DIR.",
            ) from error
        if wrote > LAYOUT_FORMAT:
            raise PrerequisiteError(
                f"the data directory {str(self.data_dir)!r} was written by Instar "
                f"{raw.get('version', '?')} (format {wrote}); this is Instar {__version__} "
                f"(format {LAYOUT_FORMAT}). Nothing was changed.",
                remedy=f"Install Instar {raw.get('version', '?')} or later, or name another "
                "directory with INSTAR_DATA_DIR.",
            )
        try:
            return Marker.model_validate(raw)
        except ValidationError as error:
            raise PrerequisiteError(
                f"{str(self.marker)!r} is damaged: {error.error_count()} wrong fields.",
                remedy="Restore it from a backup, or name another directory with INSTAR_DATA_DIR.",
            ) from error

    def write_marker(self, marker: Marker) -> None:
        """Writes the marker, whole or not at all."""
        private_write(self.marker, marker.model_dump_json(indent=1) + "\n")

    def read_secrets(self) -> Secrets:
        """The installation's secrets.

        Raises:
            PrerequisiteError: There are none (never started), or another user owns them.
        """
        try:
            return Secrets.model_validate_json(self.secrets.read_text(encoding="utf-8"))
        except (OSError, ValidationError) as error:
            raise PrerequisiteError(
                f"cannot read {str(self.secrets)!r}: {type(error).__name__}.",
                remedy="Start the service first (`instar up`), as the user who owns it.",
            ) from error

    def ensure_secrets(self) -> Secrets:
        """The secrets, made at the first start.

        Raises:
            PrerequisiteError: The file is gone or damaged though data exists under its passwords.
        """
        if self.secrets.exists():
            return self.read_secrets()
        if self.read_marker().database:
            raise PrerequisiteError(
                f"{str(self.secrets)!r} is missing, but this installation has data.",
                remedy="Restore the file from a backup; without it the database cannot be opened.",
            )
        made = Secrets()
        private_write(self.secrets, made.model_dump_json(indent=1) + "\n")
        return made

    def app_database_url(self) -> str:
        """Address of the embedded database for the service's own role (row-level security on)."""
        host = quote(str(self.socket_dir), safe="")
        password = quote(self.read_secrets().app_password, safe="")
        return f"postgresql://instar_app:{password}@/instar?host={host}"
