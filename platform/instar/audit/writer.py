"""Sealing: writes a project's next checkpoint, and keeps the copy outside the database whole.

The database comes first, the copy follows: a crash in between leaves the copy one checkpoint
behind, which the next sealing puts right. A copy that is ahead of the database is never appended
to: it knows what the database has lost, and a person has to say that this was meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from instar.audit.checkpoint import LINK_DIGITS, Checkpoint, Document, Head, seal
from instar.audit.keys import Signer, audit_dir, load_signer
from instar.audit.outside import OutsideCopy
from instar.settings import Settings
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.checkpoints import (
    StoredCheckpoint,
    insert_checkpoint,
    last_checkpoint,
    lock_sealing,
    read_changed_heads,
    read_installation,
    read_totals,
    stream_checkpoints,
)
from instar.store.session import Database
from instar.store.system import list_projects
from instar_core.errors import ConflictError, PrerequisiteError, StoreError

__all__ = ["Sealer", "as_checkpoint"]

_HEADS = 20_000
_LINKS = 100_000
_COPIED_AT_ONCE = 200


def as_checkpoint(stored: StoredCheckpoint) -> Checkpoint:
    """A row of the database as a checkpoint.

    Raises:
        ValueError: Its document does not have the format's form.
    """
    return Checkpoint(
        document=Document.model_validate(stored.document),
        hash=stored.hash,
        key_id=stored.key_id,
        signature=stored.signature,
    )


@dataclass(frozen=True, slots=True)
class Sealer:
    """What seals: the database, the signer, and the folder of the copies."""

    db: Database
    signer: Signer
    folder: Path

    @classmethod
    def open(cls, db: Database, settings: Settings) -> Sealer:
        """The sealer of this installation.

        Raises:
            PrerequisiteError: There is no signing key.
        """
        return cls(db, load_signer(settings), audit_dir(settings))

    async def seal_all(self) -> int:
        """Seals every project whose chain grew; returns how many checkpoints were written.

        Raises:
            StoreError: The database is away, or a copy cannot be written.
            PrerequisiteError: The copy of a project is ahead of the database.
        """
        async with self.db.system() as session:
            projects = await list_projects(session)
        written, trouble = 0, None
        for project_id in projects:
            try:
                written += len(await self.seal_project(project_id))
            except PrerequisiteError as error:
                # One project that was set back keeps no other from being sealed.
                trouble = error
        if trouble is not None:
            raise trouble
        return written

    async def seal_project(self, project_id: str) -> list[Checkpoint]:
        """Seals what a project's chain has grown by, and brings the copy up to the database.

        Returns:
            The new checkpoints; none when nothing is new, or another process is sealing.

        Raises:
            StoreError: The database is away, or the copy cannot be written.
            PrerequisiteError: The copy is ahead of the database.
        """
        copy = OutsideCopy(self.folder, project_id)
        await self._require_behind(copy, project_id)
        made: list[Checkpoint] = []
        while True:
            try:
                one = await self._seal_once(project_id)
            except ConflictError:
                # Another process wrote the same number between our snapshot and our commit.
                break
            if one is None:
                break
            made.append(one)
            if one.document.complete:
                break
        await self._catch_up(copy, project_id)
        return made

    async def accept_restore(self, project_id: str, by: Author, reason: str) -> Path | None:
        """Begins a new copy after a backup was restored on purpose; the old one is kept aside.

        The audit chain tells who accepted it, why, and what the old copy knew last.

        Returns:
            Where the old copy lies now; ``None`` if there was nothing to accept.

        Raises:
            StoreError: The database is away, or the copy cannot be renamed.
        """
        copy = OutsideCopy(self.folder, project_id)
        try:
            await self._require_behind(copy, project_id)
        except PrerequisiteError:
            last = copy.last()
            assert last is not None, "a copy that is ahead has a checkpoint"
            async with self.db.transaction(project_id) as session:
                entry = AuditEntry(
                    action="audit.accept_restore",
                    subject=f"checkpoint/{last.seq}",
                    details={"reason": reason, "lost": last.hash},
                )
                await append_audit(session, project_id, entry, by)
            aside = copy.set_aside()
            await self.seal_project(project_id)
            return aside
        return None

    async def _seal_once(self, project_id: str) -> Checkpoint | None:
        async with self.db.snapshot(project_id) as session:
            if not await lock_sealing(session, project_id):
                return None
            heads = await read_changed_heads(
                session, project_id, limit=_HEADS + 1, max_links=_LINKS, digits=LINK_DIGITS
            )
            if not heads:
                return None
            last = await last_checkpoint(session, project_id)
            totals = await read_totals(session, project_id)
            document = Document(
                installation=await read_installation(session),
                project=project_id,
                seq=1 if last is None else int(last.document["seq"]) + 1,
                previous="" if last is None else last.hash,
                at=totals.at,
                rows=totals.rows,
                streams=totals.streams,
                root=totals.root,
                complete=len(heads) <= _HEADS,
                heads=tuple(Head(*head) for head in heads[:_HEADS]),
            )
            made = seal(document, self.signer)
            stored = StoredCheckpoint(
                document.model_dump(mode="json"), made.hash, made.key_id, made.signature
            )
            await insert_checkpoint(session, project_id, stored)
        return made

    async def _require_behind(self, copy: OutsideCopy, project_id: str) -> None:
        """Refuses to go on where the copy has a checkpoint that the database has not."""
        last = copy.last()
        if last is None:
            return
        async with self.db.transaction(project_id) as session:
            async for stored in stream_checkpoints(session, project_id, after=last.seq - 1):
                if stored.hash == last.hash:
                    return
                break
        raise PrerequisiteError(
            f"the copy {str(copy.path)!r} ends with checkpoint {last.seq}, which the database does "
            "not have: the database was set back (an older backup?). Nothing was sealed.",
            remedy="See `instar audit verify`. If a backup was restored on purpose: `instar audit "
            "accept-restore --reason '…'`.",
        )

    async def _catch_up(self, copy: OutsideCopy, project_id: str) -> None:
        """Appends what the copy lacks."""
        last = copy.last()
        waiting: list[Checkpoint] = []
        async with self.db.transaction(project_id) as session:
            after = last.seq if last is not None else 0
            async for stored in stream_checkpoints(session, project_id, after=after):
                try:
                    waiting.append(as_checkpoint(stored))
                except ValidationError as error:
                    raise StoreError(
                        f"a checkpoint after number {after} cannot be read, so the copy outside "
                        "the database does not get it.",
                        remedy="See `instar audit verify`.",
                    ) from error
                if len(waiting) == _COPIED_AT_ONCE:
                    copy.append(waiting)
                    waiting = []
        if waiting:
            copy.append(waiting)
