"""Requests and responses of the audit trail."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from instar.audit.checkpoint import Checkpoint
from instar.audit.verify import AuditReport
from instar_core.base import JsonValue

__all__ = [
    "AcceptRestoreIn",
    "AuditEventOut",
    "AuditReport",
    "CheckpointOut",
    "PublicKeyOut",
    "RestoreAccepted",
    "Sealed",
    "VerifyIn",
]


class AuditEventOut(BaseModel):
    """One event of the audit trail."""

    id: str
    stream: str = Field(description="'admin', or the run that it is part of")
    seq: int = Field(description="its number in the stream")
    at: datetime
    actor_kind: str = Field(description="person, run or system")
    actor: str
    action: str
    subject: str
    details: JsonValue = None
    previous_hash: str
    hash: str


class VerifyIn(BaseModel):
    """What to hold the trail against, besides what the service has itself."""

    model_config = ConfigDict(extra="forbid")

    checkpoints: list[Checkpoint] = Field(
        default_factory=list,
        max_length=10_000,
        description="checkpoints of a copy kept elsewhere, in order; its last ones are enough, "
        "since each holds the hash of the one before",
    )
    public_keys: list[str] = Field(
        default_factory=list,
        max_length=20,
        description="PEM texts that alone are trusted; the installation's own key when empty",
    )


class CheckpointOut(BaseModel):
    """A checkpoint that was written just now."""

    seq: int
    at: str
    rows: int
    streams: int
    hash: str
    key_id: str


class Sealed(BaseModel):
    """The checkpoints that sealing wrote; none when nothing was new."""

    checkpoints: list[CheckpointOut]


class PublicKeyOut(BaseModel):
    """The public half of the key that signs checkpoints. Keep a copy away from this machine."""

    key_id: str
    public_key: str = Field(description="PEM")


class AcceptRestoreIn(BaseModel):
    """That a database which was set back was meant to be."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(min_length=1, max_length=2000)


class RestoreAccepted(BaseModel):
    """What became of the copy that knew more than the database."""

    accepted: bool = Field(description="false: the copy was not ahead, so nothing was done")
    set_aside: str = Field(description="file name of the old copy")
