"""The audit trail: who did what, and whether what it says can be trusted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime

from instar.api import audit
from instar.api.auth import Admin, Instance
from instar.api.idempotency import IdempotentRoute
from instar.api.pages import After, Limit, Page
from instar.api.problems import documented
from instar.api.schemas_audit import (
    AcceptRestoreIn,
    AuditEventOut,
    AuditReport,
    PublicKeyOut,
    RestoreAccepted,
    Sealed,
    VerifyIn,
)
from instar.store.audit import AuditFilter, list_events

Wanted = Annotated[str, Query(max_length=300)]
Since = Annotated[AwareDatetime | None, Query(description="not before this moment")]

router = APIRouter(
    prefix="/v1/audit",
    tags=["audit"],
    route_class=IdempotentRoute,
    responses=documented(400, 401, 403, 404, 409, 413, 422, 500, 503),
)


def _filter(
    stream: Wanted = "",
    action: Wanted = "",
    actor: Wanted = "",
    subject: Wanted = "",
    since: Since = None,
) -> AuditFilter:
    return AuditFilter(stream, action, actor, subject, since)


@router.get("")
async def list_audit_events(
    caller: Admin,
    wanted: Annotated[AuditFilter, Depends(_filter)],
    limit: Limit = 50,
    after: After = None,
) -> Page[AuditEventOut]:
    """The project's audit events, newest first."""
    async with caller.db.transaction(caller.project_id) as session:
        page = await list_events(session, caller.project_id, wanted, limit=limit, cursor=after)
    return Page(data=[audit.event_out(row) for row in page.items], next=page.next_cursor)


@router.get("/verify")
async def verify_audit(caller: Admin) -> AuditReport:
    """Whether rows, links, heads, checkpoints and the copy outside the database agree."""
    return await audit.verify(caller, VerifyIn())


@router.post("/verify")
async def verify_audit_against(wanted: VerifyIn, caller: Admin) -> AuditReport:
    """The same, held against a copy kept elsewhere and against keys of the caller's choice."""
    return await audit.verify(caller, wanted)


@router.post("/checkpoints")
async def seal_audit(caller: Admin) -> Sealed:
    """Seals the project's chain now rather than at the next minute."""
    return await audit.seal(caller)


@router.get("/key")
def read_audit_key(caller: Admin) -> PublicKeyOut:
    """The public key that verifies checkpoints."""
    return audit.public_key(caller)


@router.post("/key/rotate")
async def rotate_audit_key(caller: Instance) -> PublicKeyOut:
    """Replaces the signing key by a new one, which the old one signs; checkpoints stay valid."""
    return await audit.rotate_key(caller)


@router.post("/accept-restore")
async def accept_restore(why: AcceptRestoreIn, caller: Instance) -> RestoreAccepted:
    """Says that a database which was set back was meant to be, and begins a new outside copy."""
    return await audit.accept_restore(caller, why.reason)
