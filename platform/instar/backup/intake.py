"""Intake: the entries of an archive, each held against what the manifest says of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import ValidationError

from instar.audit.outside import parse_lines
from instar.backup.archive import AUDIT, DUMP, SEAL, Entry
from instar.backup.manifest import FileEntry, Manifest, Seal
from instar.embedded.files import private_write
from instar.embedded.layout import Marker
from instar.store.snapshot import TableContent
from instar_core.errors import UserError

__all__ = ["Intake", "compare_tables"]

_PIECE = 2**20


def damaged(what: str) -> UserError:
    """The error for a backup that is not what it was."""
    return UserError(
        f"the backup is damaged: {what}. It was not restored.",
        remedy="Use another copy of the backup.",
    )


class Intake:
    """Takes the entries after the manifest.

    Args:
        manifest: What they must be.
        audit: Folder for the audit chain's copies; ``None`` checks without writing.
    """

    def __init__(self, manifest: Manifest, audit: Path | None) -> None:
        self._files = {entry.path: entry for entry in manifest.files}
        self._audit = audit
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._pieces = 0
        self._seal: Seal | None = None
        self.marker: Marker | None = None
        self.kept: list[str] = []

    def take(self, entries: Iterator[Entry], dump: IO[bytes] | None = None) -> None:
        """Takes all of them; the dump goes to the stream, the audit copies to their folder.

        Raises:
            UserError: One is missing, unknown, or other than it was.
        """
        for entry in entries:
            if entry.name == SEAL:
                self._seal = _read_seal(entry.content.read())
            elif entry.name == f"{DUMP}.{self._pieces:06}":
                self._take_piece(entry, dump)
            else:
                self._take_file(entry)
        seal = Seal(
            dump_bytes=self._bytes, dump_sha256=self._digest.hexdigest(), pieces=self._pieces
        )
        if self._files:
            raise damaged(f"the file {min(self._files)!r} is missing")
        if self._seal is None:
            raise damaged("it has no seal at its end")
        if self._seal != seal:
            raise damaged("the dump of the database is not what was sealed")

    def _take_piece(self, entry: Entry, dump: IO[bytes] | None) -> None:
        while piece := entry.content.read(_PIECE):
            self._digest.update(piece)
            self._bytes += len(piece)
            if dump is not None:
                dump.write(piece)
        self._pieces += 1

    def _take_file(self, entry: Entry) -> None:
        known = self._files.pop(entry.name, None)
        if known is None:
            raise damaged(f"{entry.name!r} is not in the manifest")
        data = entry.content.read()
        sha256 = hashlib.sha256(data).hexdigest()
        if FileEntry(path=entry.name, bytes=len(data), sha256=sha256) != known:
            raise damaged(f"the file {entry.name!r} is other than it was")
        parts = PurePosixPath(entry.name).parts
        if entry.name == "instar.json":
            self.marker = _read_marker(data)
        elif parts[0] == AUDIT and self._audit is not None:
            if len(parts) < 2 or ".." in parts or PurePosixPath(entry.name).is_absolute():
                raise damaged(f"{entry.name!r} leads out of its folder")
            self._keep(self._audit.joinpath(*parts[1:]), data)

    def _keep(self, place: Path, data: bytes) -> None:
        """Writes a copy into the audit folder, unless one is there: it may know more."""
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            private_write(place, data.decode("utf-8"), durable=False)
            return
        if place.read_bytes() == data:
            return
        newest = max((one.seq for one in parse_lines(place.read_bytes().splitlines())), default=0)
        ours = max((one.seq for one in parse_lines(data.splitlines())), default=0)
        if newest > ours:
            self.kept.append(
                f"{str(place)!r} is newer than the backup: it ends with checkpoint {newest}, the "
                f"backup with {ours}. It was left as it is, and `instar audit verify` will name "
                "the difference until you accept it: `instar audit accept-restore --reason …`."
            )


def _read_seal(data: bytes) -> Seal:
    try:
        return Seal.model_validate_json(data)
    except ValidationError as error:
        raise damaged("its seal cannot be read") from error


def _read_marker(data: bytes) -> Marker | None:
    try:
        return Marker.model_validate_json(data)
    except ValidationError:
        return None  # only its date is of use, and that of the restore does as well


def compare_tables(wanted: tuple[TableContent, ...], found: list[TableContent]) -> None:
    """Holds every table against what the manifest says of it.

    Raises:
        UserError: One differs; names it, and how.
    """
    before, after = ({table.name: table for table in one} for one in (wanted, found))
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        if old is None or new is None:
            what = f"the table {name!r} is {'new' if old is None else 'missing'}"
        elif old.rows != new.rows:
            what = f"the table {name!r} has {new.rows} rows instead of {old.rows}"
        else:
            what = f"a row of the table {name!r} is other than it was"
        raise damaged(what)
