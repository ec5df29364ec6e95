"""Users: who works in the project, and with which role."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response

from instar.api.access import add_person, change_role, reset_password, shut_out, user_out
from instar.api.auth import Admin, Instance, Viewer
from instar.api.pages import Limit, Page
from instar.api.preconditions import IfMatch, quoted
from instar.api.problems import documented
from instar.api.schemas_access import NewPasswordIn, RoleIn, UserIn, UserOut
from instar.store.users import list_users, unbind
from instar.store.users import read_user as find_user

router = APIRouter(
    prefix="/v1/users",
    tags=["users"],
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)
Email = Annotated[str | None, Query(max_length=320, description="the ``next`` of the page before")]


@router.get("")
async def list_project_users(
    caller: Viewer, limit: Limit = 50, after: Email = None
) -> Page[UserOut]:
    """The people with a role in the project, by address."""
    async with caller.db.transaction(caller.project_id) as session:
        found = await list_users(session, caller.project_id, limit=limit + 1, after=after)
    more = len(found) > limit
    data = [user_out(one) for one in found[:limit]]
    return Page(data=data, next=data[-1].email if more else None)


@router.get("/{user_id}")
async def read_project_user(user_id: UUID, caller: Viewer, response: Response) -> UserOut:
    """One person of the project; the ETag is the role."""
    async with caller.db.transaction(caller.project_id) as session:
        found = user_out(await find_user(session, caller.project_id, str(user_id)))
    response.headers["ETag"] = quoted(found.role)
    return found


@router.post("", status_code=201)
async def create_user(wanted: UserIn, caller: Instance) -> UserOut:
    """Adds a person to the project, making the person where the address is new."""
    return await add_person(caller, wanted)


@router.put("/{user_id}/role", responses=documented(412, 428))
async def put_user_role(
    user_id: UUID, wanted: RoleIn, caller: Admin, response: Response, if_match: IfMatch = None
) -> UserOut:
    """Changes what a person of the project may do in it; ``If-Match`` names the role before."""
    found = await change_role(caller, str(user_id), wanted.role, if_match)
    response.headers["ETag"] = quoted(found.role)
    return found


@router.delete("/{user_id}", status_code=204)
async def remove_user(user_id: UUID, caller: Admin) -> None:
    """Takes a person out of the project; roles elsewhere stay."""
    async with caller.db.transaction(caller.project_id) as session:
        await unbind(session, caller.project_id, str(user_id), caller.author)


@router.post("/{user_id}/disable")
async def disable_user(user_id: UUID, caller: Instance) -> UserOut:
    """Shuts a person out of every project and ends all sessions."""
    return await shut_out(caller, str(user_id))


@router.post("/{user_id}/password", status_code=204)
async def reset_user_password(user_id: UUID, wanted: NewPasswordIn, caller: Instance) -> None:
    """Gives a person a new password and ends all sessions."""
    await reset_password(caller, str(user_id), wanted.password.get_secret_value())
