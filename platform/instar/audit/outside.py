"""The outside copy: one file per project, beside the database, to which checkpoints are appended.

Whoever can change the database cannot change this file by that; kept on another disk or machine it
shows that a database was set back. A crash while a line is written leaves a torn line, which is
skipped; the checkpoint follows again on a line of its own.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from instar.audit.checkpoint import Checkpoint
from instar.embedded.files import sync_folder
from instar_core.errors import StoreError

__all__ = ["OutsideCopy", "parse_lines"]

_CHUNK = 1 << 16


def parse_lines(lines: Iterable[bytes]) -> Iterator[Checkpoint]:
    """The checkpoints of a copy's lines, in their order; lines that cannot be read are skipped.

    Skipping hides nothing: a checkpoint that is missing is found by its number.
    """
    for line in lines:
        try:
            yield Checkpoint.model_validate_json(line)
        except ValidationError:
            continue


class OutsideCopy:
    """The copy of one project's checkpoints.

    Args:
        folder: Where the copies lie.
        project_id: The project; the file is named after it.
    """

    def __init__(self, folder: Path, project_id: str) -> None:
        self.path = folder / f"{project_id}.jsonl"

    def exists(self) -> bool:
        """Whether there is a copy."""
        return self.path.exists()

    def size(self) -> int:
        """How many bytes it has now; none when there is no file.

        Raises:
            StoreError: It cannot be read.
        """
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise self._trouble("read", error) from error

    def read(self, size: int | None = None) -> Iterator[Checkpoint]:
        """Its checkpoints from the first on; none when there is no file.

        Args:
            size: Bytes to read at most; a line that is longer than what is left of them counts as
                not written yet.

        Raises:
            StoreError: It cannot be read.
        """
        try:
            with self.path.open("rb") as stream:
                yield from parse_lines(stream if size is None else _within(stream, size))
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._trouble("read", error) from error

    def last(self) -> Checkpoint | None:
        """Its last checkpoint, found from the end.

        Raises:
            StoreError: It cannot be read.
        """
        try:
            with self.path.open("rb") as stream:
                return _last_of(stream)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble("read", error) from error

    def append(self, checkpoints: Iterable[Checkpoint]) -> int:
        """Appends those that follow its last one, and waits until they are on disk.

        Returns:
            How many were appended.

        Raises:
            StoreError: It cannot be written (no space, no right).
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "r+b", buffering=0) as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                with self.path.open("rb") as reader:
                    last = _last_of(reader)
                known = last.seq if last is not None else 0
                new = [one for one in checkpoints if one.seq > known]
                data = b"".join(one.line() for one in new)
                if data:
                    if _is_torn(stream.fileno()):
                        data = b"\n" + data
                    stream.write(data)
                    os.fsync(stream.fileno())
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._trouble("written", error) from error
        return len(new)

    def set_aside(self) -> Path:
        """Renames the file, so that a new copy can begin; returns its new name.

        Raises:
            StoreError: It cannot be renamed.
        """
        last = self.last()
        known = last.seq if last is not None else 0
        aside = self.path.with_name(f"{self.path.stem}.until-{known}-{int(time.time())}.jsonl")
        try:
            self.path.rename(aside)
        except OSError as error:
            raise self._trouble("renamed", error) from error
        return aside

    def _trouble(self, what: str, error: OSError) -> StoreError:
        return StoreError(
            f"the copy of the audit checkpoints {str(self.path)!r} cannot be {what}: "
            f"{error.strerror}.",
            remedy="See to the disk and the rights of this folder, or name another with "
            "INSTAR_AUDIT__DIR.",
        )


def _within(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """The lines that lie whole within the first bytes of a file."""
    for line in stream:
        size -= len(line)
        if size < 0:
            return
        yield line


def _is_torn(handle: int) -> bool:
    """Whether an open file ends in the middle of a line."""
    size = os.fstat(handle).st_size
    return size > 0 and os.pread(handle, 1, size - 1) != b"\n"


def _last_of(stream: BinaryIO) -> Checkpoint | None:
    """The last checkpoint that can be read, looking back from the end."""
    end = stream.seek(0, os.SEEK_END)
    tail = b""
    while end > 0:
        size = min(_CHUNK, end)
        end -= size
        stream.seek(end)
        tail = stream.read(size) + tail
        whole = tail if end == 0 else tail.partition(b"\n")[2]
        for line in reversed(whole.splitlines()):
            found = next(parse_lines([line]), None)
            if found is not None:
                return found
    return None
