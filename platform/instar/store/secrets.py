"""Secrets: values that are written and never read back, encrypted with a key outside the database.

A secret is known by its id everywhere else. Its value leaves this module only for a program that is
about to be started with it (:func:`reveal_secrets`); secrets for production never do so in
rollouts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.redaction import register_secret
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.keyring import Keyring, KeySource
from instar.store.pages import Page, read_page
from instar.store.secret_box import Binding, Sealed, SecretUse, open_box, seal
from instar.store.secret_refs import find_references
from instar.store.servers import list_servers
from instar.store.session import Database
from instar.store.tables import SecretRow
from instar_core.base import JsonValue, new_id, short
from instar_core.errors import (
    ConflictError,
    InstarError,
    NotFoundError,
    PermissionDenied,
    UserError,
)

__all__ = [
    "KEYRING_LOCK",
    "MAX_VALUE",
    "NewSecret",
    "SecretUse",
    "binding_of",
    "check_keys",
    "delete_secret",
    "find_secret",
    "free_name",
    "list_secrets",
    "put_secret",
    "read_secret",
    "reveal_secrets",
    "secret_revisions",
    "secrets_by_reference",
]

MAX_VALUE = 65_536
"""Characters of a value."""
KEYRING_LOCK = "hashtextextended('instar.keyring', 0)"
"""Held in shared mode by whoever encrypts, alone by whoever changes the keyring."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_SHARED = text(f"select pg_advisory_xact_lock_shared({KEYRING_LOCK})")


class NewSecret(NamedTuple):
    """What is to be kept: a name, the value, and where it may be used."""

    name: str
    value: str
    use: SecretUse = "production"

    def __repr__(self) -> str:
        return f"NewSecret({self.name!r}, use={self.use!r})"


async def put_secret(
    session: AsyncSession, project_id: str, new: NewSecret, keys: KeySource, by: Author
) -> SecretRow:
    """Keeps a secret, or the next revision of the one with that name; audited without the value.

    Raises:
        UserError: If name, value or use cannot be; the value is not quoted.
        PrerequisiteError: If there is no usable key.
    """
    _check(new)
    # Whoever rotates the keys waits for this transaction, so no key can go that it still uses.
    await session.execute(_SHARED)
    ring = keys.read()
    row = await find_secret(session, project_id, new.name, lock=True)
    known = row is not None
    if row is None:
        row = SecretRow(id=new_id(), project_id=project_id, name=new.name, revision=0)
        row.created_by = by.name
    row.use, row.revision, row.key_id = new.use, row.revision + 1, ring.active
    sealed = seal(ring.keys[ring.active], binding_of(row), new.value)
    row.nonce, row.ciphertext = sealed
    row.updated_at = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    session.add(row)
    await session.flush()
    if not known:
        await session.refresh(row)
    register_secret(new.value, project_id)
    details: dict[str, JsonValue] = {
        "id": row.id,
        "use": row.use,
        "revision": row.revision,
        "key_id": row.key_id,
    }
    entry = AuditEntry(action="secret.put", subject=row.name, details=details)
    await append_audit(session, project_id, entry, by)
    return row


def _check(new: NewSecret) -> None:
    if not _NAME.fullmatch(new.name):
        raise UserError(
            f"{short(new.name, 80)!r} cannot be a secret's name.",
            remedy="Use 1 to 128 letters, digits, '.', '_' and '-', such as 'desk.API_KEY'.",
        )
    if new.use not in ("production", "rollouts"):
        raise UserError(f"the use is {new.use!r}; it must be 'production' or 'rollouts'.")
    if not new.value:
        raise UserError(
            f"the value of secret {new.name!r} is empty.", remedy="Send it, or delete the secret."
        )
    if len(new.value) > MAX_VALUE or "\x00" in new.value:
        raise UserError(
            f"the value of secret {new.name!r} is too long or holds a NUL character.",
            remedy=f"A value has at most {MAX_VALUE} characters, none of them NUL.",
        )
    try:
        new.value.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(
            f"the value of secret {new.name!r} is no valid Unicode.",
            remedy="Send whole characters; encode bytes as base64.",
        ) from None


async def find_secret(
    session: AsyncSession, project_id: str, name: str, *, lock: bool = False
) -> SecretRow | None:
    """The secret of that name, if there is one."""
    query = select(SecretRow).where(
        SecretRow.project_id == project_id,
        SecretRow.name == name,
        SecretRow.deleted_at.is_(None),
    )
    return await session.scalar(query.with_for_update() if lock else query)


async def read_secret(session: AsyncSession, project_id: str, name: str) -> SecretRow:
    """The secret of that name; its value stays where it is.

    Raises:
        NotFoundError: If there is none; names the nearest.
    """
    row = await find_secret(session, project_id, name)
    if row is not None:
        return row
    from difflib import get_close_matches

    names = await session.scalars(
        select(SecretRow.name).where(
            SecretRow.project_id == project_id, SecretRow.deleted_at.is_(None)
        )
    )
    near = get_close_matches(name, list(names), n=3)
    raise NotFoundError(
        f"there is no secret {short(name, 80)!r}.",
        remedy=f"Near to it: {', '.join(near)}." if near else "`instar secret list` shows them.",
    )


async def list_secrets(
    session: AsyncSession, project_id: str, *, limit: int = 50, cursor: str | None = None
) -> Page[SecretRow]:
    """The project's secrets, newest first."""
    query = select(SecretRow).where(
        SecretRow.project_id == project_id, SecretRow.deleted_at.is_(None)
    )
    return await read_page(session, query, SecretRow, limit=limit, cursor=cursor)


