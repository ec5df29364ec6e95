"""Folders: a tree of plain files on disk, read and written without following a single link."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from instar_core.errors import InvalidContent, UserError
from instar_skills.archives import ArchiveLimits
from instar_skills.paths import check_path, check_paths

__all__ = ["read_folder", "write_folder"]

_LEFT_OUT = frozenset({".git", ".hg", ".svn"})


def read_folder(
    folder: Path, limits: ArchiveLimits | None = None, *, left_out: list[str] | None = None
) -> dict[str, bytes]:
    """The files below a folder by relative path, in the order of paths.

    Args:
        folder: Where to read; the folder itself must not be a link either.
        limits: How much it may hold.
        left_out: Gets the version control folders that were passed over.

    Raises:
        InvalidContent: If a link or a special file is in it, a path is not plain, or it holds more
            than the limits allow.
        UserError: If it cannot be read.
    """
    limits = limits or ArchiveLimits()
    files: dict[str, bytes] = {}
    total = 0
    try:
        for path, name in _walk(folder, "", limits.files, left_out):
            content = _read_plain(path, name, min(limits.file_bytes, limits.total_bytes - total))
            total += len(content)
            files[name] = content
    except OSError as error:
        raise UserError(
            f"the folder {str(folder)!r} cannot be read: {error.strerror or error}.",
            remedy="Check the path and its permissions.",
        ) from error
    check_paths(files)
    return dict(sorted(files.items()))


def _walk(
    folder: Path, prefix: str, most: int, left_out: list[str] | None
) -> list[tuple[Path, str]]:
    """Path and relative name of every plain file, without recursion."""
    found: list[tuple[Path, str]] = []
    waiting = [(folder, prefix)]
    seen = 0
    while waiting:
        here, before = waiting.pop()
        if stat.S_ISLNK(here.lstat().st_mode):
            raise _special(str(here))
        with os.scandir(here) as entries:
            for entry in entries:
                seen += 1
                if seen > most:
                    raise InvalidContent(f"the folder holds more than {most} files.")
                name = before + entry.name
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    if entry.name in _LEFT_OUT:
                        if left_out is not None:
                            left_out.append(name)
                        continue
                    check_path(name)
                    waiting.append((Path(entry.path), name + "/"))
                elif stat.S_ISREG(mode):
                    found.append((Path(entry.path), name))
                else:
                    raise _special(name)
    return found


def _special(name: str) -> InvalidContent:
    return InvalidContent(
        f"{name!r} is a link or a special file; links are never followed.",
        remedy="Put a plain copy of the file there.",
    )


def _read_plain(path: Path, name: str, most: int) -> bytes:
    """The bytes of a plain file; it is looked at again once it is open, in case it was swapped."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _special(name)
        content = opened.read(most + 1)
    if len(content) > most:
        raise InvalidContent(f"{name!r} is larger than what the limits leave ({most} bytes).")
    return content


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files into a folder that is new or empty; modes are 0644 and 0755, whatever they were.

    Raises:
        UserError: If the folder is a link, is not empty, or cannot be written. What was there stays
            as it was.
        InvalidContent: If a path is not plain, or two clash.
    """
    check_paths(files)
    try:
        if folder.is_symlink() or (folder.exists() and any(folder.iterdir())):
            raise UserError(
                f"{str(folder)!r} is a link or is not empty; nothing was written.",
                remedy="Name a new folder.",
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted(files):
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(place, flags, 0o644), "wb") as opened:
                opened.write(files[name])
    except OSError as error:
        raise UserError(
            f"the folder {str(folder)!r} cannot be written: {error.strerror or error}.",
            remedy="Check the path, its permissions and the free space.",
        ) from error
