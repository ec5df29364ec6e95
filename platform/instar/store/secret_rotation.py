"""Rotation: a new key for all secrets of all projects, batch by batch, safe to kill at any point.

The new key is written to disk before the first row is under it, and the old ones leave the keyring
only when no row is under them. What was begun and broken off is finished by the next rotation,
under the same new key.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import SYSTEM, AuditEntry, Author, append_audit
from instar.store.keyring import KeySource
from instar.store.secret_box import Sealed, open_box, seal
from instar.store.secrets import KEYRING_LOCK, binding_of
from instar.store.session import Database
from instar.store.tables import SecretRow
from instar_core.errors import InstarError, NotFoundError, PrerequisiteError

__all__ = ["Rotation", "abandon_key", "key_usage", "prune_keys", "rotate_keys"]

_BATCH = 100
_ALONE = text(f"select pg_advisory_xact_lock({KEYRING_LOCK})")
_BESIDE = text(
    "select project_id, secret_id from instar.list_secrets_beside("
    ":key, cast(:after as uuid), :limit)"
)


class Rotation(NamedTuple):
    """What a rotation did.

    Attributes:
        key_id: The key that all secrets are under now.
        resumed: Whether it finished one that had been broken off.
        moved: How many secrets it encrypted anew.
        pruned: Ids of the old keys that it took out of the keyring.
    """

    key_id: str
    resumed: bool
    moved: int
    pruned: tuple[str, ...] = ()


async def rotate_keys(
    db: Database, keys: KeySource, by: Author, *, batch: int = _BATCH, prune: bool = False
) -> Rotation:
    """Encrypts every secret of every project with a new key.

    Args:
        db: The database.
        keys: The keyring; gets the new key, unless the environment holds it: then all secrets go
            under its first key.
        by: Who is named in the audit of each project.
        batch: Secrets per transaction.
        prune: Whether to drop the old keys at the end.

    Raises:
        PrerequisiteError: If some secrets cannot be decrypted; the others were moved.
    """
    resumed = await _begin(db, keys)
    active = keys.read().active
    moved, stuck = 0, dict[str, str]()
    after: str | None = None
    while True:
        async with db.system() as session:
            found = await session.execute(_BESIDE, {"key": active, "after": after, "limit": batch})
            rows = [(str(row[0]), str(row[1])) for row in found]
        if not rows:
            break
        by_project: dict[str, list[str]] = {}
        for project_id, secret_id in rows:
            by_project.setdefault(project_id, []).append(secret_id)
        for project_id, ids in by_project.items():
            async with db.transaction(project_id) as session:
                done, failed = await _move(session, project_id, ids, keys, by)
            moved += done
            stuck |= failed
        after = rows[-1][1]
    if stuck:
        name, why = next(iter(stuck.items()))
        raise PrerequisiteError(
            f"{len(stuck)} secret{'s' if len(stuck) > 1 else ''} could not be moved to the key "
            f"{active}; the first is {name!r}: {why}",
            remedy="The others were moved. Rotate again once that is put right.",
        )
    pruned = await prune_keys(db, keys) if prune else ()
    return Rotation(active, resumed, moved, pruned)


async def _begin(db: Database, keys: KeySource) -> bool:
    """Makes the new key active, unless an unfinished rotation has done so; whether it had."""
    async with db.system() as session:
        await session.execute(_ALONE)
        ring = keys.read()
        beside = await session.execute(_BESIDE, {"key": ring.active, "after": None, "limit": 1})
        if beside.first() is not None:
            return keys.writable
        if keys.writable:
            keys.write(ring.with_new_key())
    return False


async def _move(
    session: AsyncSession, project_id: str, ids: list[str], keys: KeySource, by: Author
) -> tuple[int, dict[str, str]]:
    """Moves some secrets of one project; how many, and which would not, with the reason."""
    ring = keys.read()
    rows = await session.scalars(
        select(SecretRow)
        .where(SecretRow.id.in_(ids), SecretRow.deleted_at.is_(None))
        .where(SecretRow.key_id != ring.active)
        .order_by(SecretRow.id)
        .with_for_update()
    )
    moved: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for row in list(rows):
        former = ring.keys.get(row.key_id)
        try:
            if former is None:
                raise keys.missing(row.key_id)
            value = open_box(
                former, binding_of(row), Sealed(bytes(row.nonce), bytes(row.ciphertext))
            )
        except InstarError as error:
            failed[row.name] = str(error)
            continue
        moved[row.key_id] += 1
        row.key_id = ring.active
        row.nonce, row.ciphertext = seal(ring.keys[ring.active], binding_of(row), value)
    await session.flush()
    if moved:
        entry = AuditEntry(
            action="secret.rotate",
            subject=ring.active,
            details={"from": dict(moved), "moved": moved.total()},
        )
        await append_audit(session, project_id, entry, by)
    return moved.total(), failed


async def prune_keys(db: Database, keys: KeySource) -> tuple[str, ...]:
    """Drops the keys that no secret is under, never the active one; their ids.

    Whoever encrypts waits meanwhile, so no secret can come under a key that is about to go.
    """
    if not keys.writable:
        return ()
    async with db.system() as session:
        await session.execute(_ALONE)
        used = {str(row[0]) for row in await session.execute(_USED)}
        ring = keys.read()
        unused = set(ring.keys) - used - {ring.active}
        if unused:
            keys.write(ring.without(unused))
    return tuple(sorted(unused))


_USED = text("select key_id from instar.list_secret_keys()")


async def key_usage(db: Database) -> set[str]:
    """The ids of the keys that stored secrets are under."""
    async with db.system() as session:
        return {str(row[0]) for row in await session.execute(_USED)}


async def abandon_key(db: Database, keys: KeySource, key_id: str) -> int:
    """Deletes every secret that only a lost key opens; audited. How many there were.

    Raises:
        NotFoundError: If no secret is under that key.
        PrerequisiteError: If the key is not lost.
    """
    if keys.environment or keys.path.exists():
        if key_id in keys.read().keys:
            raise PrerequisiteError(
                f"the key {key_id} is in the keyring ({keys.described}): nothing is lost.",
                remedy="Unset INSTAR_SECRETS__ABANDON.",
            )
    gone = 0
    async with db.system() as session:
        found = await session.execute(_BESIDE, {"key": "", "after": None, "limit": 2**31 - 1})
        projects = sorted({str(row[0]) for row in found})
    for project_id in projects:
        async with db.transaction(project_id) as session:
            rows = await session.scalars(
                update(SecretRow)
                .where(SecretRow.key_id == key_id, SecretRow.deleted_at.is_(None))
                .values(nonce=b"", ciphertext=b"", key_id="", deleted_at=func.clock_timestamp())
                .returning(SecretRow.name)
            )
            names = sorted(rows)
            for name in names:
                entry = AuditEntry(
                    action="secret.abandon", subject=name, details={"key_id": key_id}
                )
                await append_audit(session, project_id, entry, SYSTEM)
        gone += len(names)
    if not gone:
        raise NotFoundError(
            f"no secret is under the key {key_id!r}.", remedy="Unset INSTAR_SECRETS__ABANDON."
        )
    return gone
