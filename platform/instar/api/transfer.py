"""Transfer: exports to a file and imports of an archive, as routes and tests use them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from typing import IO

from instar.api.auth import Caller
from instar.registry.transfer.exporting import ExportOptions, export_project
from instar.registry.transfer.importing import ImportOptions, import_package
from instar.registry.transfer.package import Package, open_package
from instar.registry.transfer.report import ImportReport
from instar.store.audit import AuditEntry, append_audit
from instar.store.keyring import KeySource
from instar.store.secrets import reveal_secrets
from instar.store.transfer import read_secret_names
from instar_skills.archives import read_archive

__all__ = ["chunks_of", "export_archive", "import_archive"]

_IN_MEMORY = 8 * 2**20
_CHUNK = 256 * 1024


class _Undo(Exception):
    """Ends a dry run: what was written in its transaction is rolled back."""

    def __init__(self, report: ImportReport) -> None:
        super().__init__()
        self.report = report


async def export_archive(caller: Caller, options: ExportOptions) -> IO[bytes]:
    """The caller's project as a tar.gz in a temporary file, read from its beginning.

    The export is audited before the first byte is read, and every secret of the project is opened
    once, so that its value is recognised wherever it lies.

    Raises:
        UserError: If a content holds the value of a secret and masking was not asked for.
        PrerequisiteError: If the key of a secret is missing: what cannot be known cannot be kept
            in.
    """
    project = caller.project_id
    details = {"trajectories": options.trajectories, "redact": options.redact}
    entry = AuditEntry(action="project.export", subject="project", details=dict(details))
    async with caller.db.transaction(project) as session:
        await append_audit(session, project, entry, caller.author)
        ids = list(await read_secret_names(session, project))
        keys = KeySource.of(caller.service.settings)
        await reveal_secrets(session, project, ids, keys, "production")
    target = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the reader closes it
    try:
        async with caller.db.snapshot(project) as session:
            await export_project(session, project, target, options)
        target.seek(0)
    except BaseException:
        target.close()
        raise
    return target


def chunks_of(source: IO[bytes]) -> Iterator[bytes]:
    """The bytes of a file in pieces; closes it at the end, also when the reader goes away."""
    with source:
        while piece := source.read(_CHUNK):
            yield piece


async def import_archive(caller: Caller, data: bytes, options: ImportOptions) -> ImportReport:
    """Brings an archive into the caller's project; a dry run undoes what it wrote.

    Raises:
        InvalidContent: If the archive is none, or anything in it is wrong.
        ConflictError: If something in it is in the way of what is here.
    """
    # Unpacking and hashing take a while; other requests go on meanwhile.
    package = await asyncio.to_thread(_open, data)
    try:
        async with caller.db.transaction(caller.project_id) as session:
            report = await import_package(
                session, caller.project_id, package, caller.author, options
            )
            if options.dry_run:
                raise _Undo(report)
    except _Undo as undone:
        return undone.report
    return report


def _open(data: bytes) -> Package:
    return open_package(read_archive(data))
