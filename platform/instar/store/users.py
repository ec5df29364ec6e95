"""Users: people, and what they may do in a project.

A person may have roles in several projects. A project's transaction sees the people who have a role
there and nobody else; never a password's hash. What concerns the person as such (making, disabling,
passwords) goes through definer functions, which callers with the right over the installation use.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

from sqlalchemy import Row, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.projects import KeyRole, require_admin_left
from instar.store.tables import RoleBindingRow, UserRow
from instar_core.base import JsonValue, new_id
from instar_core.errors import ConflictError, NotFoundError, UserError

__all__ = [
    "Login",
    "Member",
    "NewUser",
    "add_user",
    "bind_role",
    "bound_by",
    "check_email",
    "clear_login",
    "disable_user",
    "find_login",
    "find_subject",
    "find_user",
    "insert_user",
    "link_subject",
    "list_users",
    "read_user",
    "set_password",
    "try_login",
    "unbind",
]

_EMAIL = re.compile(r"[^\s@\x00-\x1f\x7f]{1,64}@[^\s@\x00-\x1f\x7f]{1,255}")
_ROLES = ("viewer", "operator", "approver", "admin")


class NewUser(NamedTuple):
    """A person to make; without a password he or she signs in at an identity provider alone."""

    email: str
    name: str = ""
    password_hash: str = ""
    instance: bool = False
    issuer: str = ""
    subject: str = ""


class Member(NamedTuple):
    """A person with a role in the project of the transaction."""

    id: str
    email: str
    name: str
    role: str
    instance: bool
    disabled: bool


class Login(NamedTuple):
    """What a password is compared with."""

    user_id: str
    password_hash: str


def check_email(email: str) -> str:
    """The address as it is kept.

    Raises:
        UserError: If it is no address.
    """
    plain = email.strip()
    if not _EMAIL.fullmatch(plain):
        raise UserError(f"{email!r} is no e-mail address.", remedy="Write it as name@example.org.")
    return plain


def _throttle_key(email: str) -> str:
    return hashlib.sha256(email.strip().lower().encode("utf-8", "replace")).hexdigest()


async def try_login(session: AsyncSession, email: str) -> float:
    """Counts an attempt to sign in, before it is made.

    Args:
        session: A system session; the attempt counts from its commit.
        email: The address, whether anybody has it or not.

    Returns:
        0 if the attempt may be made, else the seconds to wait: after five failures, growing.
    """
    found = await session.scalar(
        text("select instar.try_login(:key)"), {"key": _throttle_key(email)}
    )
    return float(found or 0.0)


async def clear_login(session: AsyncSession, email: str) -> None:
    """Forgets the failures at an address, once its person has signed in."""
    await session.execute(text("select instar.clear_login(:key)"), {"key": _throttle_key(email)})


async def find_login(session: AsyncSession, email: str) -> Login | None:
    """The person of an address and the hash of the password; ``None`` for nobody or a disabled
    one."""
    row = (
        await session.execute(
            text("select user_id, password_hash from instar.find_login(:email)"),
            {"email": email.strip()},
        )
    ).first()
    return None if row is None else Login(str(row[0]), str(row[1]))


async def find_user(session: AsyncSession, email: str) -> str | None:
    """The id of the person with that address, wherever he or she works: for instance admins."""
    found = await session.scalar(text("select instar.find_user(:email)"), {"email": email.strip()})
    return None if found is None else str(found)


async def find_subject(session: AsyncSession, issuer: str, subject: str) -> tuple[str, bool] | None:
    """The person of an identity provider's subject, and whether he or she is disabled."""
    row = (
        await session.execute(
            text("select user_id, disabled from instar.find_subject(:issuer, :subject)"),
            {"issuer": issuer, "subject": subject},
        )
    ).first()
    return None if row is None else (str(row[0]), bool(row[1]))


async def link_subject(session: AsyncSession, user_id: str, issuer: str, subject: str) -> bool:
    """Ties a person to an identity provider's subject; false if tied already."""
    linked = await session.scalar(
        text("select instar.link_subject(cast(:user as uuid), :issuer, :subject)"),
        {"user": user_id, "issuer": issuer, "subject": subject},
    )
    return bool(linked)


async def insert_user(session: AsyncSession, new: NewUser) -> str | None:
    """Makes a person without any role; ``None`` if the address or subject is taken."""
    made = await session.scalar(
        text(
            "select instar.create_user(cast(:id as uuid), :email, :name, :password_hash, :issuer, "
            ":subject, :instance)"
        ),
        {"id": new_id(), **new._asdict()},
    )
    return None if made is None else str(made)


async def add_user(
    session: AsyncSession, project_id: str, new: NewUser, role: KeyRole, by: Author
) -> Member:
    """Makes a person with a role in the project, or gives one who exists the role there.

    Raises:
        UserError: If the address or the role is none.
        ConflictError: If the person exists and a password or the right over the installation was
            given too: who somebody is in other projects is not changed from here.
    """
    email = check_email(new.email)
    user_id = await insert_user(session, new._replace(email=email))
    if user_id is None:
        if new.password_hash or new.instance:
            raise ConflictError(
                f"there is somebody with the address {email!r} already.",
                remedy="Leave the password out (`--no-password`) to give this person a role here; "
                "`instar user role` changes one.",
            )
        user_id = await find_user(session, email)
        assert user_id is not None, "the address is taken"
    else:
        details: dict[str, JsonValue] = {"instance": new.instance}
        entry = AuditEntry(action="user.create", subject=user_id, details=details)
        await append_audit(session, project_id, entry, by)
    return await bind_role(session, project_id, user_id, role, by)


