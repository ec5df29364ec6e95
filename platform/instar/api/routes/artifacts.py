"""Artifacts: read, save, compare, label. Content is immutable; labels move and tell when."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from instar.api.auth import Operator, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.operations import (
    diff_artifact,
    find_label,
    move_label_back,
    move_label_if,
    save_version,
)
from instar.api.pages import After, Limit, Page
from instar.api.problems import documented
from instar.api.routes.agents import number_of
from instar.api.schemas import (
    ArtifactOut,
    LabelIn,
    LabelOut,
    LabelRollbackIn,
    NewVersionIn,
    VersionOut,
)
from instar.api.views import artifact_out, label_out, read_version_out, set_etag, version_out
from instar.registry.diffs import Diff
from instar.store.artifacts import ArtifactRef, list_artifacts, list_versions, read_artifact
from instar.store.labels import delete_label, list_labels

router = APIRouter(
    prefix="/v1/artifacts",
    tags=["artifacts"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)
Kind = Annotated[str | None, Query(max_length=64, description="only this kind")]
IfMatch = Annotated[
    str | None, Header(description="ETag of the label as it was read", max_length=200)
]


@router.get("")
async def list_all_artifacts(
    caller: Viewer, kind: Kind = None, limit: Limit = 50, after: After = None
) -> Page[ArtifactOut]:
    """The project's artifacts, newest first."""
    project = caller.project_id
    async with caller.db.transaction(project) as session:
        page = await list_artifacts(session, project, kind, limit=limit, cursor=after)
        data = [await artifact_out(session, project, row) for row in page.items]
    return Page(data=data, next=page.next_cursor)


# Names may hold '/' (an agent's components do), so the longer paths come first.


@router.get("/{kind}/{name:path}/versions/{old}/diff/{new}")
async def diff_artifact_versions(kind: str, name: str, old: str, new: str, caller: Viewer) -> Diff:
    """What changed from one version (number or label) to another."""
    async with caller.db.transaction(caller.project_id) as session:
        return await diff_artifact(session, ArtifactRef(caller.project_id, kind, name), old, new)


@router.get("/{kind}/{name:path}/versions/{version}")
async def read_artifact_version(
    kind: str, name: str, version: str, caller: Viewer, response: Response
) -> VersionOut:
    """One version by number, label or ``latest``, with its content; the ETag tells what it was."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await read_version_out(session, ref, version, response)


@router.get("/{kind}/{name:path}/versions")
async def list_artifact_versions(
    kind: str, name: str, caller: Viewer, limit: Limit = 50, after: After = None
) -> Page[VersionOut]:
    """The versions of an artifact, highest number first."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        rows = await list_versions(session, ref, limit=limit + 1, before=number_of(after))
    return Page(
        data=[version_out(row) for row in rows[:limit]],
        next=str(rows[limit - 1].number) if len(rows) > limit else None,
    )


@router.post("/{kind}/{name:path}/versions", status_code=201)
async def create_artifact_version(
    kind: str, name: str, new: NewVersionIn, caller: Operator
) -> VersionOut:
    """Saves a content as the next version; the same content twice is two versions and one blob."""
    async with caller.db.transaction(caller.project_id) as session:
        ref = ArtifactRef(caller.project_id, kind, name)
        return await save_version(session, ref, new, caller)


@router.get("/{kind}/{name:path}/labels/{label}")
async def read_label(
    kind: str, name: str, label: str, caller: Viewer, response: Response
) -> LabelOut:
    """Where a label points now; its ETag is for ``If-Match``."""
    async with caller.db.transaction(caller.project_id) as session:
        row = await find_label(session, ArtifactRef(caller.project_id, kind, name), label)
    set_etag(response, row.epoch)
    return label_out(row)


@router.put("/{kind}/{name:path}/labels/{label}", responses=documented(412))
async def put_label(  # noqa: PLR0913 - the path's parts, the body and the precondition
    kind: str,
    name: str,
    label: str,
    wanted: LabelIn,
    caller: Operator,
    response: Response,
    if_match: IfMatch = None,
) -> LabelOut:
    """Points a label at a version; with ``If-Match`` only if nobody moved it meanwhile."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        row = await move_label_if(session, ref, (label, wanted), if_match, caller)
    set_etag(response, row.epoch)
    return label_out(row)


@router.delete("/{kind}/{name:path}/labels/{label}", status_code=204)
async def remove_label(kind: str, name: str, label: str, caller: Operator) -> None:
    """Removes a label; versions stay. Protected labels take an admin."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        await delete_label(session, ref, label, caller.author, unlock=caller.role == "admin")


@router.post("/{kind}/{name:path}/rollback")
async def rollback_label(
    kind: str, name: str, which: LabelRollbackIn, caller: Operator
) -> LabelOut:
    """Moves a label back to the version that it named before its last move."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return label_out(await move_label_back(session, ref, which.label, caller))


@router.get("/{kind}/{name:path}/labels")
async def list_artifact_labels(kind: str, name: str, caller: Viewer) -> list[LabelOut]:
    """The labels of an artifact, by name."""
    async with caller.db.transaction(caller.project_id) as session:
        rows = await list_labels(session, ArtifactRef(caller.project_id, kind, name))
    return [label_out(row) for row in rows]


@router.get("/{kind}/{name:path}")
async def read_one_artifact(kind: str, name: str, caller: Viewer) -> ArtifactOut:
    """One artifact with its labels."""
    async with caller.db.transaction(caller.project_id) as session:
        row = await read_artifact(session, ArtifactRef(caller.project_id, kind, name))
        return await artifact_out(session, caller.project_id, row)
