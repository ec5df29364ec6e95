"""Access: people, keys and projects, with the rules that no route may forget.

Nobody gives away more than they have: a key's maker bounds the key's role, scopes, end and right
over the installation. A project always keeps somebody in charge.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import Request
from sqlalchemy.ext.asyncio import AsyncSession

from instar.api.auth import Caller
from instar.api.declared import declared_routes
from instar.api.preconditions import check_match
from instar.api.schemas_access import (
    ApiKeyIn,
    ApiKeyMade,
    ApiKeyOut,
    ProjectEntry,
    ProjectMade,
    UserIn,
    UserOut,
)
from instar.store.passwords import check_password, hash_password
from instar.store.projects import (
    KeyRole,
    NewKey,
    archive_project,
    create_api_key,
    insert_project,
    read_api_key,
    read_project,
    require_admin_left,
    revoke_api_key,
)
from instar.store.sessions import list_user_projects
from instar.store.tables import ApiKeyRow
from instar.store.users import (
    Member,
    NewUser,
    add_user,
    bind_role,
    disable_user,
    read_user,
    set_password,
)
from instar_core.base import new_id
from instar_core.errors import ConflictError, NotFoundError, PermissionDenied, UserError

__all__ = [
    "add_person",
    "archive_own_project",
    "change_role",
    "key_out",
    "make_key",
    "make_project",
    "my_projects",
    "revoke_key",
    "reset_password",
    "shut_out",
    "user_out",
]


def user_out(member: Member) -> UserOut:
    """A person as callers see one."""
    return UserOut(**member._asdict())


def key_out(row: ApiKeyRow) -> ApiKeyOut:
    """A key as callers see it: never its secret, which nobody has."""
    return ApiKeyOut.model_validate(row, from_attributes=True)


async def add_person(caller: Caller, wanted: UserIn) -> UserOut:
    """Adds a person to the caller's project, making the person where the address is new."""
    hashed = ""
    if wanted.password is not None:
        password = wanted.password.get_secret_value()
        check_password(password, email=wanted.email)
        hashed = await hash_password(password)
    new = NewUser(wanted.email, wanted.name, hashed, wanted.instance)
    async with caller.db.transaction(caller.project_id) as session:
        made = await add_user(session, caller.project_id, new, wanted.role, caller.author)
    return user_out(made)


async def change_role(caller: Caller, user_id: str, role: KeyRole, if_match: str | None) -> UserOut:
    """Changes the role of a person of the caller's project, from the one that the caller saw.

    Raises:
        NotFoundError: If nobody of that id has a role here.
        ConflictError: If the project would be left without an administrator.
        PermissionDenied: If a narrow or passing key would raise a person.
        ProblemError: Without the present role as ``If-Match``.
    """
    project = caller.project_id
    async with caller.db.transaction(project) as session:
        member = await read_user(session, project, user_id, lock=True)
        check_match(if_match, member.role, f"the role of {member.email!r}")
        _check_raise(caller, member, role)
        return user_out(await bind_role(session, project, user_id, role, caller.author))


def _check_raise(caller: Caller, member: Member, role: KeyRole) -> None:
    """Refuses to make of a person, who has no scopes and no end, more than the caller's key is."""
    ranks = ("viewer", "operator", "approver", "admin")
    narrow = bool(caller.scopes) or (bool(caller.key_id) and caller.expires_at is not None)
    if narrow and ranks.index(role) > ranks.index(member.role):
        raise PermissionDenied(
            f"This key has scopes or an end, and {member.email!r} as {role!r} would have neither.",
            remedy="Use a key without them, or sign in.",
        )


async def reset_password(caller: Caller, user_id: str, password: str) -> None:
    """Gives a person of the caller's project a new password and ends that person's sessions."""
    project = caller.project_id
    async with caller.db.transaction(project) as session:
        member = await read_user(session, project, user_id)
    check_password(password, email=member.email)
    hashed = await hash_password(password)
    async with caller.db.transaction(project) as session:
        await set_password(session, project, user_id, hashed, caller.author)


async def shut_out(caller: Caller, user_id: str) -> UserOut:
    """Disables a person of the caller's project, everywhere."""
    project = caller.project_id
    async with caller.db.transaction(project) as session:
        await disable_user(session, project, user_id, caller.author)
        return user_out(await read_user(session, project, user_id))


