"""Sessions: signed-in browsers, known by the hash of a cookie that holds 256 random bits.

The row decides, not the cookie: a session ends when it is ended, idle for too long or too old, when
its person is disabled, and when the password changes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import AuditEntry, Author, append_audit
from instar_core.base import new_id
from instar_core.errors import PermissionDenied

__all__ = [
    "HeldSession",
    "OpenedSession",
    "UserProject",
    "begin_sign_in",
    "end_session",
    "end_user_sessions",
    "find_session",
    "list_user_projects",
    "open_session",
    "switch_session",
    "take_sign_in",
]


class OpenedSession(NamedTuple):
    """A new session: the secret for the cookie, and when it ends at the latest."""

    secret: str
    expires_at: datetime


class HeldSession(NamedTuple):
    """Who holds a session, and what the person may do in its project now (empty: nothing)."""

    session_id: str
    user_id: str
    email: str
    name: str
    instance: bool
    project_id: str
    role: str
    expires_at: datetime


class UserProject(NamedTuple):
    """A project in which a person has a role."""

    id: str
    name: str
    role: str


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


async def open_session(
    session: AsyncSession, project_id: str, user_id: str, lifetime_s: float, how: str
) -> OpenedSession:
    """Opens a session of a person in the project of this transaction, audited.

    Args:
        session: A transaction of the project.
        project_id: The project that the session works in first.
        user_id: Whose session it is.
        lifetime_s: Seconds until it ends, whatever happens.
        how: How the person proved who he or she is, for the audit.

    Raises:
        PermissionDenied: If the person is disabled or has no role in the project.
    """
    secret = secrets.token_urlsafe(32)
    session_id = new_id()
    expires_at = await session.scalar(
        text(
            "select instar.open_session(cast(:id as uuid), :hash, cast(:user as uuid), "
            "cast(:project as uuid), cast(:lifetime as float8))"
        ),
        {
            "id": session_id,
            "hash": _hash(secret),
            "user": user_id,
            "project": project_id,
            "lifetime": lifetime_s,
        },
    )
    if expires_at is None:
        raise PermissionDenied("this person has no role in the project.")
    entry = AuditEntry(action="session.open", subject=session_id, details={"how": how})
    await append_audit(session, project_id, entry, Author("person", f"user:{user_id}"))
    return OpenedSession(secret, expires_at)


async def find_session(session: AsyncSession, secret: str, idle_s: float) -> HeldSession | None:
    """Who holds a session; ``None`` if it is unknown, ended, too old or idle for too long.

    Notes the use, at most once a minute.
    """
    row = (
        await session.execute(
            text(
                "select session_id, user_id, email, name, instance, project_id, role, expires_at "
                "from instar.find_session(:hash, cast(:idle as float8))"
            ),
            {"hash": _hash(secret), "idle": idle_s},
        )
    ).first()
    if row is None:
        return None
    return HeldSession(
        str(row.session_id),
        str(row.user_id),
        str(row.email),
        str(row.name),
        bool(row.instance),
        str(row.project_id),
        str(row.role or ""),
        row.expires_at,
    )


async def list_user_projects(session: AsyncSession, user_id: str) -> list[UserProject]:
    """The projects in which a person has a role, by name; archived ones left out."""
    rows = await session.execute(
        text("select project_id, name, role from instar.list_user_projects(cast(:user as uuid))"),
        {"user": user_id},
    )
    return [UserProject(str(row[0]), str(row[1]), str(row[2])) for row in rows]


async def switch_session(session: AsyncSession, secret: str, project_id: str) -> bool:
    """Lets a session work in another project; false where its person has no role there."""
    moved = await session.scalar(
        text("select instar.switch_session(:hash, cast(:project as uuid))"),
        {"hash": _hash(secret), "project": project_id},
    )
    return bool(moved)


async def end_session(session: AsyncSession, project_id: str, secret: str, by: Author) -> None:
    """Ends one session, audited in the project that it worked in."""
    if await session.scalar(text("select instar.end_session(:hash)"), {"hash": _hash(secret)}):
        entry = AuditEntry(action="session.end", subject=by.name)
        await append_audit(session, project_id, entry, by)


async def end_user_sessions(
    session: AsyncSession, project_id: str, user_id: str, by: Author
) -> int:
    """Ends every session of a person; returns how many there were."""
    count = await session.scalar(
        text("select instar.end_user_sessions(cast(:user as uuid))"), {"user": user_id}
    )
    entry = AuditEntry(action="session.end_all", subject=user_id, details={"count": count})
    await append_audit(session, project_id, entry, by)
    return int(count or 0)


async def begin_sign_in(
    session: AsyncSession, state: str, document: dict[str, Any], lifetime_s: float
) -> None:
    """Keeps what a sign-in at an identity provider needs when it comes back, under its state."""
    await session.execute(
        text(
            "select instar.begin_sign_in(:state, cast(:document as json), "
            "cast(:lifetime as float8))"
        ),
        {"state": _hash(state), "document": json.dumps(document), "lifetime": lifetime_s},
    )


async def take_sign_in(session: AsyncSession, state: str) -> dict[str, Any] | None:
    """What was begun under a state, once; ``None`` if it is unknown, used or too old."""
    found = await session.scalar(
        text("select instar.take_sign_in(:state)"), {"state": _hash(state)}
    )
    return None if found is None else dict(found)
