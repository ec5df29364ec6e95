"""Files and directories of the embedded services: private files, short socket paths, disk space."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pwd
import shutil
import stat
import sys
import tempfile
from pathlib import Path

from instar_core.errors import PrerequisiteError

__all__ = [
    "private_write",
    "require_free_space",
    "rotate_log",
    "short_runtime_dir",
    "sync_filesystem",
    "sync_folder",
    "unreachable_for",
]

_LONGEST_SOCKET_DIR = 85
"""A socket's path must stay under 104 bytes (macOS; 108 on Linux), the file name included."""


def private_write(path: Path, text: str, *, durable: bool = True) -> None:
    """Writes a file that only its owner may read, whole or not at all.

    ``durable`` also waits until it is on disk.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    partial.replace(path)


def require_free_space(directory: Path, wanted: int) -> None:
    """Checks that the file system of an existing directory has this many bytes free.

    Raises:
        PrerequisiteError: It has not; names what is free and what is needed.
    """
    free = shutil.disk_usage(directory).free
    if free < wanted:
        raise PrerequisiteError(
            f"only {free // 2**20} MiB are free on the disk of {str(directory)!r}; "
            f"{wanted // 2**20} MiB are needed.",
            remedy="Free disk space or choose another directory with INSTAR_DATA_DIR.",
        )


def unreachable_for(account: pwd.struct_passwd, path: Path) -> Path | None:
    """The first directory on the way to ``path`` (itself included) that a user cannot enter.

    Judged by mode bits alone, as for a user without supplementary groups.
    """
    real = Path(os.path.realpath(path))
    for folder in [*reversed(real.parents), real]:
        info = folder.stat()
        if info.st_uid == account.pw_uid:
            allowed = info.st_mode & stat.S_IXUSR
        elif info.st_gid == account.pw_gid:
            allowed = info.st_mode & stat.S_IXGRP
        else:
            allowed = info.st_mode & stat.S_IXOTH
        if not allowed:
            return folder
    return None


def short_runtime_dir(data_dir: Path, name: str) -> Path:
    """A directory for sockets: inside the data directory, or a short private one when that is long.

    The same data directory gives the same answer, so that clients find the socket again.

    Raises:
        PrerequisiteError: The short directory exists but belongs to somebody else.
    """
    inside = data_dir / "run"
    if len(os.fsencode(inside)) <= _LONGEST_SOCKET_DIR:
        return inside
    tag = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    short = Path(tempfile.gettempdir()) / f"instar-{name}-{os.geteuid()}-{tag}"
    if len(os.fsencode(short)) > _LONGEST_SOCKET_DIR:
        short = Path("/tmp") / short.name
    short.mkdir(mode=0o700, exist_ok=True)
    info = short.lstat()
    ours = {os.geteuid()}
    if os.geteuid() == 0:
        ours.add(pwd.getpwnam("nobody").pw_uid)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid not in ours:
        raise PrerequisiteError(
            f"{str(short)!r} belongs to another user.",
            remedy="Choose a data directory with a shorter path (INSTAR_DATA_DIR).",
        )
    return short


def sync_filesystem(path: Path) -> None:
    """Flushes the file system that holds ``path`` to disk (all of them where syncfs is missing)."""
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        handle = os.open(path, os.O_RDONLY)
        try:
            if libc.syncfs(handle) == 0:
                return
        finally:
            os.close(handle)
    os.sync()


def sync_folder(folder: Path) -> None:
    """Waits until a folder's entries are on disk: without it a new or renamed file may be lost."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rotate_log(path: Path, *, max_bytes: int, keep: int) -> bool:
    """Rotates a log that a running process appends to, once it is longer than ``max_bytes``.

    The content is copied and the file cut: writers opened it for appending, so they go on in it.

    Returns:
        Whether it was rotated.
    """
    try:
        if path.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    for number in range(keep - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    if keep > 0:
        shutil.copyfile(path, path.with_name(f"{path.name}.1"))
        os.chmod(path.with_name(f"{path.name}.1"), 0o600)
    os.truncate(path, 0)
    return True
