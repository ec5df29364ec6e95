"""Task sets: import JSONL, count splits, read what is not sealed."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from instar.api.auth import Operator, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.operations import save_task_set
from instar.api.pages import After, Limit, Page
from instar.api.problems import documented
from instar.api.schemas import TaskSetIn, TaskSetOut
from instar.api.views import task_set_out
from instar.store.artifacts import list_artifacts
from instar.store.task_sets import TASK_SET, read_tasks
from instar.store.task_sets import read_task_set as find_task_set
from instar_core.tasks import Task

router = APIRouter(
    prefix="/v1/task-sets",
    tags=["task sets"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)
Version = Annotated[str, Query(max_length=64, description="version number, label or ``latest``")]


@router.post("", status_code=201)
async def import_task_set(new: TaskSetIn, caller: Operator) -> TaskSetOut:
    """Imports a JSONL file as the next version; a broken line is named and nothing is imported."""
    async with caller.db.transaction(caller.project_id) as session:
        return await save_task_set(session, caller, new)


@router.get("")
async def list_task_sets(
    caller: Viewer, limit: Limit = 50, after: After = None
) -> Page[TaskSetOut]:
    """The project's task sets at their newest versions, newest set first."""
    project = caller.project_id
    async with caller.db.transaction(project) as session:
        page = await list_artifacts(session, project, TASK_SET, limit=limit, cursor=after)
        found = [await find_task_set(session, project, row.name) for row in page.items]
        data = [await task_set_out(session, project, version) for version in found]
    return Page(data=data, next=page.next_cursor)


@router.get("/{name}")
async def read_task_set(name: str, caller: Viewer, version: Version = "latest") -> TaskSetOut:
    """One version of a task set: how many tasks and groups each split has."""
    async with caller.db.transaction(caller.project_id) as session:
        found = await find_task_set(session, caller.project_id, name, version)
        return await task_set_out(session, caller.project_id, found)


@router.get("/{name}/tasks")
async def list_set_tasks(  # noqa: PLR0913 - a list's own filters
    name: str,
    caller: Viewer,
    split: Literal["train", "validation"] = "train",
    version: Version = "latest",
    limit: Limit = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> list[Task]:
    """Tasks of the train or validation split, in their order. The sealed split has no route."""
    async with caller.db.transaction(caller.project_id) as session:
        found = await find_task_set(session, caller.project_id, name, version)
        tasks = await read_tasks(session, found.id, split)
    return tasks[offset : offset + limit]
