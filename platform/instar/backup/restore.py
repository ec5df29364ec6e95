"""Restoring a backup: all of it is checked in a staging place before it is an installation."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from instar import __version__
from instar.audit.keys import audit_dir
from instar.backup.archive import MANIFEST, Entry, read_archive
from instar.backup.intake import Intake, compare_tables
from instar.backup.keys import AUDIT_KEY, SECRET_KEYS, KeyChoice, choose_keys
from instar.backup.manifest import Manifest, parse_manifest
from instar.backup.place import layout_of
from instar.backup.programs import find_program, pipe_to
from instar.backup.protection import Unlock
from instar.backup.staging import Staging, require_empty
from instar.embedded.layout import Layout, Marker
from instar.embedded.up import take_lock
from instar.settings import Settings
from instar.store.audit import AuditEntry, Author
from instar.store.keyring import KeySource
from instar.store.migrate import head_revision, known_revisions, upgrade
from instar.store.recovery import record_everywhere, settle
from instar.store.secret_rotation import abandon_key
from instar.store.session import Database
from instar.store.snapshot import TableContent, open_snapshot
from instar_core.base import Frozen, JsonValue
from instar_core.errors import PrerequisiteError, UserError

__all__ = ["RestoreOptions", "RestoreReport", "restore_backup"]

AUTHOR = Author("system", "instar restore")


class RestoreOptions(NamedTuple):
    """What a person says about a restore.

    Attributes:
        unlock: What opens the file.
        keys: Folder with the key files that the backup names.
        without_keys: Go on without them.
        dry_run: Check everything that can be checked without a database; write nothing.
    """

    unlock: Unlock = Unlock()
    keys: Path | None = None
    without_keys: bool = False
    dry_run: bool = False


class RestoreReport(Frozen):
    """What was restored, and what to know about it."""

    backup: str
    taken_at: str
    data_dir: str
    dry_run: bool
    tables: int
    rows: int
    files: int
    hashes_equal: bool | None = Field(description="of every table; none in a dry run")
    revision_before: str
    revision_after: str
    keys: tuple[str, ...] = Field(description="key files that were put in place or are there")
    remarks: tuple[str, ...]


@dataclass(slots=True)
class _Work:
    """One restore: what it is about, and what it has found so far."""

    settings: Settings
    layout: Layout
    manifest: Manifest
    keys: KeyChoice
    say: Callable[[str], None]
    found: list[TableContent] | None = None
    marker: Marker | None = None
    kept: list[str] = field(default_factory=list)


def restore_backup(
    settings: Settings,
    source: Path,
    options: RestoreOptions,
    say: Callable[[str], None] = lambda _words: None,
) -> RestoreReport:
    """Restores a backup into an empty data directory (and an empty database where that is apart).

    Args:
        settings: Settings of this process; they name the directory and the database.
        source: The backup.
        options: What opens it, and what is to be done about keys.
        say: Called with remarks on the progress.

    Raises:
        UserError: The file is damaged, newer, or not opened; keys are missing or wrong.
        PrerequisiteError: The directory or the database is not empty, or a program is missing.
        StoreError: The database refused the dump or cannot be reached.
    """
    layout = layout_of(settings)
    require_empty(layout)
    with read_archive(source.expanduser(), options.unlock) as entries:
        manifest = _read_manifest(source, entries)
        keys = choose_keys(settings, manifest.keys, options.keys, options.without_keys)
        work = _Work(settings, layout, manifest, keys, say)
        if options.dry_run:
            Intake(manifest, None).take(entries)
        else:
            _restore(work, entries)
    return _report(work, options.dry_run)


def _read_manifest(source: Path, entries: Iterator[Entry]) -> Manifest:
    first = next(entries, None)
    if first is None or first.name != MANIFEST:
        raise UserError(
            f"{str(source)!r} does not begin with a manifest.",
            remedy="Name a file that `instar backup` wrote.",
        )
    manifest = parse_manifest(first.content.read())
    if manifest.schema_revision not in known_revisions():
        raise UserError(
            f"the backup has schema revision {manifest.schema_revision!r} of Instar "
            f"{manifest.instar}, which is newer than this version ({__version__}, revision "
            f"{head_revision()!r}). Nothing was changed.",
            remedy=f"Install Instar {manifest.instar} or later.",
        )
    return manifest


def _restore(work: _Work, entries: Iterator[Entry]) -> None:
    try:
        work.layout.make()
    except OSError as error:
        raise PrerequisiteError(
            f"{str(work.layout.data_dir)!r} cannot be written: {error.strerror}.",
            remedy="Name another directory with INSTAR_DATA_DIR.",
        ) from error
    lock = take_lock(work.layout)
    staging = Staging(work.settings, work.layout)
    try:
        require_empty(work.layout)
        staging.begin(work.manifest)
        _fill(work, staging, entries)
        _complete(work, staging)
        staging.finish(head_revision(), work.marker)
    finally:
        staging.close()
        os.close(lock)


def _fill(work: _Work, staging: Staging, entries: Iterator[Entry]) -> None:
    """Restores the database, and holds every table against the manifest."""
    manifest = work.manifest
    program = find_program("pg_restore", manifest.dumper)
    intake = Intake(manifest, audit_dir(work.settings))
    work.say(f"restoring {manifest.rows} rows of {len(manifest.tables)} tables")
    arguments = ["--single-transaction", "--exit-on-error", "--no-password"]
    with pipe_to(program, staging.url, arguments) as dump:
        intake.take(entries, dump)
    work.say("counting and hashing every table")
    with open_snapshot(staging.url) as snapshot:
        work.found = snapshot.tables()
    compare_tables(manifest.tables, work.found)
    work.marker, work.kept = intake.marker, intake.kept


def _complete(work: _Work, staging: Staging) -> None:
    """Brings the schema up to this version, puts keys in place, and records all of it."""
    manifest, keys = work.manifest, work.keys
    upgrade(staging.url, app_password=staging.app_password, data_dir=work.layout.data_dir)
    keys.place(work.settings)
    restored: JsonValue = [*sorted({*keys.files, *keys.present})]
    lost: JsonValue = [[key.name, key.fingerprint] for key in keys.lost]
    details: JsonValue = {
        "backup": manifest.id,
        "taken_at": manifest.taken_at.isoformat(),
        "made_by": manifest.instar,
        "instar": __version__,
        "schema": [manifest.schema_revision, head_revision()],
        "keys": restored,
        "keys_lost": lost,
    }
    entry = AuditEntry(action="installation.restore", subject=manifest.id, details=details)
    asyncio.run(_settle(work, staging.url, entry))


async def _settle(work: _Work, url: str, entry: AuditEntry) -> None:
    await settle(url)
    await record_everywhere(url, entry, AUTHOR)
    db = Database(url, pool_size=1)
    try:
        for key in work.keys.lost:
            if key.name == SECRET_KEYS:
                await abandon_key(db, KeySource.of(work.settings), key.fingerprint)
    finally:
        await db.close()


def _report(work: _Work, dry_run: bool) -> RestoreReport:
    manifest, found = work.manifest, work.found
    return RestoreReport(
        backup=manifest.id,
        taken_at=manifest.taken_at.isoformat(),
        data_dir=str(work.layout.data_dir),
        dry_run=dry_run,
        tables=len(manifest.tables),
        rows=manifest.rows,
        files=len(manifest.files),
        hashes_equal=None if found is None else tuple(found) == manifest.tables,
        revision_before=manifest.schema_revision,
        revision_after=head_revision(),
        keys=tuple(sorted({*work.keys.files, *work.keys.present})),
        remarks=tuple(_remarks(work)),
    )


def _remarks(work: _Work) -> Iterator[str]:
    """What a person has to know: what is older than it seems, and what will not work."""
    manifest, lost = work.manifest, {key.name for key in work.keys.lost}
    yield (
        f"The state is that of {manifest.taken_at:%Y-%m-%d %H:%M:%S} UTC. API keys that were "
        "revoked after it open the service again: revoke them once more."
    )
    yield "Console sessions are ended, and `instar up` makes a new key for this machine."
    if SECRET_KEYS in lost:
        yield (
            "Without the keyring these secrets cannot be read and are deleted; enter them again: "
            f"{', '.join(manifest.secrets)}."
        )
    if AUDIT_KEY in lost:
        yield (
            "Without the old signing key the chain goes on under a new one, which vouches for the "
            "old; keep what `instar audit key` prints."
        )
    if "models" in manifest.left_out:
        yield "Model weights are not in a backup; `instar model install` brings them again."
    yield from work.kept
