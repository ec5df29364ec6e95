"""Health: whether the process lives, whether the service can work, and what version it is."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

import instar
from instar.api.auth import service_of
from instar.api.schemas import Health
from instar.store.migrate import head_revision

router = APIRouter(tags=["health"])


class Version(BaseModel):
    """Which version runs."""

    version: str
    schema_revision: str = Field(description="database schema that this version works with")


@router.get("/healthz")
async def read_health() -> dict[str, str]:
    """That the process answers; says nothing about what it depends on."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"model": Health, "description": "Not ready, and why"}})
async def read_readiness(request: Request, response: Response) -> Health:
    """Whether database, keys and broker are as they must be; 503 with the reasons if not."""
    service = service_of(request)
    schema, broker = await asyncio.gather(service.schema(), service.broker())
    checks = {"database": "ok" if schema.ready else schema.reason, "broker": broker}
    checks["secrets"] = await service.secrets() if schema.ready else "not looked at yet"
    ready = all(words == "ok" for words in checks.values())
    if not ready:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
    return Health(ready=ready, checks=checks)


@router.get("/version")
async def read_version() -> Version:
    """The version of this service and the schema revision it needs."""
    return Version(version=instar.__version__, schema_revision=head_revision())
