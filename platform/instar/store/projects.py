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
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import SYSTEM, AuditEntry, Author, append_audit
from instar.store.pages import Page, read_page
from instar.store.session import Database
from instar.store.system import KeyOwner, find_api_key, find_project
from instar.store.tables import ApiKeyRow, ProjectRow
from instar_core.base import JsonValue, new_id
from instar_core.errors import ConflictError, NotFoundError, PermissionDenied, UserError

__all__ = [
    "CreatedKey",
    "KeyRole",
    "NewKey",
    "archive_project",
    "create_api_key",
    "create_project",
    "ensure_project",
    "hash_key",
    "insert_project",
    "list_api_keys",
    "page_api_keys",
    "read_api_key",
    "read_project",
    "require_admin_left",
    "resolve_api_key",
    "revoke_api_key",
    "update_project_settings",
]

KeyRole = Literal["viewer", "operator", "approver", "admin"]
_ROLES: tuple[KeyRole, ...] = ("viewer", "operator", "approver", "admin")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_SCOPE = re.compile(r"[a-z][a-z0-9-]{0,62}(:read)?")
_PREFIX = "instar_"
_MOST_SCOPES = 50


class NewKey(NamedTuple):
    """What a new key shall be: a name for people, a role, narrower scopes, an end.

    ``agent`` names the agent that will hold the key: it never approves. ``instance`` lets the key
    create projects and users.
    """

    name: str
    role: KeyRole = "operator"
    scopes: Sequence[str] = ()
    expires_at: datetime | None = None
    instance: bool = False
    agent: str = ""


class CreatedKey(NamedTuple):
    """A key as its maker sees it, once."""

    id: str
    key: str


async def create_project(db: Database, name: str, by: Author = SYSTEM) -> str:
    """Creates a project and returns its id.

    Raises:
        UserError: If the name is not lower-case letters, digits, ``.``, ``_`` and ``-``.
        ConflictError: If there is one of that name.
    """
    project_id = new_id()
    async with db.transaction(project_id) as session:
        await insert_project(session, project_id, name, by)
    return project_id


async def insert_project(session: AsyncSession, project_id: str, name: str, by: Author) -> None:
    """Creates the project of this transaction, audited.

    Raises:
        UserError: If the name is not lower-case letters, digits, ``.``, ``_`` and ``-``.
        ConflictError: If there is one of that name.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be a project's name.",
            remedy="Use 1 to 63 lower-case letters, digits, '.', '_' and '-', such as 'support'.",
        )
    made = await session.scalar(
        insert(ProjectRow)
        .values(id=project_id, name=name)
        .on_conflict_do_nothing()
        .returning(ProjectRow.id)
    )
    if made is None:
        raise ConflictError(f"the project name {name!r} is taken.", remedy="Choose another.")
    entry = AuditEntry(action="project.create", subject=name)
    await append_audit(session, project_id, entry, by)


async def archive_project(session: AsyncSession, project_id: str, by: Author) -> None:
    """Takes a project out of use: its keys open nothing any more; everything stays stored.

    Raises:
        NotFoundError: If there is no such project, or it is archived already.
    """
    row = await session.get(ProjectRow, project_id, with_for_update=True)
    if row is None or row.deleted_at is not None:
        raise NotFoundError(f"there is no project {project_id!r}.")
    row.deleted_at = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    await session.flush()
    await append_audit(
        session, project_id, AuditEntry(action="project.archive", subject=row.name), by
    )


async def ensure_project(db: Database, name: str = "default") -> str:
    """The id of the project with that name; created if there is none, once for all callers."""
    async with db.system() as session:
        # Two first starts at once: the second waits here and then finds what the first made.
        await session.execute(
            text("select pg_advisory_xact_lock(hashtextextended('instar.ensure_project', 0))")
        )
        found = await find_project(session, name)
        return found if found is not None else await create_project(db, name)


async def read_project(session: AsyncSession, project_id: str, *, lock: bool = False) -> ProjectRow:
    """The project of this transaction; with ``lock`` nobody else changes it until it ends.

    Raises:
        NotFoundError: If this is not the project's own transaction, or there is no such project.
    """
    row = await session.get(
        ProjectRow, project_id, with_for_update=lock or None, populate_existing=lock
    )
    if row is None:
        raise NotFoundError(f"there is no project {project_id!r}.")
    return row


async def update_project_settings(
    session: AsyncSession, project_id: str, changes: dict[str, object], by: Author
) -> ProjectRow:
    """Merges ``changes`` into the project's settings (such as its promotion rule), audited.

    Raises:
        NotFoundError: If there is no such project.
    """
    row = await read_project(session, project_id, lock=True)
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
        UserError: If the role or a scope is unknown, or the end has no time zone.
    """
    _check_key(new)
    key = _PREFIX + secrets.token_urlsafe(32)
    row = ApiKeyRow(
        id=new_id(),
        project_id=project_id,
        name=new.name,
        prefix=key[: len(_PREFIX) + 6],
        hash=hash_key(key),
        role=new.role,
        scopes=sorted(set(new.scopes)),
        expires_at=new.expires_at,
        instance=new.instance,
        agent=new.agent,
        created_by=by.name,
    )
    session.add(row)
    await session.flush()
    details: dict[str, JsonValue] = {
        "name": new.name,
        "role": new.role,
        "scopes": list(row.scopes),
        "expires_at": None if new.expires_at is None else new.expires_at.isoformat(),
        "instance": new.instance,
        "agent": new.agent,
    }
    entry = AuditEntry(action="api_key.create", subject=row.id, details=details)
    await append_audit(session, project_id, entry, by)
    return CreatedKey(row.id, key)


