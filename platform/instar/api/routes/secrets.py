"""Secrets: set, listed by name, deleted; their values are never shown."""

from __future__ import annotations

from fastapi import APIRouter, Response

from instar.api.auth import Admin, Operator
from instar.api.idempotency import IdempotentRoute
from instar.api.pages import After, Limit, Page
from instar.api.preconditions import IfMatch
from instar.api.problems import documented
from instar.api.schemas_secrets import SecretIn, SecretOut
from instar.api.secrets import save_secret, secret_out
from instar.api.views import set_etag
from instar.store.secrets import delete_secret, read_secret
from instar.store.secrets import list_secrets as page_secrets

router = APIRouter(
    prefix="/v1/secrets",
    tags=["secrets"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 412, 413, 422, 428, 500, 503),
)


@router.get("")
async def list_secrets(caller: Operator, limit: Limit = 50, after: After = None) -> Page[SecretOut]:
    """The project's secrets, newest first, without their values."""
    async with caller.db.transaction(caller.project_id) as session:
        page = await page_secrets(session, caller.project_id, limit=limit, cursor=after)
    return Page(data=[secret_out(row) for row in page.items], next=page.next_cursor)


@router.get("/{name}")
async def read_one_secret(name: str, caller: Operator, response: Response) -> SecretOut:
    """One secret without its value; its ETag is what the next change must name."""
    async with caller.db.transaction(caller.project_id) as session:
        row = await read_secret(session, caller.project_id, name)
    set_etag(response, row.revision)
    return secret_out(row)


@router.put("/{name}")
async def put_secret(
    name: str, wanted: SecretIn, caller: Admin, response: Response, if_match: IfMatch = None
) -> SecretOut:
    """Sets a secret. One that exists already needs `If-Match`."""
    return await save_secret(caller, name, wanted, if_match, response)


@router.delete("/{name}", status_code=204)
async def remove_secret(name: str, caller: Admin, force: bool = False) -> None:
    """Deletes a secret and wipes its value; refused while a tool server uses it, unless forced."""
    async with caller.db.transaction(caller.project_id) as session:
        await delete_secret(session, caller.project_id, name, caller.author, force=force)
