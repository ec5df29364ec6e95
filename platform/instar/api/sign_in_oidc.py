"""Signing in at an identity provider: the way there, the way back, and which roles it gives."""

from __future__ import annotations

import hmac
import logging
from typing import Final

from fastapi import Request
from fastapi.responses import RedirectResponse
from sqlalchemy.ext.asyncio import AsyncSession

from instar.api.auth import on_loopback, service_of
from instar.api.oidc import Identity, OidcClient, check_next
from instar.api.problems import ProblemError
from instar.api.service import Service
from instar.api.sign_in import set_cookie, start_session
from instar.store.audit import AuditEntry, Author, append_audit
from instar.store.projects import KeyRole
from instar.store.sessions import begin_sign_in, list_user_projects, take_sign_in
from instar.store.system import find_project
from instar.store.users import (
    NewUser,
    bind_role,
    bound_by,
    check_email,
    find_subject,
    find_user,
    insert_user,
    link_subject,
    unbind,
)
from instar_core.errors import ConflictError, PermissionDenied

__all__ = ["come_back", "go_there", "mapped_roles"]

_log = logging.getLogger(__name__)
_BEGUN_S: Final = 600
_ROLES: Final[tuple[KeyRole, ...]] = ("viewer", "operator", "approver", "admin")
_BY: Final = Author("system", "identity provider")


def client_of(request: Request) -> OidcClient:
    """The client of this process, made at its first use."""
    known = getattr(request.app.state, "oidc", None)
    if not isinstance(known, OidcClient):
        known = OidcClient(service_of(request).settings.auth.oidc)
        request.app.state.oidc = known
    return known


def _cookie(request: Request) -> str:
    return "instar_sign_in" if on_loopback(request) else "__Host-instar_sign_in"


async def go_there(request: Request, path: str) -> RedirectResponse:
    """Sends the browser to the provider, and remembers that this browser began."""
    service = service_of(request)
    await service.require_ready()
    started = await client_of(request).start()
    document = {"nonce": started.nonce, "verifier": started.verifier, "next": check_next(path)}
    async with service.db.system() as session:
        await begin_sign_in(session, started.state, document, _BEGUN_S)
    response = RedirectResponse(started.url, status_code=303)
    response.set_cookie(
        _cookie(request),
        started.state,
        max_age=_BEGUN_S,
        path="/",
        secure=not on_loopback(request),
        httponly=True,
        samesite="lax",
    )
    return response


async def come_back(
    request: Request, code: str | None, state: str, issuer: str | None
) -> RedirectResponse:
    """Checks what the provider says, signs the person in and goes where the browser wanted to.

    Raises:
        ProblemError: ``unauthenticated``, if the answer is not one to a sign-in that this browser
            began, or the provider's word does not hold.
        PermissionDenied: If the person has no role in any project.
    """
    service = service_of(request)
    await service.require_ready()
    # Taken before anything is looked at: whatever is wrong with it, it serves no second time.
    async with service.db.system() as session:
        begun = await take_sign_in(session, state)
    ours = request.cookies.get(_cookie(request), "")
    if begun is None or not hmac.compare_digest(ours.encode(), state.encode()):
        raise ProblemError(
            "unauthenticated",
            "This sign-in was not begun in this browser, took too long, or was finished before.",
            remedy="Begin again at /v1/auth/oidc/login.",
        )
    if not code:
        raise ProblemError(
            "unauthenticated",
            "The identity provider did not sign you in.",
            remedy="Begin again at /v1/auth/oidc/login.",
        )
    identity = await client_of(request).finish(code, begun, issuer)
    user_id = await _person_of(service, identity)
    opened = await start_session(service, user_id, None, "identity provider")
    response = RedirectResponse(check_next(str(begun["next"])), status_code=303)
    set_cookie(request, response, opened)
    response.delete_cookie(_cookie(request), path="/", secure=not on_loopback(request))
    return response


def mapped_roles(
    groups: tuple[str, ...], role_map: dict[str, dict[str, KeyRole]]
) -> dict[str, KeyRole]:
    """The role in each project that somebody's groups give: the highest where several do."""
    found: dict[str, KeyRole] = {}
    for group in ("*", *groups):
        for project, role in role_map.get(group, {}).items():
            given = _ROLES.index(role)
            if given >= _ROLES.index(found.get(project, "viewer")):
                found[project] = role
    return found


async def _person_of(service: Service, identity: Identity) -> str:
    """The person's id, with the roles that the groups give now."""
    role_map = service.settings.auth.oidc.role_map
    roles = mapped_roles(identity.groups, role_map)
    every = {project for mapped in role_map.values() for project in mapped}
    async with service.db.system() as session:
        known = await find_subject(session, identity.issuer, identity.subject)
        if known is not None and known[1]:
            raise PermissionDenied("this person may not sign in any more.")
        ids = {name: await find_project(session, name) for name in sorted(every)}
        user_id = known[0] if known is not None else await _new_person(session, identity, roles)
    for name, project in ids.items():
        if project is not None:
            async with service.db.transaction(project) as session:
                await _settle(session, project, user_id, roles.get(name))
    return user_id


async def _new_person(session: AsyncSession, identity: Identity, roles: dict[str, KeyRole]) -> str:
    """Ties the subject to the person with its address, or makes one where a role awaits."""
    email = check_email(identity.email)
    user_id = await find_user(session, email)
    if user_id is not None:
        if not await link_subject(session, user_id, identity.issuer, identity.subject):
            raise PermissionDenied(
                "somebody else signs in with this address, or may not any more.",
                remedy="Ask an administrator.",
            )
        return user_id
    if not roles:
        raise PermissionDenied(
            "You have no role in any project.", remedy="Ask an administrator for one."
        )
    new = NewUser(email, identity.name, issuer=identity.issuer, subject=identity.subject)
    made = await insert_user(session, new)
    if made is None:
        raise ConflictError("this person signs in twice at once.", remedy="Try again.")
    return made


async def _settle(session: AsyncSession, project: str, user_id: str, role: KeyRole | None) -> None:
    """Gives the person the role that the groups say, or takes away one that they gave before."""
    mine = {one.id: one for one in await list_user_projects(session, user_id)}.get(project)
    if role is not None and (mine is None or mine.role != role):
        if mine is None:
            entry = AuditEntry(action="user.sign_up", subject=user_id)
            await append_audit(session, project, entry, _BY)
        await bind_role(session, project, user_id, role, _BY)
    elif (
        role is None and mine is not None and await bound_by(session, project, user_id) == _BY.name
    ):
        try:
            await unbind(session, project, user_id, _BY)
        except ConflictError:
            _log.warning("the last admin of a project lost the group, and stays")
