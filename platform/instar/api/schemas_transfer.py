"""Schemas of export and import."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ARCHIVE", "ExportIn"]

ARCHIVE = "application/gzip"
"""Media type of an export: a tar.gz."""


class ExportIn(BaseModel):
    """What an export takes along."""

    model_config = ConfigDict(extra="forbid")

    trajectories: bool = Field(default=False, description="rollouts as JSONL, secrets masked")
    redact: bool = Field(
        default=False, description="mask known secrets in contents instead of refusing"
    )
