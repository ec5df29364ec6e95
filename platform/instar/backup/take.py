"""Taking a backup: one snapshot of the database, the files beside it, and a manifest over both."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from instar import __version__
from instar.audit.keys import audit_dir
from instar.audit.writer import Sealer
from instar.backup.archive import AUDIT, DUMP, MANIFEST, SEAL, ArchiveWriter, write_archive
from instar.backup.keys import fingerprints
from instar.backup.manifest import FileEntry, Manifest, Seal
from instar.backup.place import layout_of, owner_database
from instar.backup.programs import Program, find_program, pipe_from
from instar.backup.protection import Protection
from instar.settings import Settings
from instar.store.audit import AuditEntry, Author
from instar.store.migrate import head_revision
from instar.store.recovery import record_everywhere
from instar.store.session import Database
from instar.store.snapshot import Snapshot, open_snapshot
from instar.store.tables import SCHEMA
from instar_core.base import Frozen, JsonValue, canonical_json, new_id
from instar_core.errors import PrerequisiteError, StoreError

__all__ = ["BackupReport", "take_backup"]

AUTHOR = Author("system", "instar backup")
_MARKERS = ("instar.json", "installation.json")
_LEFT_OUT = ("models", "logs")


class BackupReport(Frozen):
    """What was written."""

    file: str
    bytes: int
    encrypted: bool
    manifest: Manifest


def take_backup(
    settings: Settings,
    target: Path,
    protection: Protection,
    say: Callable[[str], None] = lambda _words: None,
) -> BackupReport:
    """Writes a backup of the whole installation; the service may go on meanwhile.

    Args:
        settings: Settings of this process.
        target: The file, which must not exist yet.
        protection: How it is encrypted.
        say: Called with remarks on the progress.

    Raises:
        UserError: The file exists, or the protection is wrong.
        PrerequisiteError: The login does not see every row, programs are missing, or there is no
            installation.
        StoreError: The database went away or refused; no file is left.
    """
    target = target.expanduser().absolute()
    with owner_database(settings) as url, write_archive(target, protection) as archive:
        _require_current(url)
        backup_id = new_id()
        details: JsonValue = {
            "backup": backup_id,
            "encrypted": protection.kind,
            "instar": __version__,
        }
        entry = AuditEntry(action="installation.backup", subject=backup_id, details=details)
        asyncio.run(record_everywhere(url, entry, AUTHOR))
        asyncio.run(_seal(settings, url, say))
        # Before the snapshot: a checkpoint outside must not be newer than the chain in the dump.
        files = list(_files(settings))
        with open_snapshot(url) as snapshot:
            program = find_program("pg_dump", snapshot.facts.server)
            say("counting and hashing every table")
            manifest = _describe(settings, snapshot, backup_id, program, [one for one, _ in files])
            archive.add(MANIFEST, manifest.model_dump_json(indent=1).encode())
            for one, path in files:
                archive.add(one.path, _read(path, one))
            say(f"dumping {manifest.rows} rows of {len(manifest.tables)} tables")
            seal = _dump(archive, snapshot, program, url)
        archive.add(SEAL, canonical_json(seal))
    return BackupReport(
        file=str(target),
        bytes=target.stat().st_size,
        encrypted=not protection.none,
        manifest=manifest,
    )


async def _seal(settings: Settings, url: str, say: Callable[[str], None]) -> None:
    """Seals every audit chain, so that the backup's end can be told from a lost tail."""
    db = Database(url, pool_size=1)
    try:
        await Sealer.open(db, settings).seal_all()
    except (PrerequisiteError, StoreError) as error:
        # The backup is worth having all the same; `instar audit verify` names what is wrong.
        say(f"the audit chain was not sealed: {error}")
    finally:
        await db.close()


def _require_current(url: str) -> None:
    """Refuses before the audit chain says that a backup was taken."""
    with open_snapshot(url) as snapshot:
        revision = snapshot.revision()
    if revision != head_revision():
        raise PrerequisiteError(
            f"the database has schema revision {revision!r}, this version works with "
            f"{head_revision()!r}.",
            remedy="Take the backup with the version that runs on it, or run `instar db upgrade`.",
        )


def _describe(
    settings: Settings,
    snapshot: Snapshot,
    backup_id: str,
    program: Program,
    files: list[FileEntry],
) -> Manifest:
    folder = layout_of(settings).data_dir
    secrets = snapshot.secrets()
    return Manifest.model_validate(
        {
            "id": backup_id,
            "instar": __version__,
            "schema_revision": snapshot.revision(),
            "installation": snapshot.installation(),
            "taken_at": snapshot.moment(),
            "database": "external" if settings.database_url else "embedded",
            "server": snapshot.facts.server,
            "dumper": program.major,
            "tables": snapshot.tables(),
            "files": files,
            "keys": fingerprints(settings, {key_id for _, key_id in secrets}),
            "secrets": [name for name, _ in secrets],
            "left_out": [name for name in _LEFT_OUT if (folder / name).exists()],
        }
    )


def _dump(archive: ArchiveWriter, snapshot: Snapshot, program: Program, url: str) -> Seal:
    arguments = [
        "--format=custom",
        f"--schema={SCHEMA}",
        f"--snapshot={snapshot.export()}",
        "--no-password",
        "--lock-wait-timeout=60s",
    ]
    with pipe_from(program, url, arguments) as dump:
        total, digest, pieces = archive.add_pieces(DUMP, dump)
    return Seal(dump_bytes=total, dump_sha256=digest, pieces=pieces)


def _files(settings: Settings) -> Iterator[tuple[FileEntry, Path]]:
    """The files to keep, as long as they are now: the ones that grow are append-only."""
    folder, outside = layout_of(settings).data_dir, audit_dir(settings)
    places = [(name, folder / name) for name in _MARKERS]
    for path in sorted(outside.rglob("*")):
        if not path.name.startswith("."):  # locks, and files that are being written
            places.append((f"{AUDIT}/{path.relative_to(outside).as_posix()}", path))
    for name, path in places:
        if not path.is_file() or path.is_symlink():
            continue
        with path.open("rb") as stream:
            size, digest = _measure(stream)
        yield FileEntry(path=name, bytes=size, sha256=digest), path


def _measure(stream: IO[bytes]) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    while piece := stream.read(2**20):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def _read(path: Path, entry: FileEntry) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(entry.bytes)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise StoreError(f"{str(path)!r} was rewritten meanwhile.", remedy="Try again.")
    return data
