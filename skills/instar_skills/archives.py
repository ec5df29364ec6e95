"""Archives: tar and zip files that others made, read whole into memory or refused whole.

Nothing is ever extracted by a library function: only plain files come out, under checked paths, and
every limit counts bytes that were really read, never what a header says.
"""

from __future__ import annotations

import gzip
import io
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Protocol, cast

from instar_core.base import short
from instar_core.errors import InvalidContent
from instar_skills.paths import check_path, check_paths

__all__ = ["ArchiveLimits", "TarWriter", "pack_tar", "read_archive", "read_tar", "read_zip"]

_CHUNK = 64 * 1024
_BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, OSError)
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
_SET_ID = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How much an archive may hold.

    Attributes:
        files: Number of files and folders.
        total_bytes: Bytes of all files together, headers of a tar included.
        file_bytes: Bytes of one file.
        ratio: Bytes that come out for each byte of the archive, once more than a megabyte came out.
    """

    files: int = 20_000
    total_bytes: int = 512 * 2**20
    file_bytes: int = 128 * 2**20
    ratio: int = 300


class _Source(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; none at the end."""
        ...


class _Meter:
    """Counts what really came out of an archive, over all its files, and stops at the limits."""

    def __init__(self, limits: ArchiveLimits, packed: int) -> None:
        self.limits = limits
        self.packed = packed
        self.total = 0
        self.entries = 0

    def entry(self) -> None:
        """Counts one file or folder.

        Raises:
            InvalidContent: If there are too many.
        """
        self.entries += 1
        if self.entries > self.limits.files:
            raise _too_much(f"more than {self.limits.files} files")

    def bytes(self, count: int) -> None:
        """Counts bytes that came out.

        Raises:
            InvalidContent: If they are too many, in all or for the size of the archive.
        """
        self.total += count
        if self.total > self.limits.total_bytes:
            raise _too_much(f"more than {self.limits.total_bytes} bytes")
        if self.total > 2**20 and self.total > self.limits.ratio * max(self.packed, 1):
            raise _too_much(
                f"more than {self.limits.ratio} bytes for each byte of the archive, as only a "
                "decompression bomb does"
            )


def _too_much(what: str) -> InvalidContent:
    return InvalidContent(
        f"the archive was refused: it holds {what}.", remedy="Send less at a time."
    )


def _refused(name: str, why: str) -> InvalidContent:
    return InvalidContent(
        f"the archive was refused: {short(repr(name), 120)} {why}.",
        remedy="Pack plain files and folders only.",
    )


