"""Projects: where the caller may work; making and archiving them."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter

from instar.api.access import archive_own_project, make_project, my_projects
from instar.api.auth import Admin, Anyone, Instance
from instar.api.idempotency import ShownOnceRoute
from instar.api.problems import documented
from instar.api.schemas_access import ProjectEntry, ProjectMade, ProjectNameIn

router = APIRouter(
    prefix="/v1/projects",
    tags=["project"],
    route_class=ShownOnceRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)


@router.get("")
async def list_projects(caller: Anyone) -> list[ProjectEntry]:
    """The projects in which the caller has a role; a key has one."""
    return await my_projects(caller)


@router.post("", status_code=201)
async def create_project(wanted: ProjectNameIn, caller: Instance) -> ProjectMade:
    """Makes a project; the caller administers it."""
    return await make_project(caller, wanted.name)


@router.delete("/{project_id}", status_code=204)
async def archive_project(project_id: UUID, caller: Admin) -> None:
    """Takes the caller's project out of use; everything in it stays stored."""
    await archive_own_project(caller, str(project_id))
