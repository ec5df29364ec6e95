"""The audit trail as the API shows it: events, verification, sealing, the public key."""

from __future__ import annotations

import asyncio

from instar.api.auth import Caller
from instar.api.schemas_audit import (
    AuditEventOut,
    AuditReport,
    CheckpointOut,
    PublicKeyOut,
    RestoreAccepted,
    Sealed,
    VerifyIn,
)
from instar.audit.keys import load_signer, rotate_signing_key
from instar.audit.verify import Evidence, verify_project
from instar.audit.writer import Sealer
from instar.store.audit import AuditEntry, append_audit
from instar.store.tables import AuditEventRow

__all__ = ["accept_restore", "event_out", "public_key", "rotate_key", "seal", "verify"]


def event_out(row: AuditEventRow) -> AuditEventOut:
    """An event's row as the API shows it."""
    return AuditEventOut(
        id=row.id,
        stream=row.stream,
        seq=row.seq,
        at=row.created_at,
        actor_kind=row.actor_kind,
        actor=row.actor,
        action=row.action,
        subject=row.subject,
        details=row.details,
        previous_hash=row.previous_hash,
        hash=row.hash,
    )


async def verify(caller: Caller, wanted: VerifyIn) -> AuditReport:
    """Verifies the caller's project against what the service has and what the caller gave.

    Raises:
        UserError: One of the given texts is no public key.
        StoreError: The database is away, or the outside copy cannot be read.
    """
    evidence = await asyncio.to_thread(
        Evidence.of,
        caller.service.settings,
        public_keys=wanted.public_keys,
        given=wanted.checkpoints,
    )
    return await verify_project(caller.db, caller.project_id, evidence)


async def seal(caller: Caller) -> Sealed:
    """Writes a checkpoint now, where anything is new.

    Raises:
        PrerequisiteError: There is no signing key, or the copy is ahead of the database.
    """
    made = await Sealer.open(caller.db, caller.service.settings).seal_project(caller.project_id)
    return Sealed(
        checkpoints=[
            CheckpointOut(
                seq=one.seq,
                at=one.document.at,
                rows=one.document.rows,
                streams=one.document.streams,
                hash=one.hash,
                key_id=one.key_id,
            )
            for one in made
        ]
    )


async def accept_restore(caller: Caller, reason: str) -> RestoreAccepted:
    """Accepts that the database was set back, in the caller's name.

    Raises:
        StoreError: The database is away, or the copy cannot be renamed.
    """
    sealer = Sealer.open(caller.db, caller.service.settings)
    aside = await sealer.accept_restore(caller.project_id, caller.author, reason)
    return RestoreAccepted(accepted=aside is not None, set_aside=aside.name if aside else "")


async def rotate_key(caller: Caller) -> PublicKeyOut:
    """Replaces the signing key, in the caller's name.

    Raises:
        PrerequisiteError: The old key cannot be read, or the new one cannot be written.
    """
    settings = caller.service.settings
    async with caller.db.transaction(caller.project_id) as session:
        old = load_signer(settings).public
        entry = AuditEntry(action="audit.rotate_key", subject=f"key/{old.id}")
        await append_audit(session, caller.project_id, entry, caller.author)
        # Within the transaction: without the event there is no new key.
        new = (await asyncio.to_thread(rotate_signing_key, settings)).public
    return PublicKeyOut(key_id=new.id, public_key=new.pem)


def public_key(caller: Caller) -> PublicKeyOut:
    """The installation's public key.

    Raises:
        PrerequisiteError: There is no signing key.
    """
    key = load_signer(caller.service.settings).public
    return PublicKeyOut(key_id=key.id, public_key=key.pem)