def _check_key(new: NewKey) -> None:
    if new.role not in _ROLES:
        raise UserError(f"the role is {new.role!r}; it must be one of {', '.join(_ROLES)}.")
    if not new.name.strip() or len(new.name) > 200:
        raise UserError(f"a key's name has 1 to 200 characters; this one has {len(new.name)}.")
    if new.expires_at is not None and new.expires_at.tzinfo is None:
        raise UserError(f"expires_at {new.expires_at.isoformat()} has no time zone.")
    if len(new.scopes) > _MOST_SCOPES:
        raise UserError(f"a key has at most {_MOST_SCOPES} scopes; this one has {len(new.scopes)}.")
    for scope in new.scopes:
        if not _SCOPE.fullmatch(scope):
            raise UserError(
                f"{scope!r} is no scope.", remedy="Write an area such as 'runs', or 'runs:read'."
            )
    if new.agent and (new.role not in ("viewer", "operator") or new.instance):
        raise UserError(
            f"a key held by an agent cannot be of role {new.role!r}"
            + (" with the right over the installation." if new.instance else "."),
            remedy="Agents' keys are viewer or operator: an agent never approves.",
        )


async def list_api_keys(session: AsyncSession, project_id: str) -> list[ApiKeyRow]:
    """The project's keys, oldest first, revoked ones too."""
    rows = await session.scalars(
        select(ApiKeyRow).where(ApiKeyRow.project_id == project_id).order_by(ApiKeyRow.id)
    )
    return list(rows)


async def page_api_keys(
    session: AsyncSession, project_id: str, *, limit: int = 50, cursor: str | None = None
) -> Page[ApiKeyRow]:
    """A page of the project's keys, newest first, revoked ones too."""
    query = select(ApiKeyRow).where(ApiKeyRow.project_id == project_id)
    return await read_page(session, query, ApiKeyRow, limit=limit, cursor=cursor)


async def read_api_key(session: AsyncSession, project_id: str, key_id: str) -> ApiKeyRow:
    """One key of the project.

    Raises:
        NotFoundError: If the project has no such key.
    """
    row = await session.scalar(
        select(ApiKeyRow).where(ApiKeyRow.project_id == project_id, ApiKeyRow.id == key_id)
    )
    if row is None:
        raise NotFoundError(f"there is no API key {key_id!r} in this project.")
    return row


async def revoke_api_key(session: AsyncSession, project_id: str, key_id: str, by: Author) -> None:
    """Makes a key useless from the commit on; revoking twice keeps the first moment.

    Raises:
        NotFoundError: If the project has no such key.
    """
    row = await read_api_key(session, project_id, key_id)
    if row.revoked_at is not None:
        return
    await session.execute(
        update(ApiKeyRow)
        .where(ApiKeyRow.project_id == project_id, ApiKeyRow.id == key_id)
        .values(revoked_at=func.coalesce(ApiKeyRow.revoked_at, func.clock_timestamp()))
    )
    entry = AuditEntry(action="api_key.revoke", subject=key_id, details={"name": row.name})
    await append_audit(session, project_id, entry, by)


async def require_admin_left(session: AsyncSession, without: str, what: str) -> None:
    """Refuses what would leave the project of this transaction without anybody in charge.

    Args:
        session: A project transaction; until it ends nobody else takes an admin away.
        without: The person or key that goes.
        what: What would be done, for the message.

    Raises:
        ConflictError: If nobody else could administer the project afterwards.
    """
    left = await session.scalar(
        text("select instar.keeps_admin(cast(:without as uuid))"), {"without": without}
    )
    if not left:
        raise ConflictError(
            f"{what} would leave the project without an administrator.",
            remedy="Make another admin first: a person who can sign in, or a key of role admin "
            "without an end and without scopes.",
        )


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