async def delete_secret(
    session: AsyncSession, project_id: str, name: str, by: Author, *, force: bool = False
) -> None:
    """Deletes a secret: its ciphertext is wiped, its name is free again; audited.

    Raises:
        NotFoundError: If there is none of that name.
        ConflictError: If a tool server refers to it and ``force`` is not set.
    """
    await read_secret(session, project_id, name)
    row = await find_secret(session, project_id, name, lock=True)
    if row is None:
        return
    users = [
        server.name
        for server in await list_servers(session, project_id)
        if row.id in find_references(server.config)
    ]
    if users and not force:
        raise ConflictError(
            f"the secret {name!r} is used by the tool server{'s' if len(users) > 1 else ''} "
            f"{', '.join(map(repr, users))}.",
            remedy="Register them without it first, or delete it by force: they will not start.",
        )
    row.nonce, row.ciphertext, row.key_id = b"", b"", ""
    row.deleted_at = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    await session.flush()
    entry = AuditEntry(
        action="secret.delete", subject=name, details={"id": row.id, "used_by": list(users)}
    )
    await append_audit(session, project_id, entry, by)


async def free_name(session: AsyncSession, project_id: str, wanted: str) -> str:
    """The wanted name made fit, with a number behind it where it is taken."""
    base = re.sub(r"[^A-Za-z0-9_.-]", "_", wanted)[:120].lstrip("_.-") or "secret"
    name, number = base, 1
    while await find_secret(session, project_id, name) is not None:
        number += 1
        name = f"{base}-{number}"
    return name


async def secrets_by_reference(
    session: AsyncSession, project_id: str, references: Iterable[str]
) -> dict[str, SecretRow]:
    """The secrets that references name, by id or by name.

    Raises:
        UserError: Naming those that do not exist, and those that were deleted.
    """
    wanted = list(dict.fromkeys(references))
    found: dict[str, SecretRow] = {}
    problems = []
    rows = await session.scalars(
        select(SecretRow).where(
            SecretRow.project_id == project_id,
            (func.cast(SecretRow.id, SecretRow.name.type).in_(wanted)) | SecretRow.name.in_(wanted),
        )
    )
    every = list(rows)
    for reference in wanted:
        by_id = next((row for row in every if row.id == reference), None)
        live = next(
            (row for row in every if row.name == reference and row.deleted_at is None), None
        )
        row = by_id or live
        if row is None:
            problems.append(f"there is no secret {reference!r}")
        elif row.deleted_at is not None:
            problems.append(f"the secret {row.name!r} was deleted")
        else:
            found[reference] = row
    if problems:
        raise UserError(
            f"{'; '.join(problems)}.",
            remedy="Set it with `instar secret set`, and refer to it as ${secret:NAME}.",
        )
    return found


async def reveal_secrets(
    session: AsyncSession,
    project_id: str,
    ids: Sequence[str],
    keys: KeySource,
    use: SecretUse,
) -> dict[str, str]:
    """The values of secrets, for a program that is about to be started with them.

    Each value is masked by redaction from then on, in this process.

    Args:
        session: A transaction of the project.
        project_id: The project that the secrets belong to.
        ids: Their ids.
        keys: The keyring.
        use: ``production``, or ``rollouts``, where secrets for production are refused.

    Raises:
        UserError: If one does not exist any more.
        PermissionDenied: If one is for production and this is a rollout.
        PrerequisiteError: If the key of one is not in the keyring.
        StoreError: If one was changed in the database.
    """
    if not ids:
        return {}
    rows = await secrets_by_reference(session, project_id, ids)
    closed = sorted(row.name for row in rows.values() if use == "rollouts" and row.use != use)
    if closed:
        raise PermissionDenied(
            f"secrets for production are never used in rollouts: {', '.join(map(repr, closed))}.",
            remedy="Set one for tests (`instar secret set NAME --use rollouts`) and name it in the "
            "test binding.",
        )
    ring = keys.read()
    values = {reference: _open(row, ring, keys) for reference, row in rows.items()}
    for value in values.values():
        register_secret(value, project_id)
    return values


async def secret_revisions(
    session: AsyncSession, project_id: str, ids: Sequence[str]
) -> tuple[tuple[str, int], ...]:
    """The present revision of each secret, to see whether a program was started with an older."""
    if not ids:
        return ()
    rows = await session.execute(
        select(SecretRow.id, SecretRow.revision)
        .where(SecretRow.project_id == project_id, SecretRow.id.in_(list(ids)))
        .order_by(SecretRow.id)
    )
    return tuple((str(row[0]), int(row[1])) for row in rows)


def binding_of(row: SecretRow) -> Binding:
    """What the row's ciphertext is bound to."""
    return Binding(row.project_id, row.id, row.name, row.use, row.revision, row.key_id)


def _open(row: SecretRow, ring: Keyring, keys: KeySource) -> str:
    key = ring.keys.get(row.key_id)
    if key is None:
        raise keys.missing(row.key_id)
    return open_box(key, binding_of(row), Sealed(bytes(row.nonce), bytes(row.ciphertext)))


async def check_keys(db: Database, keys: KeySource) -> str:
    """``ok``, or why stored secrets cannot be used: a key is missing, or one does not open them.

    Of each key's secrets one is really decrypted.
    """
    try:
        async with db.system() as session:
            rows = list(await session.execute(text("select * from instar.list_secret_keys()")))
        if not rows and not keys.environment and not keys.path.exists():
            return "ok"
        ring = keys.read()
        for key_id, project_id, secret_id in rows:
            if key_id not in ring.keys:
                raise keys.missing(str(key_id))
            async with db.transaction(str(project_id)) as session:
                row = await session.get(SecretRow, str(secret_id))
                if row is not None and row.deleted_at is None:
                    _open(row, keys.read(), keys)
    except InstarError as error:
        return str(error)
    return "ok"