async def make_key(request: Request, caller: Caller, wanted: ApiKeyIn) -> ApiKeyMade:
    """Makes a key that may do no more than its maker.

    Raises:
        PermissionDenied: If it would.
        UserError: If a scope names no area.
    """
    areas = _areas(request)
    for scope in wanted.scopes:
        if scope.removesuffix(":read") not in areas:
            raise UserError(
                f"{scope!r} is no scope.",
                remedy=f"Areas: {', '.join(sorted(areas))}; with ':read' where reading is enough.",
            )
    _check_bounds(caller, wanted)
    new = NewKey(**wanted.model_dump())
    async with caller.db.transaction(caller.project_id) as session:
        made = await create_api_key(session, caller.project_id, new, caller.author)
    return ApiKeyMade(id=made.id, key=made.key)


def _areas(request: Request) -> set[str]:
    paths = (one.path for one in declared_routes(request.app))
    return {path.split("/")[2] for path in paths if path.startswith("/v1/")}


def _check_bounds(caller: Caller, wanted: ApiKeyIn) -> None:
    excess: str | None = None
    if not caller.has(wanted.role):
        excess = f"of role {wanted.role!r}"
    elif wanted.instance and not caller.may("instance"):
        excess = "with the right over the installation"
    elif caller.scopes and not (
        wanted.scopes and all(_covered(scope, caller.scopes) for scope in wanted.scopes)
    ):
        excess = f"for {', '.join(wanted.scopes) or 'every area'}"
    elif caller.key_id and caller.expires_at is not None:
        end = wanted.expires_at
        if end is None or end.tzinfo is not None and end > caller.expires_at:
            excess = f"that works after {caller.expires_at.isoformat()}"
    if excess is not None:
        raise PermissionDenied(
            f"You may not make a key {excess}: it could do more than you can.",
            remedy="Ask for less, or use another credential.",
        )


def _covered(scope: str, held: Iterable[str]) -> bool:
    return scope in held or scope.removesuffix(":read") in held


async def revoke_key(caller: Caller, key_id: str) -> None:
    """Makes a key of the caller's project useless.

    Raises:
        NotFoundError: If the project has no such key.
        ConflictError: If nobody could administer the project afterwards.
    """
    project = caller.project_id
    async with caller.db.transaction(project) as session:
        row = await read_api_key(session, project, key_id)
        if row.role == "admin" and row.revoked_at is None and not row.agent:
            await require_admin_left(session, key_id, "revoking this key")
        await revoke_api_key(session, project, key_id, caller.author)


async def my_projects(caller: Caller) -> list[ProjectEntry]:
    """The projects in which the caller may work."""
    if caller.session is None:
        async with caller.db.transaction(caller.project_id) as session:
            row = await read_project(session, caller.project_id)
        return [ProjectEntry(id=row.id, name=row.name, role=caller.role)]
    async with caller.db.system() as session:
        rows = await list_user_projects(session, caller.session.user_id)
    return [ProjectEntry(**row._asdict()) for row in rows]


async def make_project(caller: Caller, name: str) -> ProjectMade:
    """Makes a project: a person becomes its admin, a key gets the first key of it."""
    project = new_id()
    async with caller.db.transaction(project) as session:
        await insert_project(session, project, name, caller.author)
        return await _first_admin(session, caller, project, name)


async def _first_admin(
    session: AsyncSession, caller: Caller, project: str, name: str
) -> ProjectMade:
    made: dict[str, Any] = {"id": project, "name": name}
    if caller.session is not None:
        await bind_role(session, project, caller.session.user_id, "admin", caller.author)
        return ProjectMade(**made)
    new = NewKey(f"first key of {name}", "admin", expires_at=caller.expires_at, instance=True)
    key = await create_api_key(session, project, new, caller.author)
    return ProjectMade(**made, key_id=key.id, key=key.key)


async def archive_own_project(caller: Caller, project_id: str) -> None:
    """Takes the caller's project out of use.

    Raises:
        NotFoundError: If it is another project.
        ConflictError: If it is the one that the installation itself works in.
    """
    if project_id != caller.project_id:
        raise NotFoundError(
            f"there is no project {project_id!r} that you work in.",
            remedy="PUT /v1/auth/session changes to another.",
        )
    async with caller.db.transaction(caller.project_id) as session:
        row = await read_project(session, caller.project_id)
        if row.name == caller.service.settings.project:
            raise ConflictError(
                f"the project {row.name!r} is the one that this installation starts with.",
                remedy="Archive others; or start with another one (INSTAR_PROJECT) first.",
            )
        await archive_project(session, caller.project_id, caller.author)
