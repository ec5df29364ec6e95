"""Schemas: what the routes take and give, where the core's own models are not it already."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from instar.evolution.schemas import PromotionRule
from instar_core.base import JsonValue
from instar_core.candidates import Component, Harness
from instar_core.messages import Message
from instar_core.rollouts import Step
from instar_core.usage import Usage

__all__ = [
    "AgentIn",
    "AgentOut",
    "AgentVersionOut",
    "ArtifactOut",
    "CandidateOut",
    "DecisionIn",
    "EvaluationOut",
    "Health",
    "LabelIn",
    "LabelOut",
    "LabelRollbackIn",
    "NewVersionIn",
    "ProjectIn",
    "ProjectOut",
    "RollbackIn",
    "RunIn",
    "RunOut",
    "ServerOut",
    "TaskSetIn",
    "TaskSetOut",
    "Text",
    "VersionOut",
]


def _storable(text: str) -> str:
    if "\x00" in text:
        raise ValueError("contains a NUL character, which cannot be stored")
    return text


Text = Annotated[str, AfterValidator(_storable)]
"""Text without NUL characters, which PostgreSQL cannot hold."""
Name = Annotated[Text, Field(min_length=1, max_length=255)]


class _In(BaseModel):
    """What comes in: unknown keys are refused, so that a typing error is not ignored."""

    model_config = ConfigDict(extra="forbid")


class Health(BaseModel):
    """Whether the service can work, and what is missing where it cannot."""

    ready: bool
    checks: dict[str, str] = Field(description="part → 'ok' or what is wrong")


class ArtifactOut(BaseModel):
    """A named, versioned thing, with its labels."""

    id: str
    kind: str
    name: str
    description: str
    tags: list[str]
    owner_kind: str = Field(default="person", description="who made it: person, run or system")
    job_access: str = Field(
        default="none", description="what jobs may do with it: none, or overlay versions on it"
    )
    last_version: int
    labels: dict[str, int] = Field(default_factory=dict, description="label → version number")
    created_at: datetime


class VersionOut(BaseModel):
    """A version; ``content`` is there where one version is read."""

    id: str
    number: int
    digest: str = Field(description="sha256 of the content")
    media_type: str
    author_kind: str
    author: str
    reason: str
    evidence: JsonValue = None
    parents: list[str] = Field(default_factory=list, description="ids of parent versions")
    origin: str = Field(default="save", description="save, overlay, rebase, merge, copy, import …")
    base_id: str | None = Field(
        default=None, description="the person's version that a learned one lies on"
    )
    run_id: str | None = None
    conflict: str | None = Field(
        default=None, description="open conflict of a learned version with a newer base"
    )
    label: str | None = Field(default=None, description="the label by which it was asked for")
    created_at: datetime
    content: JsonValue = None
    notices: list[str] = Field(
        default_factory=list, description="what its author should know: what it resembles, …"
    )


class NewVersionIn(_In):
    """A version to save."""

    content: JsonValue = Field(description="text, or a JSON value")
    reason: Text = ""
    description: Text | None = Field(default=None, description="of the artifact")


class LabelIn(_In):
    """Where a label shall point."""

    version: int = Field(ge=1, le=2**31 - 1)
    cause: Text = ""


class LabelOut(BaseModel):
    """A label and the version it points to; ``epoch`` grows with every move."""

    label: str
    version: int
    protected: bool
    move_role: str = Field(default="operator", description="the least role that may move it")
    epoch: int
    moved_at: datetime


class AgentIn(_In):
    """An agent version to save: its components in order, and the harness they run in."""

    name: Name
    components: dict[str, Component]
    harness: Harness
    description: Text = ""
    reason: Text = ""
    label: Text | None = Field(
        default=None, description="label to point to the new version, for instance 'production'"
    )


class AgentOut(BaseModel):
    """An agent with its labels."""

    name: str
    description: str
    last_version: int
    labels: dict[str, int]
    created_at: datetime


class AgentVersionOut(BaseModel):
    """One agent version: the bundle that runs, byte for byte the one that was tested."""

    name: str
    version: int
    digest: str = Field(description="digest of the tested form")
    author_kind: str
    author: str
    reason: str
    created_at: datetime
    components: dict[str, Component]
    harness: Harness


class RunIn(_In):
    """A call of an agent: a text or the turns of a conversation, and which version answers."""

    input: Text | list[Message] = Field(description="a user's text, or turns so far")
    version: Text = Field(default="production", description="version number or label")


class RunOut(BaseModel):
    """A run and how it ended."""

    id: str
    agent: str
    version: int
    label: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    answer: str = ""
    stop: str = ""
    error: str = ""
    usage: Usage = Usage()
    steps: list[Step] = Field(default_factory=list)
    input: list[Message] = Field(default_factory=list)
    created_at: datetime
    finished_at: datetime | None = None


class TaskSetIn(_In):
    """A task set to import: JSONL, one task a line. Nothing is imported when a line is broken."""

    name: Name
    jsonl: str = Field(description="one task as JSON per line")
    description: Text = ""


class TaskSetOut(BaseModel):
    """A task set: how many tasks and groups each split has. Sealed tasks are counted, not shown."""

    name: str
    version: int
    description: str
    counts: dict[str, int] = Field(description="split → tasks")
    groups: dict[str, int] = Field(default_factory=dict, description="split → groups")
    labels: dict[str, int] = Field(default_factory=dict)
    created_at: datetime


class EvaluationOut(BaseModel):
    """How a candidate scored on a split; higher is better, in [0, 1]."""

    split: str
    rollouts: int
    mean: float | None


class CandidateOut(BaseModel):
    """A candidate that a run looked at: what it would run, and how it scored."""

    digest: str
    parents: list[str]
    note: str
    components: dict[str, Component]
    evaluations: list[EvaluationOut]
    created_at: datetime


class DecisionIn(_In):
    """A decision on a proposal."""

    note: Text = Field(default="", description="why, for those who read it later")


class RollbackIn(_In):
    """Why a promotion is undone."""

    reason: Text = ""


class LabelRollbackIn(_In):
    """Which label goes back to the version that it named before."""

    label: Text = "production"
    reason: Text = Field(default="", description="kept with the move")


class ProjectIn(_In):
    """Settings of a project."""

    promotion: PromotionRule = Field(
        description="'ask': a person decides; 'auto': an accepted proposal is promoted at once"
    )


class ProjectOut(BaseModel):
    """A project and its rule for promotions."""

    id: str
    name: str
    promotion: PromotionRule


class ServerOut(BaseModel):
    """A registered tool server; of its environment only the names are shown."""

    name: str
    kind: str
    command: str
    args: list[str]
    functions: list[str]
    env_names: list[str]
    secret_ids: list[str] = Field(description="secrets that it is started with, bindings included")
    test_bindings: list[str] = Field(description="names of the bindings that nights may use")
    effect_free: bool
    created_at: datetime
    updated_at: datetime | None = None
