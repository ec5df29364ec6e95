"""Signing in: a password or an identity provider proves who somebody is; a cookie keeps it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from fastapi import Request, Response

from instar.api.auth import (
    Caller,
    SignedIn,
    caller_of_session,
    cookie_name,
    csrf_token,
    on_loopback,
)
from instar.api.problems import ProblemError, TooManyAttempts
from instar.api.schemas_access import LoginIn, PasswordIn, ProjectEntry, SessionOut
from instar.api.service import Service
from instar.store.passwords import check_password, hash_password, verify_password
from instar.store.projects import read_project
from instar.store.sessions import (
    OpenedSession,
    UserProject,
    end_session,
    end_user_sessions,
    list_user_projects,
    open_session,
    switch_session,
)
from instar.store.users import clear_login, find_login, set_password, try_login
from instar_core.errors import NotFoundError, PermissionDenied

__all__ = [
    "change_password",
    "choose_project",
    "drop_cookie",
    "log_in",
    "log_out",
    "session_out",
    "set_cookie",
    "signed_in_out",
    "start_session",
    "switch_project",
]

_log = logging.getLogger(__name__)


async def log_in(service: Service, wanted: LoginIn) -> OpenedSession:
    """Opens a session for an address and its password.

    Raises:
        TooManyAttempts: If the address failed too often; whether anybody has it is not told.
        ProblemError: ``unauthenticated`` for a wrong address or password, without saying which.
        PermissionDenied: If the person has no role in any project, or none in the one named.
    """
    user_id = await _prove(service, wanted.email, wanted.password.get_secret_value())
    return await start_session(service, user_id, wanted.project, "password", email=wanted.email)


async def _prove(service: Service, email: str, password: str) -> str:
    """The id of the person whose address and password these are. Takes as long for nobody."""
    async with service.db.system() as session:
        wait_s = await try_login(session, email)
    if wait_s > 0:
        raise TooManyAttempts(wait_s)
    async with service.db.system() as session:
        login = await find_login(session, email)
    fits = await verify_password("" if login is None else login.password_hash, password)
    if login is None or not fits:
        _log.warning("a sign-in by password failed")
        raise ProblemError(
            "unauthenticated",
            "The address or the password is wrong.",
            remedy="After five failures an address has to wait.",
        )
    return login.user_id


async def start_session(
    service: Service, user_id: str, project: str | None, how: str, *, email: str = ""
) -> OpenedSession:
    """Opens a session for a person who was proved to be one.

    Args:
        service: The service.
        user_id: Who it is.
        project: Name or id of the project to work in; the service's own, or the first, when empty.
        how: How it was proved, for the audit.
        email: The address whose failures are forgotten.

    Raises:
        PermissionDenied: If the person has no role there.
    """
    async with service.db.system() as session:
        projects = await list_user_projects(session, user_id)
    chosen = choose_project(projects, project, service.settings.project)
    lifetime = service.settings.auth.session_max_s
    async with service.db.transaction(chosen.id) as session:
        opened = await open_session(session, chosen.id, user_id, lifetime, how)
        if email:
            await clear_login(session, email)
    return opened


def choose_project(projects: list[UserProject], wanted: str | None, usual: str) -> UserProject:
    """The project to work in.

    Raises:
        PermissionDenied: If the person has no role in it, or in none.
    """
    if not projects:
        raise PermissionDenied(
            "You have no role in any project.", remedy="Ask an administrator for one."
        )
    if wanted is None:
        return next((one for one in projects if one.name == usual), projects[0])
    found = next((one for one in projects if wanted in (one.name, one.id)), None)
    if found is None:
        raise PermissionDenied(
            f"You have no role in a project {wanted!r}.",
            remedy=f"You may work in: {', '.join(one.name for one in projects)}.",
        )
    return found


def set_cookie(request: Request, response: Response, opened: OpenedSession) -> None:
    """Gives the browser its session: out of reach of scripts and of other sites' forms."""
    response.set_cookie(
        cookie_name(request),
        opened.secret,
        max_age=max(0, int((opened.expires_at - datetime.now(UTC)).total_seconds())),
        path="/",
        secure=not on_loopback(request),
        httponly=True,
        samesite="lax",
    )


