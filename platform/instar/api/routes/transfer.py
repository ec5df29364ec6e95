"""Export and import of the whole project, as one tar.gz of open formats."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from instar.api.auth import Admin, Operator
from instar.api.idempotency import IdempotentRoute
from instar.api.problems import documented
from instar.api.schemas_transfer import ARCHIVE, ExportIn
from instar.api.transfer import chunks_of, export_archive, import_archive
from instar.registry.transfer.exporting import ExportOptions
from instar.registry.transfer.importing import ImportOptions
from instar.registry.transfer.report import ImportReport

router = APIRouter(
    prefix="/v1",
    tags=["artifacts"],
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)
imports = APIRouter(route_class=IdempotentRoute)
_BODY = {
    "requestBody": {
        "required": True,
        "content": {ARCHIVE: {"schema": {"type": "string", "format": "binary"}}},
    }
}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {ARCHIVE: {"schema": {"type": "string", "format": "binary"}}}}
}


@router.post("/export", response_class=StreamingResponse, responses=_ANSWER)
async def export_the_project(wanted: ExportIn, caller: Operator) -> StreamingResponse:
    """Streams the project: contents in open formats, and one manifest with every hash.

    What is sealed stays out, and so do the values of secrets.
    """
    options = ExportOptions(trajectories=wanted.trajectories, redact=wanted.redact)
    archive = await export_archive(caller, options)
    headers = {"Content-Disposition": 'attachment; filename="instar-export.tar.gz"'}
    return StreamingResponse(chunks_of(archive), media_type=ARCHIVE, headers=headers)


@imports.post("/import", openapi_extra=_BODY)
async def import_a_project(
    request: Request,
    caller: Admin,
    dry_run: Annotated[bool, Query(description="report, and write nothing")] = False,
    prefix: Annotated[str, Query(max_length=64, description="put before every name")] = "",
) -> ImportReport:
    """Imports an export: all of it is checked first, then written in one transaction.

    Imported twice it changes nothing; where a history differs, nothing is written.
    """
    options = ImportOptions(prefix=prefix, dry_run=dry_run)
    return await import_archive(caller, await request.body(), options)


router.include_router(imports)
