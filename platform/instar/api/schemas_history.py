"""Schemas of history: what is asked of merges and restores, and how label changes are shown."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from instar.api.schemas import Text
from instar.registry.merge import Conflict
from instar_core.base import JsonValue

__all__ = [
    "ConflictOut",
    "LabelFactOut",
    "LabelTimeline",
    "MergeIn",
    "ResolveIn",
    "RestoreRunIn",
    "VersionFact",
]

At = Annotated[Text, Field(min_length=1, max_length=255)]


class _In(BaseModel):
    """What comes in: unknown keys are refused, so that a typing error is not ignored."""

    model_config = ConfigDict(extra="forbid")


class RestoreRunIn(_In):
    """How the state before a run is restored; ``undo`` takes the last restore back."""

    dry_run: bool = Field(default=False, description="only tell what would happen")
    force: bool = Field(
        default=False, description="move labels back even if somebody moved them on since"
    )
    undo: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> RestoreRunIn:
        if self.undo and self.force:
            raise ValueError("undo never moves what somebody moved since; leave force out")
        return self


class MergeIn(_In):
    """Two versions that become one. Without ``dry_run: false`` only the proposal is shown."""

    ours: At = Field(description="version: number, label or latest")
    theirs: At = Field(description="the other version")
    other: Text = Field(default="", max_length=255, description="artifact of theirs, if another")
    content: JsonValue = Field(default=None, description="the merge, if you wrote it yourself")
    prefer: Literal["none", "ours", "theirs"] = "none"
    reason: Text = ""
    dry_run: bool = True


class ResolveIn(_In):
    """How a conflict is settled: a content, a side that wins, or the learned change left behind."""

    content: JsonValue = Field(default=None, description="the merge that you wrote")
    prefer: Literal["none", "learned", "base"] = "none"
    dismiss: bool = False
    reason: Text = ""

    @model_validator(mode="after")
    def _one_way(self) -> ResolveIn:
        given = ("content" in self.model_fields_set) + (self.prefer != "none") + self.dismiss
        if given != 1:
            raise ValueError("give one of content, prefer and dismiss")
        return self


class ConflictOut(BaseModel):
    """A learned version that does not fit a newer base, and where. ``resolution`` is empty while
    it is open."""

    id: str
    kind: str
    name: str
    overlay: int
    former_base: int
    base: int
    conflicts: list[Conflict]
    resolution: str
    resolved_by: str
    resolved_version: int | None
    created_at: datetime
    resolved_at: datetime | None


class VersionFact(BaseModel):
    """A version as far as it explains a change: who made it, why, on what evidence."""

    number: int
    digest: str
    origin: str
    author_kind: str
    author: str
    reason: str
    evidence: JsonValue
    run_id: str | None
    created_at: datetime


class LabelFactOut(BaseModel):
    """One change of a label: when, who, why, and the version that it put in force."""

    at: datetime
    before: int | None
    after: int | None
    actor_kind: str
    actor: str
    cause: str
    run_id: str | None
    version: VersionFact | None


class LabelTimeline(BaseModel):
    """What a label named at a moment (``None`` before its first move), and its changes."""

    label: str
    at: datetime | None
    in_force: LabelFactOut | None
    changes: list[LabelFactOut]