def drop_cookie(request: Request, response: Response) -> None:
    """Lets the browser forget its session."""
    response.delete_cookie(
        cookie_name(request), path="/", secure=not on_loopback(request), httponly=True
    )


async def session_out(caller: Caller) -> SessionOut:
    """Who the caller is and where it may work."""
    if caller.session is None:
        async with caller.db.transaction(caller.project_id) as session:
            row = await read_project(session, caller.project_id)
        entry = ProjectEntry(id=row.id, name=row.name, role=caller.role)
        return SessionOut(
            kind="key",
            id=caller.key_id,
            agent=caller.agent,
            scopes=list(caller.scopes),
            instance=caller.instance,
            project=entry,
            projects=[entry],
            expires_at=caller.expires_at,
        )
    held = caller.session
    async with caller.db.system() as session:
        rows = await list_user_projects(session, held.user_id)
    projects = [ProjectEntry(**row._asdict()) for row in rows]
    return SessionOut(
        kind="session",
        id=held.user_id,
        name=held.name,
        email=held.email,
        instance=caller.instance,
        project=next((one for one in projects if one.id == caller.project_id), None),
        projects=projects,
        csrf_token=csrf_token(held.secret),
        expires_at=held.expires_at,
    )


async def signed_in_out(service: Service, held: OpenedSession | SignedIn | None) -> SessionOut:
    """Who holds a session that was just opened or changed, read anew.

    Raises:
        Unauthenticated: If it ended meanwhile.
    """
    assert held is not None, "only people have sessions"
    return await session_out(await caller_of_session(service, held.secret))


def _person(caller: Caller) -> SignedIn:
    if caller.session is None:
        raise PermissionDenied(
            "An API key has neither a session nor a password.",
            remedy="Sign in at /v1/auth/login.",
        )
    return caller.session


async def switch_project(caller: Caller, wanted: str) -> None:
    """Lets the caller's session work in another of the person's projects.

    Raises:
        NotFoundError: If the person has no role in such a project, or there is none.
    """
    held = _person(caller)
    async with caller.db.system() as session:
        projects = await list_user_projects(session, held.user_id)
        found = next((one for one in projects if wanted in (one.name, one.id)), None)
        if found is None or not await switch_session(session, held.secret, found.id):
            raise NotFoundError(
                f"there is no project {wanted!r} in which you have a role.",
                remedy=f"You may work in: {', '.join(one.name for one in projects) or 'none'}.",
            )


async def log_out(caller: Caller, everywhere: bool) -> None:
    """Ends the caller's session, or every session of the person."""
    held = _person(caller)
    async with caller.db.transaction(caller.project_id) as session:
        if everywhere:
            await end_user_sessions(session, caller.project_id, held.user_id, caller.author)
        else:
            await end_session(session, caller.project_id, held.secret, caller.author)


async def change_password(caller: Caller, wanted: PasswordIn) -> OpenedSession:
    """Changes the caller's own password, ends all of the person's sessions and opens a new one.

    Raises:
        ProblemError: If the present password is wrong.
        UserError: If the new one is too short or common.
    """
    held = _person(caller)
    await _prove(caller.service, held.email, wanted.current.get_secret_value())
    new = wanted.new.get_secret_value()
    check_password(new, email=held.email)
    hashed = await hash_password(new)
    project = caller.project_id
    lifetime = caller.service.settings.auth.session_max_s
    async with caller.db.transaction(project) as session:
        await set_password(session, project, held.user_id, hashed, caller.author)
        await clear_login(session, held.email)
        return await open_session(session, project, held.user_id, lifetime, "password")
