"""API keys: made once, shown once, narrowed, ended."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request

from instar.api.access import key_out, make_key, revoke_key
from instar.api.auth import Admin
from instar.api.idempotency import ShownOnceRoute
from instar.api.pages import After, Limit, Page
from instar.api.problems import documented
from instar.api.schemas_access import ApiKeyIn, ApiKeyMade, ApiKeyOut
from instar.store.projects import page_api_keys
from instar.store.projects import read_api_key as find_api_key

router = APIRouter(
    prefix="/v1/api-keys",
    tags=["keys"],
    route_class=ShownOnceRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)


@router.get("")
async def list_api_keys(caller: Admin, limit: Limit = 50, after: After = None) -> Page[ApiKeyOut]:
    """The project's keys, newest first, revoked ones too; never their secrets."""
    async with caller.db.transaction(caller.project_id) as session:
        page = await page_api_keys(session, caller.project_id, limit=limit, cursor=after)
    return Page(data=[key_out(row) for row in page.items], next=page.next_cursor)


@router.post("", status_code=201)
async def create_api_key(wanted: ApiKeyIn, request: Request, caller: Admin) -> ApiKeyMade:
    """Makes a key that may do no more than its maker; its secret is shown this once."""
    return await make_key(request, caller, wanted)


@router.get("/{key_id}")
async def read_api_key(key_id: UUID, caller: Admin) -> ApiKeyOut:
    """One key, without its secret."""
    async with caller.db.transaction(caller.project_id) as session:
        return key_out(await find_api_key(session, caller.project_id, str(key_id)))


@router.delete("/{key_id}", status_code=204)
async def revoke_api_key(key_id: UUID, caller: Admin) -> None:
    """Makes a key useless at once; the last admin of a project stays."""
    await revoke_key(caller, str(key_id))
