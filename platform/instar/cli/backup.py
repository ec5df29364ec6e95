"""Commands that save the whole installation in one file, and bring it back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from instar.cli.output import Json, emit, say

__all__ = ["register"]

_Passphrase = Annotated[
    Path | None, typer.Option("--passphrase-file", help="File with the passphrase.")
]


def register(app: typer.Typer) -> None:
    """Adds ``backup`` and ``restore``."""
    app.command()(backup)
    app.command()(restore)


def backup(
    file: Annotated[Path, typer.Argument(help="File to write; it must not exist yet.")],
    recipient: Annotated[
        list[str] | None, typer.Option("--recipient", help="age public key (age1…); repeatable.")
    ] = None,
    passphrase_file: _Passphrase = None,
    no_encryption: Annotated[
        bool, typer.Option("--no-encryption", help="Leave everything in it readable.")
    ] = False,
    json: Json = False,
) -> None:
    """Save everything in one encrypted file, while the service runs or not."""
    from instar.backup.protection import Protection, read_passphrase
    from instar.backup.take import take_backup
    from instar.settings import load_settings

    _tell_if_open(passphrase_file)
    words = read_passphrase(passphrase_file) if passphrase_file is not None else ""
    protection = Protection(tuple(recipient or ()), words, no_encryption)
    report = take_backup(load_settings(), file, protection, say)
    manifest = report.manifest
    lines = [
        f"wrote {report.file}: {report.bytes} bytes"
        f"{', encrypted' if report.encrypted else ', NOT encrypted'}",
        f"{manifest.rows} rows of {len(manifest.tables)} tables as of "
        f"{manifest.taken_at:%Y-%m-%d %H:%M:%S} UTC, {len(manifest.files)} files",
    ]
    if manifest.keys:
        lines.append("Left out, keep copies elsewhere (restore asks for the first two kinds):")
        lines += [f"  {key.name} (fingerprint {key.fingerprint[:16]}…)" for key in manifest.keys]
    emit(report.model_dump(mode="json"), json, "\n".join(lines))


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `instar backup` wrote.")],
    identity: Annotated[
        Path | None, typer.Option("--identity", help="age key file that opens it.")
    ] = None,
    passphrase_file: _Passphrase = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Folder with the key files that it names.")
    ] = None,
    without_keys: Annotated[
        bool, typer.Option("--without-keys", help="Go on without the key files.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file; write nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Bring a backup back into an empty data directory (INSTAR_DATA_DIR)."""
    from instar.backup.protection import Unlock, read_identities, read_passphrase
    from instar.backup.restore import RestoreOptions, restore_backup
    from instar.settings import load_settings

    _tell_if_open(passphrase_file, identity)
    unlock = Unlock(
        read_identities(identity) if identity is not None else (),
        read_passphrase(passphrase_file) if passphrase_file is not None else "",
    )
    options = RestoreOptions(unlock, keys, without_keys, dry_run)
    report = restore_backup(load_settings(), file, options, say)
    done = "could be restored into" if dry_run else "restored into"
    lines = [
        f"{done} {report.data_dir}: {report.rows} rows of {report.tables} tables, "
        f"{report.files} files" + ("" if dry_run else "; every count and hash is equal")
    ]
    if report.revision_before != report.revision_after:
        lines.append(f"schema: {report.revision_before} → {report.revision_after}")
    lines += [f"- {remark}" for remark in report.remarks]
    if not dry_run:
        lines.append("Start it with: instar up")
    emit(report.model_dump(mode="json"), json, "\n".join(lines))


def _tell_if_open(*files: Path | None) -> None:
    """Says which of the files that open a backup can be read by others."""
    from instar.backup.protection import is_open_to_others

    for path in files:
        if path is not None and is_open_to_others(path):
            say(f"{str(path)!r} can be read by other users of this machine: chmod 600 {path}")
