"""Projects and API keys: who may come in, and into which project.

A key is shown once, when it is made; only the sha256 of its 256 random bits is kept, so a stolen
database opens no door.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.session import Database
from instar.store.system import KeyOwner, find_api_key, find_project
from instar.store.tables import ApiKeyRow, ProjectRow
from instar_core.base import JsonValue, new_id
from instar_core.errors import NotFoundError, PermissionDenied, UserError

__all__ = [
    "CreatedKey",
    "KeyRole",
    "NewKey",
    "create_api_key",
    "create_project",
    "ensure_project",
    "hash_key",
    "list_api_keys",
    "read_project",
    "resolve_api_key",
    "revoke_api_key",
    "update_project_settings",
]

KeyRole = Literal["admin", "member", "reader"]
_ROLES: tuple[KeyRole, ...] = ("admin", "member", "reader")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_PREFIX = "instar_"


class NewKey(NamedTuple):
    """What a new key shall be: a name for people, a role, narrower scopes, an end."""

    name: str
    role: KeyRole = "member"
    scopes: Sequence[str] = ()
    expires_at: datetime | None = None


class CreatedKey(NamedTuple):
    """A key as its maker sees it, once."""

    id: str
    key: str


async def create_project(db: Database, name: str) -> str:
    """Creates a project and returns its id.

    Raises:
        UserError: If the name is not lower-case letters, digits, ``.``, ``_`` and ``-``.
        ConflictError: If there is one of that name.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be a project's name.",
            remedy="Use 1 to 63 lower-case letters, digits, '.', '_' and '-', such as 'support'.",
        )
    project_id = new_id()
    async with db.transaction(project_id) as session:
        session.add(ProjectRow(id=project_id, name=name))
    return project_id


async def ensure_project(db: Database, name: str = "default") -> str:
    """The id of the project with that name; created if there is none, once for all callers."""
    async with db.system() as session:
        # Two first starts at once: the second waits here and then finds what the first made.
        await session.execute(
            text("select pg_advisory_xact_lock(hashtextextended('instar.ensure_project', 0))")
        )
        found = await find_project(session, name)
        return found if found is not None else await create_project(db, name)


async def read_project(session: AsyncSession, project_id: str) -> ProjectRow:
    """The project of this transaction."""
    row = await session.get(ProjectRow, project_id)
    if row is None:
        raise NotFoundError(f"there is no project {project_id!r}.")
    return row


async def update_project_settings(
    session: AsyncSession, project_id: str, changes: dict[str, object], by: Author
) -> ProjectRow:
    """Merges ``changes`` into the project's settings (such as its promotion rule), audited."""
    row = await session.get(ProjectRow, project_id, with_for_update=True)
    if row is None:
        raise NotFoundError(f"there is no project {project_id!r}.")
    before = {key: row.settings.get(key) for key in changes}
    row.settings = {**row.settings, **changes}
    await session.flush()
    details: dict[str, JsonValue] = {"before": str(before), "after": str(changes)}
    entry = AuditEntry(action="project.settings", subject=row.name, details=details)
    await append_audit(session, project_id, entry, by)
    return row


def hash_key(key: str) -> str:
    """What is stored of a key. A key is 256 random bits, so one round of sha256 is enough."""
    return hashlib.sha256(key.encode("utf-8")).hexdigest()


async def create_api_key(
    session: AsyncSession, project_id: str, new: NewKey, by: Author
) -> CreatedKey:
    """Makes a key; the secret in the answer is shown this once and never again.

    Raises:
        UserError: If the role is unknown or the end is not in the future.
    """
    if new.role not in _ROLES:
        raise UserError(f"the role is {new.role!r}; it must be one of {', '.join(_ROLES)}.")
    if new.expires_at is not None and new.expires_at.tzinfo is None:
        raise UserError(f"expires_at {new.expires_at.isoformat()} has no time zone.")
    key = _PREFIX + secrets.token_urlsafe(32)
    row = ApiKeyRow(
        id=new_id(),
        project_id=project_id,
        name=new.name,
        prefix=key[: len(_PREFIX) + 6],
        hash=hash_key(key),
        role=new.role,
        scopes=list(new.scopes),
        expires_at=new.expires_at,
    )
    session.add(row)
    await session.flush()
    entry = AuditEntry(action="api_key.create", subject=row.id, details={"role": new.role})
    await append_audit(session, project_id, entry, by)
    return CreatedKey(row.id, key)


async def list_api_keys(session: AsyncSession, project_id: str) -> list[ApiKeyRow]:
    """The project's keys, oldest first, revoked ones too."""
    rows = await session.scalars(
        select(ApiKeyRow).where(ApiKeyRow.project_id == project_id).order_by(ApiKeyRow.id)
    )
    return list(rows)


async def revoke_api_key(session: AsyncSession, project_id: str, key_id: str, by: Author) -> None:
    """Makes a key useless from the commit on; revoking twice keeps the first moment.

    Raises:
        NotFoundError: If the project has no such key.
    """
    found = await session.execute(
        update(ApiKeyRow)
        .where(ApiKeyRow.project_id == project_id, ApiKeyRow.id == key_id)
        .values(revoked_at=func.coalesce(ApiKeyRow.revoked_at, func.clock_timestamp()))
        .returning(ApiKeyRow.id)
    )
    if found.first() is None:
        raise NotFoundError(f"there is no API key {key_id!r} in this project.")
    await append_audit(session, project_id, AuditEntry(action="api_key.revoke", subject=key_id), by)


async def resolve_api_key(db: Database, key: str) -> KeyOwner:
    """Whom a presented key belongs to.

    Raises:
        PermissionDenied: If the key is unknown, revoked or expired (which of them is not told).
    """
    async with db.system() as session:
        owner = await find_api_key(session, hash_key(key))
    if owner is None:
        raise PermissionDenied(
            "the API key is not valid.", remedy="Send 'Authorization: Bearer instar_…'."
        )
    return owner
