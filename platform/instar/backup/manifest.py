"""Manifest: what a backup says of itself, first in the file, and the seal that ends it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Literal

from pydantic import Field, ValidationError

from instar.store.snapshot import TableContent
from instar_core.base import Frozen
from instar_core.errors import UserError

__all__ = ["FORMAT", "FileEntry", "KeyFile", "Manifest", "Seal", "parse_manifest"]

FORMAT = 1
"""Raised whenever an older Instar could not restore what a newer one writes."""


class KeyFile(Frozen):
    """A key file that is left out, told by a fingerprint that does not give it away."""

    name: str
    fingerprint: str = Field(description="the key's id; a keyring has one entry per key")


class FileEntry(Frozen):
    """A file of the data directory that is in the backup."""

    path: str
    bytes: int
    sha256: str


class Manifest(Frozen):
    """Everything a restore has to check."""

    format: int = FORMAT
    id: str
    instar: str
    schema_revision: str
    installation: str
    taken_at: datetime
    database: Literal["embedded", "external"]
    server: int = Field(description="major version of the database server")
    dumper: int = Field(description="major version of the pg_dump that wrote the dump")
    tables: tuple[TableContent, ...]
    files: tuple[FileEntry, ...] = ()
    keys: tuple[KeyFile, ...] = ()
    secrets: tuple[str, ...] = Field(
        default=(), description="project/name of each secret; none can be read without its key"
    )
    left_out: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Rows of all tables together."""
        return sum(table.rows for table in self.tables)


class Seal(Frozen):
    """The last entry: what the dump is, known only once it was written."""

    dump_bytes: int
    dump_sha256: str
    pieces: int


def parse_manifest(data: bytes) -> Manifest:
    """The manifest, checked.

    Raises:
        UserError: It is no manifest, or of a newer format.
    """
    newer = _newer_format(data)
    if newer:
        raise UserError(
            f"the backup has format {newer}; this version of Instar restores format {FORMAT}.",
            remedy="Install the version that made it, or a later one.",
        )
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            "the backup's manifest is damaged: "
            f"{'/'.join(str(part) for part in first['loc']) or 'document'}: {first['msg']}.",
            remedy="Use another copy of the backup.",
        ) from error


def _newer_format(data: bytes) -> int:
    try:
        found = json.loads(data)
        number = int(found["format"])
    except (ValueError, KeyError, TypeError):
        return 0
    return number if number > FORMAT else 0