async def bind_role(
    session: AsyncSession, project_id: str, user_id: str, role: KeyRole, by: Author
) -> Member:
    """Gives a person a role in the project, in place of the one before.

    Raises:
        UserError: If the role is unknown.
        ConflictError: If the project would be left without an administrator.
    """
    if role not in _ROLES:
        raise UserError(f"the role is {role!r}; it must be one of {', '.join(_ROLES)}.")
    before = await session.scalar(
        select(RoleBindingRow.role)
        .where(RoleBindingRow.project_id == project_id, RoleBindingRow.user_id == user_id)
        .with_for_update()
    )
    if before == "admin" and role != "admin":
        await require_admin_left(session, user_id, "taking the role away")
    values = {"role": role, "created_by": by.name}
    await session.execute(
        insert(RoleBindingRow)
        .values(project_id=project_id, user_id=user_id, **values)
        .on_conflict_do_update(
            index_elements=[RoleBindingRow.project_id, RoleBindingRow.user_id], set_=values
        )
    )
    if before != role:
        details: dict[str, JsonValue] = {"before": before, "after": role}
        entry = AuditEntry(action="role.bind", subject=user_id, details=details)
        await append_audit(session, project_id, entry, by)
    return await read_user(session, project_id, user_id)


async def bound_by(session: AsyncSession, project_id: str, user_id: str) -> str | None:
    """Who gave a person the role in the project; ``None`` where there is none."""
    found: str | None = await session.scalar(
        select(RoleBindingRow.created_by).where(
            RoleBindingRow.project_id == project_id, RoleBindingRow.user_id == user_id
        )
    )
    return found


async def unbind(session: AsyncSession, project_id: str, user_id: str, by: Author) -> None:
    """Takes a person out of the project; roles elsewhere stay.

    Raises:
        NotFoundError: If the person has no role here.
        ConflictError: If the project would be left without an administrator.
    """
    member = await read_user(session, project_id, user_id)
    if member.role == "admin":
        await require_admin_left(session, user_id, "removing this person")
    await session.execute(
        delete(RoleBindingRow).where(
            RoleBindingRow.project_id == project_id, RoleBindingRow.user_id == user_id
        )
    )
    entry = AuditEntry(action="role.remove", subject=user_id, details={"before": member.role})
    await append_audit(session, project_id, entry, by)


def _members(project_id: str) -> Any:
    return (
        select(
            UserRow.id,
            UserRow.email,
            UserRow.name,
            RoleBindingRow.role,
            UserRow.instance,
            UserRow.disabled_at,
        )
        .join(RoleBindingRow, RoleBindingRow.user_id == UserRow.id)
        .where(RoleBindingRow.project_id == project_id)
    )


def _member(row: Row[Any]) -> Member:
    known = row._mapping
    return Member(
        id=known["id"],
        email=known["email"],
        name=known["name"],
        role=known["role"],
        instance=known["instance"],
        disabled=known["disabled_at"] is not None,
    )


async def list_users(
    session: AsyncSession, project_id: str, *, limit: int = 50, after: str | None = None
) -> list[Member]:
    """The people with a role in the project, by address, after one."""
    query = _members(project_id).order_by(func.lower(UserRow.email)).limit(limit)
    if after is not None:
        query = query.where(func.lower(UserRow.email) > after.lower())
    return [_member(row) for row in await session.execute(query)]


async def read_user(
    session: AsyncSession, project_id: str, user_id: str, *, lock: bool = False
) -> Member:
    """One person of the project; with ``lock`` the role stays as it is until the transaction ends.

    Raises:
        NotFoundError: If nobody of that id has a role here.
    """
    query = _members(project_id).where(UserRow.id == user_id)
    if lock:
        query = query.with_for_update(of=RoleBindingRow)
    row = (await session.execute(query)).first()
    if row is None:
        raise NotFoundError(f"there is no user {user_id!r} in this project.")
    return _member(row)


async def set_password(
    session: AsyncSession, project_id: str, user_id: str, password_hash: str, by: Author
) -> None:
    """Sets a person's password and ends all sessions of that person.

    Raises:
        NotFoundError: If there is no such person, or a disabled one.
    """
    done = await session.scalar(
        text("select instar.set_password(cast(:user as uuid), :hash)"),
        {"user": user_id, "hash": password_hash},
    )
    if not done:
        raise NotFoundError(f"there is no user {user_id!r} in this project.")
    entry = AuditEntry(action="user.password", subject=user_id)
    await append_audit(session, project_id, entry, by)


async def disable_user(session: AsyncSession, project_id: str, user_id: str, by: Author) -> None:
    """Shuts a person out of every project and ends all sessions.

    Raises:
        NotFoundError: If nobody of that id has a role in this project.
        ConflictError: If a project would be left without an administrator.
    """
    await read_user(session, project_id, user_id)
    state = await session.scalar(
        text("select instar.disable_user(cast(:user as uuid))"), {"user": user_id}
    )
    if state == "last_admin":
        raise ConflictError(
            "disabling this person would leave a project without an administrator.",
            remedy="Make another admin there first.",
        )
    if state != "done":
        raise NotFoundError(f"there is no user {user_id!r} in this project.")
    await append_audit(session, project_id, AuditEntry(action="user.disable", subject=user_id), by)
