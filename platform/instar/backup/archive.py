"""Archive: one tar in one age file, written and read as a stream, whole under its name or absent.

``manifest.json`` comes first, then the files, then the dump in pieces, then ``seal.json``. With a
passphrase the age file lies in a small outer tar beside its key, which the passphrase opens: age's
own passphrase mode would need the whole backup in memory here. ``age`` and ``tar`` alone open both.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from instar.backup.age import load_age
from instar.backup.protection import Protection, Unlock, recipients_of
from instar.embedded.files import sync_folder
from instar_core.errors import PrerequisiteError, UserError

__all__ = ["ArchiveWriter", "Entry", "read_archive", "write_archive"]

AUDIT = "audit"
MANIFEST, SEAL, DUMP = "manifest.json", "seal.json", "database.dump"
_KEY, _BODY = "identity.age", "backup.tar.age"
_PIECE = 4 * 2**20
_BLOCK = 512
_AGE = b"age-encryption.org/"


class Entry(NamedTuple):
    """One entry of an archive, to be read before the next one is asked for."""

    name: str
    size: int
    content: IO[bytes]


class ArchiveWriter:
    """Adds entries to an open archive."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def add(self, name: str, data: bytes) -> None:
        """Adds one entry."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o600
        self._tar.addfile(info, io.BytesIO(data))

    def add_pieces(self, name: str, stream: IO[bytes]) -> tuple[int, str, int]:
        """Adds a stream of unknown length as ``name.000000``, ``name.000001`` …

        Returns:
            Its bytes, its sha256, and the number of pieces.
        """
        digest, total, number = hashlib.sha256(), 0, 0
        while piece := stream.read(_PIECE):
            self.add(f"{name}.{number:06}", piece)
            digest.update(piece)
            total, number = total + len(piece), number + 1
        return total, digest.hexdigest(), number


@contextmanager
def write_archive(path: Path, protection: Protection) -> Iterator[ArchiveWriter]:
    """An archive that takes its name when it is complete and on disk, and leaves nothing otherwise.

    Raises:
        UserError: There is a file of that name, no protection was chosen, or a recipient is wrong.
        PrerequisiteError: It cannot be written there.
    """
    kind = protection.kind
    recipients = recipients_of(protection.recipients)
    if os.path.lexists(path):  # a link that leads nowhere is in the way as well
        raise UserError(
            f"{str(path)!r} exists already; a backup replaces no file.",
            remedy="Name another file, or remove that one first.",
        )
    partial = path.with_name(f".{path.name}.partial")
    stream = _open_partial(partial)
    try:
        if kind == "none":
            with tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar:
                yield ArchiveWriter(tar)
        elif kind == "recipients":
            with _encrypting(stream, recipients) as tar:
                yield ArchiveWriter(tar)
        else:
            with _locking(stream, protection.passphrase) as tar:
                yield ArchiveWriter(tar)
        stream.flush()
        os.fsync(stream.fileno())
        # link, not rename: it fails where somebody made a file of that name meanwhile.
        os.link(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        raise PrerequisiteError(
            f"{str(path)!r} cannot be written: {error.strerror or error}.",
            remedy="Name a file in a folder that exists, that this user may write, and that has "
            "room.",
        ) from error
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
        stream.close()


def _open_partial(partial: Path) -> IO[bytes]:
    """The unfinished file, held alone; what a killed backup left in it is cut off."""
    try:
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise PrerequisiteError(
            f"{str(partial.parent)!r} cannot be written: {error.strerror}.",
            remedy="Name a file in a folder that exists and that this user may write.",
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise PrerequisiteError(
            f"another backup is being written to {str(partial)!r}.",
            remedy="Wait for it, or name another file.",
        ) from error
    os.ftruncate(handle, 0)
    os.fchmod(handle, 0o600)
    return os.fdopen(handle, "w+b")


@contextmanager
def _encrypting(stream: IO[bytes], recipients: list[Any]) -> Iterator[tarfile.TarFile]:
    """A tar whose bytes pass through age on their way to the stream."""
    pyrage = load_age()

    with (
        _through(lambda source: pyrage.encrypt_io(source, stream, recipients)) as sink,
        tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        yield tar


@contextmanager
def _locking(stream: IO[bytes], passphrase: str) -> Iterator[tarfile.TarFile]:
    """The same for a key that only the passphrase opens; the key lies before the age file."""
    pyrage = load_age()

    identity = pyrage.x25519.Identity.generate()
    locked = pyrage.passphrase.encrypt(str(identity).encode("ascii"), passphrase)
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as outer:
        info = tarfile.TarInfo(_KEY)
        info.size, info.mode = len(locked), 0o600
        outer.addfile(info, io.BytesIO(locked))
        head = stream.tell()
        stream.write(bytes(_BLOCK))
        with _encrypting(stream, [identity.to_public()]) as tar:
            yield tar
        # The length is known now: its header goes where the gap was left.
        end = stream.tell()
        info = tarfile.TarInfo(_BODY)
        info.size, info.mode = end - head - _BLOCK, 0o600
        stream.seek(head)
        stream.write(info.tobuf(tarfile.GNU_FORMAT))
        stream.seek(end)
        stream.write(bytes(-info.size % _BLOCK))


@contextmanager
def _through(work: Callable[[IO[bytes]], Any]) -> Iterator[IO[bytes]]:
    """A stream to write to, whose other end ``work`` reads in a thread of its own."""
    out, into = os.pipe()
    source, sink = os.fdopen(out, "rb"), os.fdopen(into, "wb")
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work(source)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            failed.append(error)
        finally:
            source.close()  # a writer that still writes learns of it

    thread = threading.Thread(target=run, name="instar-backup", daemon=True)
    thread.start()
    try:
        yield sink
        sink.close()
    except BrokenPipeError:
        if not failed:
            raise
    finally:
        with suppress(BrokenPipeError):
            sink.close()
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def read_archive(path: Path, unlock: Unlock) -> Iterator[Iterator[Entry]]:
    """The entries of an archive, in order; nothing of it is written to disk.

    Raises:
        UserError: There is no such file, it is no backup, cut off or changed, or is not opened by
            what was given.
    """
    try:
        stream = path.open("rb")
    except OSError as error:
        raise UserError(
            f"{str(path)!r} cannot be read: {error.strerror}.", remedy="Name a backup file."
        ) from error
    with stream:
        start = stream.read(_BLOCK)
        stream.seek(0)
        if start.startswith(_AGE):
            body: IO[bytes] = stream
            identities = _given(path, unlock)
        elif start.startswith(_KEY.encode("ascii") + b"\0"):
            body, identities = _unlocked(path, stream, unlock)
        elif start.startswith(MANIFEST.encode("ascii") + b"\0"):
            with _reading(path):
                yield _entries(stream)
            return
        else:
            raise UserError(
                f"{str(path)!r} is not a backup of Instar.",
                remedy="Name a file that `instar backup` wrote.",
            )
        with _reading(path), _decrypting(body, identities) as clear:
            yield _entries(clear)


def _given(path: Path, unlock: Unlock) -> list[Any]:
    pyrage = load_age()

    if not unlock.identities:
        raise UserError(
            f"{str(path)!r} is encrypted to a recipient; an age identity opens it.",
            remedy="Name the key file with --identity FILE.",
        )
    return [pyrage.x25519.Identity.from_str(one) for one in unlock.identities]


def _unlocked(path: Path, stream: IO[bytes], unlock: Unlock) -> tuple[IO[bytes], list[Any]]:
    """The age file inside the outer tar, and the key that the passphrase opens."""
    pyrage = load_age()

    if not unlock.passphrase:
        raise UserError(
            f"{str(path)!r} is encrypted with a passphrase.",
            remedy="Name the file that holds it with --passphrase-file FILE.",
        )
    try:
        outer = tarfile.open(fileobj=stream, mode="r:")  # noqa: SIM115 - closed with the stream
        locked, body = outer.extractfile(_KEY), outer.extractfile(_BODY)
        assert locked is not None
        assert body is not None, "regular entries have content"
        key = pyrage.passphrase.decrypt(locked.read(), unlock.passphrase)
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise _broken(path, error) from error
    except pyrage.DecryptError as error:
        raise UserError(
            f"the passphrase does not open {str(path)!r}.", remedy="Name the right one."
        ) from error
    return body, [pyrage.x25519.Identity.from_str(key.decode("ascii"))]


@contextmanager
def _decrypting(body: IO[bytes], identities: list[Any]) -> Iterator[IO[bytes]]:
    """What age makes of the stream, piece by piece: only bytes whose seal was checked come out."""
    pyrage = load_age()

    out, into = os.pipe()
    clear, sink = os.fdopen(out, "rb"), os.fdopen(into, "wb")
    failed: list[BaseException] = []

    def run() -> None:
        try:
            pyrage.decrypt_io(body, sink, identities)
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            failed.append(error)
        finally:
            with suppress(BrokenPipeError):
                sink.close()

    thread = threading.Thread(target=run, name="instar-restore", daemon=True)
    thread.start()
    try:
        yield clear
        # To the very end: the last block of age is what tells a cut-off file.
        while clear.read(_PIECE):
            pass
    except Exception as error:
        clear.close()
        thread.join()
        if failed and "Broken pipe" not in str(failed[0]):
            raise failed[0] from error  # the cause; what the reader met is its consequence
        raise
    finally:
        clear.close()
        thread.join()
    if failed:
        raise failed[0]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns what age and tar say about a broken file into words."""
    pyrage = load_age()

    try:
        yield
    except pyrage.DecryptError as error:
        if "No matching keys" in str(error):
            raise UserError(
                f"{str(path)!r} is not encrypted to this identity.",
                remedy="Name the key file of its recipient with --identity FILE.",
            ) from error
        raise _broken(path, error) from error
    except (tarfile.TarError, EOFError) as error:
        raise _broken(path, error) from error
    except OSError as error:
        # How pyrage reports a block of the stream that was changed.
        if "decryption" not in str(error) and "fill whole buffer" not in str(error):
            raise
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> UserError:
    return UserError(
        f"{str(path)!r} is damaged or cut off ({str(error) or type(error).__name__}). Nothing of "
        "it was taken over.",
        remedy="Use another copy of the backup.",
    )


def _entries(stream: IO[bytes]) -> Iterator[Entry]:
    with tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is None:
                continue
            yield Entry(member.name, member.size, content)
