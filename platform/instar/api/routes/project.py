"""Project: its name and its rule for promotions."""

from __future__ import annotations

from fastapi import APIRouter, Response

from instar.api.auth import Admin, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.preconditions import IfMatch, check_match, model_etag
from instar.api.problems import documented
from instar.api.schemas import ProjectIn, ProjectOut
from instar.api.views import project_out, set_etag
from instar.store.projects import read_project as find_project
from instar.store.projects import update_project_settings

router = APIRouter(
    prefix="/v1/project",
    tags=["project"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)


@router.get("")
async def read_project(caller: Viewer, response: Response) -> ProjectOut:
    """The project that the key belongs to; its ETag is for ``If-Match``."""
    async with caller.db.transaction(caller.project_id) as session:
        shown = project_out(await find_project(session, caller.project_id))
    set_etag(response, model_etag(shown))
    return shown


@router.put("", responses=documented(412, 428))
async def put_project(
    wanted: ProjectIn, caller: Admin, response: Response, if_match: IfMatch = None
) -> ProjectOut:
    """Sets the project's rule: a person decides (``ask``), or an accepted gain is promoted."""
    changes: dict[str, object] = {"promotion_rule": wanted.promotion}
    async with caller.db.transaction(caller.project_id) as session:
        now = project_out(await find_project(session, caller.project_id, lock=True))
        check_match(if_match, model_etag(now), "The project")
        row = await update_project_settings(session, caller.project_id, changes, caller.author)
    set_etag(response, model_etag(project_out(row)))
    return project_out(row)
