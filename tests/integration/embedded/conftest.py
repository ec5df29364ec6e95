"""Fixtures of the supervisor's tests: short directories, and a Python for a plain user."""

from __future__ import annotations

import os
import pwd
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from instar.embedded.files import unreachable_for


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A short directory that others may enter (pytest's own is private and long)."""
    directory = Path(tempfile.mkdtemp(prefix="instar-t"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


class PlainUser(NamedTuple):
    """How to run Python as somebody who is not root."""

    python: str
    environment: dict[str, str]
    popen: dict[str, Any]


@pytest.fixture
def plain_user(short_dir: Path) -> PlainUser:
    """A user with a home of their own; skips where no interpreter is within their reach."""
    if os.geteuid() != 0:
        return PlainUser(sys.executable, dict(os.environ), {})
    # An account that every system has; PostgreSQL refuses user ids without one.
    account = pwd.getpwnam("daemon")
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        real = Path(python).resolve()
        if real.exists() and unreachable_for(account, real.parent) is None:
            break
    else:
        pytest.skip("no Python of this version that a plain user may run")
    home = short_dir / "home"
    home.mkdir()
    shutil.chown(home, account.pw_uid, account.pw_gid)
    # Another interpreter has no idea of this environment: name its places.
    places = [sysconfig.get_paths()["purelib"], *(item for item in sys.path if item)]
    stdlib = sysconfig.get_paths()["stdlib"]
    found = [
        item for item in dict.fromkeys(places) if not item.startswith((stdlib, sys.base_prefix))
    ]
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": os.pathsep.join(found)}
    identity = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}
    return PlainUser(python, environment, identity)
