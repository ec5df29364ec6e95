"""Artifacts: list, create, read, update, describe, archive, restore, copy; contract and components.

Names may hold '/' (an agent's components do), so the longer paths come first, and those of versions
and labels, in modules of their own, before these.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from instar.api.artifacts import (
    archive_many,
    archive_one,
    copy_artifact,
    describe_if,
    list_page,
    put_content,
    read_artifact_out,
    save_new,
    show_kinds,
)
from instar.api.auth import Admin, Approver, Operator, Viewer
from instar.api.idempotency import IdempotentRoute
from instar.api.pages import After, Limit, Page
from instar.api.preconditions import IfMatch, IfNoneMatch
from instar.api.problems import documented
from instar.api.schemas import ArtifactOut, VersionOut
from instar.api.schemas_artifacts import (
    ArchiveIn,
    ArchiveOut,
    ContentIn,
    CopyIn,
    DescribeIn,
    KindOut,
    NewArtifactIn,
    RestoreIn,
)
from instar.api.views import artifact_out, set_etag
from instar.registry.components import components
from instar.registry.contract import agent_contract, project_contract
from instar.registry.verbs import ALL, restore
from instar.store.agents import AGENT
from instar.store.artifacts import ArtifactFilter, ArtifactRef, read_artifact
from instar.store.labels import list_labels
from instar_core.kinds import TrainableComponent
from instar_core.registry.contract import DEFAULT_BUDGET, Contract

router = APIRouter(
    tags=["artifacts"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)
Kind = Annotated[str | None, Query(max_length=64, description="only this kind")]
Words = Annotated[
    str | None,
    Query(max_length=500, description='only those with all these words; "…", or, - as in search'),
]
Tag = Annotated[str | None, Query(max_length=100, description="only those with this tag")]
Label = Annotated[str | None, Query(max_length=63, description="only those with this label")]
Owner = Annotated[Literal["person", "run", "system"] | None, Query(description="who made it")]
Archived = Annotated[bool, Query(description="archived ones instead of the others")]
At = Annotated[str, Query(max_length=63, description="version number, label or latest")]
Budget = Annotated[int, Query(ge=0, le=1_000_000, description="most tokens of the entries")]
Scope = Annotated[Literal["all"] | None, Query(description="'all': every version of it")]
_CHANGES = documented(412, 428)


@router.get("/v1/kinds", tags=["kinds"])
async def list_artifact_kinds(caller: Viewer) -> list[KindOut]:
    """Every kind of artifact, with what a person needs to write one."""
    return show_kinds()


@router.get("/v1/contract", tags=["kinds"])
async def read_contract(
    caller: Viewer, kind: Kind = None, budget_tokens: Budget = DEFAULT_BUDGET
) -> Contract:
    """The one text that lists what the project has (of a kind), within a budget."""
    async with caller.db.transaction(caller.project_id) as session:
        return await project_contract(session, caller.project_id, kind, budget_tokens=budget_tokens)


@router.get("/v1/artifacts")
async def list_all_artifacts(  # noqa: PLR0913 - one parameter per filter
    caller: Viewer,
    kind: Kind = None,
    q: Words = None,
    tag: Tag = None,
    label: Label = None,
    owner_kind: Owner = None,
    archived: Archived = False,
    limit: Limit = 50,
    after: After = None,
) -> Page[ArtifactOut]:
    """The project's artifacts, newest first, filtered."""
    where = ArtifactFilter(kind, tag, owner_kind, label, q, archived)
    async with caller.db.transaction(caller.project_id) as session:
        return await list_page(session, caller.project_id, where, limit, after)


@router.post("/v1/artifacts", status_code=201)
async def create_artifact(new: NewArtifactIn, caller: Operator) -> VersionOut:
    """Makes a new artifact with its first version; notices say what it resembles."""
    async with caller.db.transaction(caller.project_id) as session:
        return await save_new(session, new, caller)


@router.post("/v1/artifacts/archive")
async def archive_artifacts(scope: ArchiveIn, caller: Admin) -> ArchiveOut:
    """Archives several artifacts; without ``count`` it only counts what would be archived."""
    async with caller.db.transaction(caller.project_id) as session:
        return await archive_many(session, scope, caller)


@router.get("/v1/artifacts/agent/{name}/contract")
async def read_agent_contract(
    name: str, caller: Viewer, version: At = "latest", budget_tokens: Budget = DEFAULT_BUDGET
) -> Contract:
    """The one text in which an agent version sees its skills, tools and memory."""
    ref = ArtifactRef(caller.project_id, AGENT, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await agent_contract(session, ref, version, budget_tokens=budget_tokens)


@router.get("/v1/artifacts/{kind}/{name:path}/components")
async def list_components(
    kind: str, name: str, caller: Viewer, version: At = "latest"
) -> list[TrainableComponent]:
    """The parts of a version that evolution may change, with owners and size budgets."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return list(await components(session, ref, version))


@router.post("/v1/artifacts/{kind}/{name:path}/restore")
async def restore_archived(kind: str, name: str, what: RestoreIn, caller: Approver) -> ArtifactOut:
    """Brings back an archived artifact, or one archived version of it."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        await restore(session, ref, what.version or ALL, caller.author)
        row = await read_artifact(session, ref)
        return artifact_out(row, await list_labels(session, ref))


@router.post("/v1/artifacts/{kind}/{name:path}/copy", status_code=201)
async def copy_to_new_artifact(
    kind: str, name: str, wanted: CopyIn, caller: Operator
) -> VersionOut:
    """Copies a version into a new artifact of the same kind."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await copy_artifact(session, ref, wanted, caller)


@router.get(
    "/v1/artifacts/{kind}/{name:path}",
    response_model=ArtifactOut,
    responses={304: {"description": "The reader has just this state (If-None-Match)"}},
)
async def read_one_artifact(  # noqa: PLR0913 - the path's parts and both sides of the exchange
    kind: str,
    name: str,
    caller: Viewer,
    request: Request,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> ArtifactOut | Response:
    """One artifact with its labels; its ETag is for ``If-Match``."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await read_artifact_out(session, ref, request, response)


@router.put("/v1/artifacts/{kind}/{name:path}", responses=_CHANGES)
async def put_artifact(
    kind: str, name: str, new: ContentIn, caller: Operator, if_match: IfMatch = None
) -> VersionOut:
    """Saves a content as the next version; where the artifact exists, only over a known state."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await put_content(session, ref, new, if_match, caller)


@router.patch("/v1/artifacts/{kind}/{name:path}", responses=_CHANGES)
async def patch_artifact(  # noqa: PLR0913 - the path's parts, the body and the precondition
    kind: str,
    name: str,
    new: DescribeIn,
    caller: Operator,
    response: Response,
    if_match: IfMatch = None,
) -> ArtifactOut:
    """Edits description, tags or what jobs may do: no new version, another ETag."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        shown, etag = await describe_if(session, ref, new, if_match, caller)
    set_etag(response, etag)
    return shown


@router.delete("/v1/artifacts/{kind}/{name:path}")
async def archive_artifact(
    kind: str, name: str, caller: Approver, versions: Scope = None
) -> ArchiveOut:
    """Archives an artifact with all its versions; the request must say ``versions=all``."""
    ref = ArtifactRef(caller.project_id, kind, name)
    async with caller.db.transaction(caller.project_id) as session:
        return await archive_one(session, ref, versions, caller)
