"""Sign-in: a session for a browser, by password; who the caller is; another project; the end."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from instar.api.auth import Anyone, refuse_other_origins, service_of
from instar.api.problems import documented
from instar.api.schemas_access import LoginIn, PasswordIn, SessionOut, SwitchIn
from instar.api.sign_in import (
    change_password,
    drop_cookie,
    log_in,
    log_out,
    session_out,
    set_cookie,
    signed_in_out,
    switch_project,
)
from instar.api.sign_in_oidc import come_back, go_there

router = APIRouter(
    prefix="/v1/auth",
    tags=["sign-in"],
    responses=documented(400, 401, 403, 404, 409, 413, 422, 429, 500, 503),
)
Next = Annotated[str, Query(max_length=2000, description="path to go to afterwards")]
Word = Annotated[str, Query(max_length=4000)]
Everywhere = Annotated[bool, Query(description="end every session of this person")]


@router.post("/login")
async def create_session(wanted: LoginIn, request: Request, response: Response) -> SessionOut:
    """Signs a person in by password; the answer sets the session's cookie."""
    refuse_other_origins(request)
    service = service_of(request)
    await service.require_ready()
    opened = await log_in(service, wanted)
    set_cookie(request, response, opened)
    return await signed_in_out(service, opened)


@router.get("/session")
async def read_session(caller: Anyone) -> SessionOut:
    """Who the caller is, and where it may work."""
    return await session_out(caller)


@router.put("/session")
async def switch_session_project(wanted: SwitchIn, request: Request, caller: Anyone) -> SessionOut:
    """Works in another project from now on."""
    await switch_project(caller, wanted.project)
    return await signed_in_out(service_of(request), caller.session)


@router.delete("/session", status_code=204)
async def delete_session(
    request: Request, response: Response, caller: Anyone, everywhere: Everywhere = False
) -> None:
    """Signs out, here or everywhere."""
    await log_out(caller, everywhere)
    drop_cookie(request, response)


@router.post("/password")
async def change_own_password(
    wanted: PasswordIn, request: Request, response: Response, caller: Anyone
) -> SessionOut:
    """Changes one's own password; every other session ends and this one gets a new cookie."""
    opened = await change_password(caller, wanted)
    set_cookie(request, response, opened)
    return await signed_in_out(service_of(request), opened)


@router.get("/oidc/login", status_code=303, response_class=RedirectResponse)
async def go_to_provider(request: Request, next: Next = "/") -> RedirectResponse:
    """Sends the browser to the identity provider."""
    return await go_there(request, next)


@router.get("/oidc/callback", status_code=303, response_class=RedirectResponse)
async def come_from_provider(
    request: Request, state: Word, code: Word | None = None, iss: Word | None = None
) -> RedirectResponse:
    """Where the provider sends the browser back to; opens a session."""
    return await come_back(request, code, state, iss)
