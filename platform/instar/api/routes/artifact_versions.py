"""Versions of artifacts: list, read, append, compare, archive one. What a version holds stays."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from instar.api.artifacts import read_version_out, save_version
from instar.api.auth import Approver, Operator, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.pages import After, Limit, Page
from instar.api.preconditions import IfMatch, IfNoneMatch
from instar.api.problems import documented
from instar.api.routes.agents import number_of
from instar.api.schemas import NewVersionIn, VersionOut
from instar.api.views import version_out
from instar.registry.diffs import Diff
from instar.registry.verbs import archive, diff, list_versions_of
from instar.store.artifacts import ArtifactRef, list_parents
from instar.store.overlays import open_conflicts
from instar_core.base import short
from instar_core.errors import UserError

router = APIRouter(
    prefix="/v1/artifacts",
    tags=["artifacts"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)


@router.get("/{kind}/{name:path}/versions/{old}/diff/{new}")
async def diff_artifact_versions(kind: str, name: str, old: str, new: str, caller: Viewer) -> Diff:
    """What changed from one version (number or label) to another."""
    async with caller.db.transaction(caller.project_id) as session:
        return await diff(session, ArtifactRef(caller.project_id, kind, name), old, new)


@router.get(
    "/{kind}/{name:path}/versions/{version}",
    response_model=VersionOut,
    responses={304: {"description": "The reader has just this state (If-None-Match)"}},
)
async def read_artifact_version(  # noqa: PLR0913 - the path's parts and both sides of the exchange
    kind: str,
    name: str,
    version: str,
    caller: Viewer,
    request: Request,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> VersionOut | Response:
    """One version by number, label or ``latest``, with its content; the ETag tells what it was."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await read_version_out(session, ref, version, request, response)


@router.delete("/{kind}/{name:path}/versions/{version}", status_code=204)
async def archive_artifact_version(kind: str, name: str, version: str, caller: Approver) -> None:
    """Archives one version by number; refused where a label or something else depends on it."""
    if not version.isdecimal() or len(version) > 9:
        raise UserError(f"{short(version, 80)!r} is no version number.", remedy="Name one version.")
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        await archive(session, ref, int(version), caller.author)


@router.get("/{kind}/{name:path}/versions")
async def list_artifact_versions(
    kind: str, name: str, caller: Viewer, limit: Limit = 50, after: After = None
) -> Page[VersionOut]:
    """The versions of an artifact, highest number first."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        rows = await list_versions_of(session, ref, limit=limit + 1, before=number_of(after))
        ids = [row.id for row in rows]
        marks, parents = await open_conflicts(session, ids), await list_parents(session, ids)
    return Page(
        data=[
            version_out(row, conflict=marks.get(row.id), parents=parents[row.id])
            for row in rows[:limit]
        ],
        next=str(rows[limit - 1].number) if len(rows) > limit else None,
    )


@router.post("/{kind}/{name:path}/versions", status_code=201, responses=documented(412))
async def create_artifact_version(
    kind: str, name: str, new: NewVersionIn, caller: Operator, if_match: IfMatch = None
) -> VersionOut:
    """Saves a content as the next version; the same content twice is two versions and one blob."""
    async with caller.db.transaction(caller.project_id) as session:
        ref = ArtifactRef(caller.project_id, kind, name)
        return await save_version(session, ref, new, if_match, caller)
