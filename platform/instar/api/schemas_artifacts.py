"""Schemas of the registry's routes: what they take, and what they give beyond a version."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from instar.api.schemas import Name, Text
from instar_core.base import JsonValue

__all__ = [
    "ArchiveIn",
    "ArchiveOut",
    "ContentIn",
    "CopyIn",
    "DescribeIn",
    "KindOut",
    "LabelEventOut",
    "LabelRuleIn",
    "NewArtifactIn",
    "RestoreIn",
]

Number = Annotated[int, Field(ge=1, le=2**31 - 1)]


class _In(BaseModel):
    """What comes in: unknown keys are refused, so that a typing error is not ignored."""

    model_config = ConfigDict(extra="forbid")


class NewArtifactIn(_In):
    """A new artifact with its first version."""

    kind: Annotated[Text, Field(min_length=1, max_length=64)]
    name: Annotated[Text, Field(min_length=1)]
    content: JsonValue = Field(description="text, or a JSON value, as its kind has it")
    description: Text = ""
    tags: list[Text] = Field(default_factory=list)
    reason: Text = ""
    evidence: JsonValue = None
    allow_similar: bool = Field(
        default=False, description="keep it although it resembles something that is there"
    )


class ContentIn(_In):
    """A content that takes the place of the newest one: the next version."""

    content: JsonValue
    reason: Text = ""
    evidence: JsonValue = None
    parents: list[Number] = Field(
        default_factory=list,
        max_length=16,
        description="numbers of the versions it was made from; none: the newest one",
    )


class DescribeIn(_In):
    """What may be edited without a new version; what is left out stays."""

    description: Text | None = None
    tags: list[Text] | None = None
    job_access: Literal["none", "overlay"] | None = Field(
        default=None, description="what jobs may do with it; takes an approver"
    )


class LabelRuleIn(_In):
    """The least role that may move a label; above ``operator`` the label is protected."""

    move_role: Literal["operator", "approver", "admin"]


class RestoreIn(_In):
    """What comes back from the archive: one version, or (left out) the artifact."""

    version: Number | None = None


class CopyIn(_In):
    """The name of the copy, and which version is copied."""

    to: Name
    version: Text = Field(default="latest", description="number, label or latest")
    reason: Text = ""
    description: Text | None = None


class ArchiveIn(_In):
    """Which artifacts are archived together: every part of the scope is spelled out.

    Without ``count`` nothing is archived and the answer says how many versions would be; with it,
    they are archived if there are exactly that many.
    """

    project: Text = Field(description="id of the project; must be the caller's own")
    kind: Annotated[Text, Field(min_length=1, max_length=64)]
    names: list[Name] = Field(min_length=1, max_length=200)
    versions: Literal["all"]
    count: int | None = Field(default=None, ge=0, description="versions, as the preview counted")


class ArchiveOut(BaseModel):
    """What is, or would be, archived: versions by artifact."""

    kind: str
    versions: dict[str, int]
    count: int
    archived: bool


class KindOut(BaseModel):
    """A kind of artifact: what it is, how its contents are compared, and two of them."""

    name: str
    title: str
    form: str
    max_bytes: int
    max_depth: int
    examples: list[JsonValue]


class LabelEventOut(BaseModel):
    """One move of a label, with its cause."""

    label: str
    before: int | None
    after: int | None
    by_kind: str
    by: str
    cause: str
    run_id: str | None = None
    at: datetime
