"""Labels of artifacts: read, move, roll back, protect, remove; and their history with causes."""

from __future__ import annotations

from fastapi import APIRouter, Response

from instar.api.artifacts import etag_of_label, move_label_if, protect_label_if
from instar.api.auth import Admin, Operator, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.preconditions import IfMatch
from instar.api.problems import documented
from instar.api.schemas import LabelIn, LabelOut, LabelRollbackIn
from instar.api.schemas_artifacts import LabelEventOut, LabelRuleIn
from instar.api.views import label_event_out, label_out
from instar.registry.verbs import find_label, label_events_of, labels_of_artifact, roll_back
from instar.store.artifacts import ArtifactRef
from instar.store.labels import delete_label

router = APIRouter(
    prefix="/v1/artifacts",
    tags=["artifacts"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)
_CHANGES = documented(412, 428)


@router.get("/{kind}/{name:path}/labels/{label}/history")
async def list_label_history(
    kind: str, name: str, label: str, caller: Viewer
) -> list[LabelEventOut]:
    """The moves of a label, oldest first, each with who moved it and why."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return [label_event_out(row) for row in await label_events_of(session, ref, label)]


@router.get("/{kind}/{name:path}/labels/{label}")
async def read_label(
    kind: str, name: str, label: str, caller: Viewer, response: Response
) -> LabelOut:
    """Where a label points now; its ETag is for ``If-Match``."""
    async with caller.db.transaction(caller.project_id) as session:
        row = await find_label(session, ArtifactRef(caller.project_id, kind, name), label)
    etag_of_label(response, row)
    return label_out(row)


@router.put("/{kind}/{name:path}/labels/{label}", responses=_CHANGES)
async def put_label(  # noqa: PLR0913 - the path's parts, the body and the precondition
    kind: str,
    name: str,
    label: str,
    wanted: LabelIn,
    caller: Operator,
    response: Response,
    if_match: IfMatch = None,
) -> LabelOut:
    """Points a label at a version; one that exists only if nobody moved it meanwhile."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        row = await move_label_if(session, ref, (label, wanted), if_match, caller)
    etag_of_label(response, row)
    return label_out(row)


@router.patch("/{kind}/{name:path}/labels/{label}", responses=_CHANGES)
async def patch_label(  # noqa: PLR0913 - the path's parts, the body and the precondition
    kind: str,
    name: str,
    label: str,
    rule: LabelRuleIn,
    caller: Admin,
    response: Response,
    if_match: IfMatch = None,
) -> LabelOut:
    """Says which role may move a label; above operator it is protected."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        row = await protect_label_if(session, ref, (label, rule.move_role), if_match, caller)
    etag_of_label(response, row)
    return label_out(row)


@router.delete("/{kind}/{name:path}/labels/{label}", status_code=204)
async def remove_label(kind: str, name: str, label: str, caller: Operator) -> None:
    """Removes a label; versions stay. A protected one takes the role that may move it."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        await delete_label(session, ref, label, caller.author, role=caller.role)


@router.post("/{kind}/{name:path}/rollback")
async def rollback_label(
    kind: str, name: str, which: LabelRollbackIn, caller: Operator
) -> LabelOut:
    """Moves a label back to the version that it named before its last move."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        row = await roll_back(
            session, ref, which.label, caller.author, role=caller.role, cause=which.reason
        )
        return label_out(row)


@router.get("/{kind}/{name:path}/labels")
async def list_artifact_labels(kind: str, name: str, caller: Viewer) -> list[LabelOut]:
    """The labels of an artifact, by name."""
    async with caller.db.transaction(caller.project_id) as session:
        rows = await labels_of_artifact(session, ArtifactRef(caller.project_id, kind, name))
    return [label_out(row) for row in rows]