def read_archive(data: bytes, limits: ArchiveLimits | None = None) -> dict[str, bytes]:
    """The files of a zip, tar or tar.gz archive by path; which of them it is, its first bytes say.

    Raises:
        InvalidContent: If it is none of them, is damaged, or holds anything but plain files within
            the limits under plain paths. Nothing of it is returned then.
    """
    if data[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return read_zip(data, limits)
    return read_tar(data, limits)


def read_tar(data: bytes, limits: ArchiveLimits | None = None) -> dict[str, bytes]:
    """The files of a tar or tar.gz archive by path.

    Raises:
        InvalidContent: As :func:`read_archive`.
    """
    meter = _Meter(limits or ArchiveLimits(), len(data))
    raw: _Source = io.BytesIO(data)
    if data[:2] == b"\x1f\x8b":
        raw = gzip.GzipFile(fileobj=io.BytesIO(data))
    files: dict[str, bytes] = {}
    names: list[str] = []
    try:
        # As a stream: what a header claims is not believed before that many bytes were read.
        metered = cast("IO[bytes]", _Metered(raw, meter))
        with tarfile.open(fileobj=metered, mode="r|") as archive:
            for member in archive:
                meter.entry()
                name = _tar_name(member)
                if member.isdir():
                    continue
                names.append(name)
                if name in files:
                    raise _refused(name, "is in it twice")
                files[name] = _read_member(archive, member, meter.limits)
        # To the very end: there the checksum is, and what was cut off is missed.
        while metered.read(_CHUNK):
            pass
    except _BROKEN as error:
        raise _damaged(error) from error
    check_paths(names)
    return files


class _Metered:
    """A stream whose bytes are counted, handed out in small pieces."""

    def __init__(self, source: _Source, meter: _Meter) -> None:
        self._source = source
        self._meter = meter

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes, as far as the limits allow."""
        parts: list[bytes] = []
        while size > 0:
            part = self._source.read(min(size, _CHUNK))
            if not part:
                break
            self._meter.bytes(len(part))
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _tar_name(member: tarfile.TarInfo) -> str:
    """The checked name of an entry that is a plain file or a folder."""
    if member.type not in _PLAIN or member.sparse is not None:
        raise _refused(member.name, "is a link, a device or another special file")
    if member.mode & _SET_ID:
        raise _refused(member.name, "carries a set-user, set-group or sticky bit")
    if member.isdir() and member.name in (".", "./"):
        return "."
    # What `tar -C folder .` writes before each name says nothing.
    return check_path(member.name.removeprefix("./"))


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, limits: ArchiveLimits) -> bytes:
    opened = archive.extractfile(member)
    if opened is None:
        raise _refused(member.name, "is no plain file")
    content = _read_all(opened, member.name, limits.file_bytes)
    if len(content) != member.size:
        raise _refused(member.name, "is cut short")
    return content


def _read_all(source: _Source, name: str, most: int, meter: _Meter | None = None) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := source.read(_CHUNK):
        size += len(part)
        if meter is not None:
            meter.bytes(len(part))
        if size > most:
            raise _refused(name, f"has more than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def _damaged(error: BaseException) -> InvalidContent:
    return InvalidContent(
        f"this is no readable tar, tar.gz or zip archive ({short(str(error), 100)}).",
        remedy="See that it was transferred whole.",
    )


def read_zip(data: bytes, limits: ArchiveLimits | None = None) -> dict[str, bytes]:
    """The files of a zip archive by path.

    Raises:
        InvalidContent: As :func:`read_archive`; also for encrypted, overlapping or doubled entries.
    """
    meter = _Meter(limits or ArchiveLimits(), len(data))
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            for entry in entries:
                meter.entry()
                _check_entry(entry)
            names = [entry.orig_filename for entry in entries if not entry.is_dir()]
            check_paths(names)
            _check_overlap(entries, archive.start_dir)
            for entry in entries:
                if not entry.is_dir():
                    with archive.open(entry) as opened:
                        files[entry.orig_filename] = _read_all(
                            opened, entry.orig_filename, meter.limits.file_bytes, meter
                        )
    except (*_BROKEN, RuntimeError, NotImplementedError, ValueError) as error:
        raise _damaged(error) from error
    return files


def _check_entry(entry: zipfile.ZipInfo) -> None:
    name = entry.orig_filename
    check_path(name.removesuffix("/"))
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refused(name, "is a link, a device or another special file")
    if mode & _SET_ID:
        raise _refused(name, "carries a set-user, set-group or sticky bit")
    if entry.flag_bits & 0x1:
        raise _refused(name, "is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _refused(name, "is packed in a way that is not read here")


def _check_overlap(entries: Iterable[zipfile.ZipInfo], end_of_data: int) -> None:
    """Refuses entries that share bytes: a small archive could unfold one block many times."""
    ordered = sorted(entries, key=lambda entry: entry.header_offset)
    ends = [entry.header_offset for entry in ordered[1:]] + [end_of_data]
    for entry, end in zip(ordered, ends, strict=True):
        least = entry.header_offset + 30 + len(entry.orig_filename.encode()) + entry.compress_size
        if least > end:
            raise _refused(entry.orig_filename, "shares its bytes with another entry")


class TarWriter:
    """Writes a tar.gz whose bytes depend on paths and contents alone, file after file.

    Args:
        target: Where the bytes go; left open.
    """

    def __init__(self, target: IO[bytes]) -> None:
        # No moment and no file name in the header of gzip, one fixed level.
        self._packed = gzip.GzipFile(
            filename="", mode="wb", fileobj=target, mtime=0, compresslevel=6
        )
        self._archive = tarfile.open(fileobj=self._packed, mode="w|", format=tarfile.PAX_FORMAT)

    def add(self, path: str, content: bytes) -> None:
        """Adds one file, mode 0644, owner and moment zero."""
        member = tarfile.TarInfo(check_path(path))
        member.size = len(content)
        self._archive.addfile(member, io.BytesIO(content))

    def close(self) -> None:
        """Writes the end."""
        self._archive.close()
        self._packed.close()


def pack_tar(files: Mapping[str, bytes]) -> bytes:
    """The files as a tar.gz; equal files give equal bytes.

    Raises:
        InvalidContent: If their paths are not plain, or clash.
    """
    target = io.BytesIO()
    writer = TarWriter(target)
    for path in sorted(check_paths(files)):
        writer.add(path, files[path])
    writer.close()
    return target.getvalue()
