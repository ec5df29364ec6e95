"""History: lineage, behaviour, what a label named when, merges, conflicts, undoing a run.

Registered before the routes of artifacts: their names may hold '/', so the longer paths come first.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from instar.api.auth import Approver, Operator, Viewer
from instar.api.history import (
    behaviour_of,
    conflicts_out,
    label_timeline,
    merge_in,
    resolve_in,
    restore_in,
)
from instar.api.idempotency import IdempotentRoute
from instar.api.pages import After, Limit, Page
from instar.api.problems import documented
from instar.api.schemas_history import (
    ConflictOut,
    LabelTimeline,
    MergeIn,
    ResolveIn,
    RestoreRunIn,
)
from instar.registry.behaviour import BehaviourDiff
from instar.registry.lineage import Lineage, read_lineage
from instar.registry.merging import MergeReport
from instar.registry.restore import RestoreReport
from instar.store.artifacts import ArtifactRef
from instar.store.lineage import Direction

router = APIRouter(
    prefix="/v1",
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)
_ARTIFACT = "/artifacts/{kind}/{name:path}"
Version = Annotated[str, Query(max_length=255, description="number, label or latest")]
Depth = Annotated[int | None, Query(ge=0, le=1_000_000, description="most edges; all if left out")]
Nodes = Annotated[int, Query(ge=1, le=20_000, description="most nodes, the nearest first")]
Tasks = Annotated[int, Query(ge=1, le=10_000, description="most tasks, the worst first")]
Changes = Annotated[int, Query(ge=1, le=1_000, description="most changes, the newest first")]
Moment = Annotated[AwareDatetime | None, Query(description="a time with its zone, ISO 8601")]
Parts = Annotated[bool, Query(description="follow what is pinned, such as an agent's components")]


@router.get("/artifact-conflicts", tags=["artifacts"])
async def list_all_conflicts(
    caller: Viewer, settled: bool = False, limit: Limit = 50, after: After = None
) -> Page[ConflictOut]:
    """Learned changes that do not fit a newer base, in the whole project, newest first."""
    project = caller.project_id
    async with caller.db.transaction(project) as session:
        return await conflicts_out(
            session, project, only_open=not settled, limit=limit, cursor=after
        )


@router.get(_ARTIFACT + "/conflicts", tags=["artifacts"])
async def list_artifact_conflicts(  # noqa: PLR0913 - the path's parts and the page
    kind: str,
    name: str,
    caller: Viewer,
    settled: bool = False,
    limit: Limit = 50,
    after: After = None,
) -> Page[ConflictOut]:
    """Learned changes of one artifact that do not fit a newer base, newest first."""
    project, open_ = caller.project_id, not settled
    ref = ArtifactRef(project, kind, name)
    async with caller.db.transaction(project) as session:
        return await conflicts_out(
            session, project, ref=ref, only_open=open_, limit=limit, cursor=after
        )


@router.post(_ARTIFACT + "/conflicts/{conflict_id}/resolve", tags=["artifacts"])
async def settle_conflict(
    kind: str, name: str, conflict_id: UUID, wish: ResolveIn, caller: Operator
) -> ConflictOut:
    """Settles a conflict: a merge with both versions as parents, or the learned change stays."""
    async with caller.db.transaction(caller.project_id) as session:
        ref = ArtifactRef(caller.project_id, kind, name)
        return await resolve_in(session, ref, str(conflict_id), wish, caller)


@router.post(_ARTIFACT + "/merge", tags=["artifacts"])
async def merge_artifact_versions(
    kind: str, name: str, wish: MergeIn, caller: Operator
) -> MergeReport:
    """Shows both sources, their merge and what it drops; saves it with ``dry_run: false``."""
    async with caller.db.transaction(caller.project_id) as session:
        ref = ArtifactRef(caller.project_id, kind, name)
        return await merge_in(session, ref, wish, caller)


@router.get(_ARTIFACT + "/versions/{old}/diff/{new}/behaviour", tags=["artifacts"])
async def compare_agent_behaviour(  # noqa: PLR0913 - the path's parts and the limit
    kind: str, name: str, old: str, new: str, caller: Viewer, limit: Tasks = 1_000
) -> BehaviourDiff:
    """Which tasks come out differently under two agent versions, beyond noise; never sealed."""
    async with caller.db.transaction(caller.project_id) as session:
        ref = ArtifactRef(caller.project_id, kind, name)
        return await behaviour_of(session, ref, old, new, limit)


@router.get(_ARTIFACT + "/lineage", tags=["artifacts"])
async def read_artifact_lineage(  # noqa: PLR0913 - the path's parts and the walk's bounds
    kind: str,
    name: str,
    caller: Viewer,
    version: Version = "latest",
    direction: Direction = "both",
    depth: Depth = None,
    parts: Parts = False,
    limit: Nodes = 500,
) -> Lineage:
    """What a version came from and what came from it, with scores and costs, as a graph."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await read_lineage(
            session, ref, version, direction=direction, parts=parts, depth=depth, most=limit
        )


@router.get(_ARTIFACT + "/labels/{label}/timeline", tags=["artifacts"])
async def read_label_timeline(  # noqa: PLR0913 - the path's parts and the times
    kind: str,
    name: str,
    label: str,
    caller: Viewer,
    at: Moment = None,
    since: Moment = None,
    until: Moment = None,
    limit: Changes = 200,
) -> LabelTimeline:
    """What a label named at a moment, and its changes between two, with author and evidence."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await label_timeline(
            session, ref, label, at=at, since=since, until=until, limit=limit
        )


@router.post("/evolution/runs/{run_id}/restore", tags=["evolution"])
async def restore_before_evolution_run(
    run_id: UUID, wish: RestoreRunIn, caller: Approver
) -> RestoreReport:
    """Restores the state before a run, for all it touched; says what, and what stays and why."""
    async with caller.db.transaction(caller.project_id) as session:
        return await restore_in(session, caller, str(run_id), wish)
