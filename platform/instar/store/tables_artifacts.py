"""Tables of projects, keys, artifacts with versions and labels, task sets and tool servers."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, ForeignKeyConstraint, Index, text
from sqlalchemy.dialects.postgresql import JSONB, TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from instar.store.tables_base import (
    SCHEMA,
    Base,
    Bytes,
    CreatedAt,
    Exact,
    Id,
    Key,
    Maybe,
    Moment,
    OwnId,
    ProjectId,
    Query,
    Words,
)

__all__ = [
    "ApiKeyRow",
    "ArtifactRow",
    "BlobRow",
    "InstallationRow",
    "LabelEventRow",
    "LabelRow",
    "McpServerRow",
    "PriceRow",
    "ProjectRow",
    "SealedTaskRow",
    "TaskRow",
    "VersionParentRow",
    "VersionPartRow",
    "VersionRolloutRow",
    "VersionRow",
]


class InstallationRow(Base):
    """The one row that names this installation; its id is also in the data directory's marker."""

    __tablename__ = "installation"
    id: Mapped[OwnId]
    created_at: Mapped[CreatedAt]


class ProjectRow(Base):
    """A project: what row-level policies keep apart. ``settings`` holds its promotion rule."""

    __tablename__ = "project"
    id: Mapped[OwnId]
    name: Mapped[str] = mapped_column(unique=True)
    settings: Mapped[Query]
    created_at: Mapped[CreatedAt]
    deleted_at: Mapped[Moment]


class ApiKeyRow(Base):
    """An API key: only its hash is kept; ``prefix`` is shown so that people recognise it."""

    __tablename__ = "api_key"
    __table_args__ = (
        CheckConstraint("role in ('viewer', 'operator', 'approver', 'admin')", name="role"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    name: Mapped[str]
    prefix: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)
    role: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(JSONB, server_default=text("'[]'::jsonb"))
    # May create projects and users: the first key of an installation, and whom it names.
    instance: Mapped[bool] = mapped_column(server_default=text("false"), default=False)
    # The agent that holds the key; such a key never approves.
    agent: Mapped[Words]
    created_by: Mapped[Words]
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[Moment]
    revoked_at: Mapped[Moment]
    last_used_at: Mapped[Moment]


class ArtifactRow(Base):
    """A named, versioned thing of one kind. Description and tags are editable, and audited."""

    __tablename__ = "artifact"
    __table_args__ = (
        Index(None, "project_id", "kind", "name", unique=True),
        Index(
            "uq_artifact_skeleton",
            "project_id",
            "kind",
            "skeleton",
            unique=True,
            postgresql_where=text("skeleton <> ''"),
        ),
        Index(None, "project_id", "created_at", "id"),
        Index(None, "project_id", "kind", "created_at", "id"),
        CheckConstraint("owner_kind in ('person', 'run', 'system')", name="owner_kind"),
        CheckConstraint("job_access in ('none', 'overlay')", name="job_access"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    kind: Mapped[str]
    name: Mapped[str]
    # What the name looks like (NFKC, case and confusable characters folded): unique per kind.
    skeleton: Mapped[Words]
    # Who made it, and what jobs may do with it: a person's thing is read-only to them by default.
    owner_kind: Mapped[str] = mapped_column(server_default=text("'person'"), default="person")
    job_access: Mapped[str] = mapped_column(server_default=text("'none'"), default="none")
    # Words of name, description, tags and newest content, for full-text search. No index: behind a
    # row-level policy PostgreSQL uses none for '@@', which might leak; a search reads the project.
    search: Mapped[Any] = mapped_column(
        TSVECTOR, server_default=text("''::tsvector"), deferred=True
    )
    description: Mapped[Words]
    tags: Mapped[list[str]] = mapped_column(JSONB, server_default=text("'[]'::jsonb"))
    last_version: Mapped[int] = mapped_column(server_default=text("0"))
    revision: Mapped[int] = mapped_column(server_default=text("0"))
    created_at: Mapped[CreatedAt]
    deleted_at: Mapped[Moment]


class BlobRow(Base):
    """Immutable content, named by the sha256 of its bytes within a project."""

    __tablename__ = "blob"
    project_id: Mapped[str] = mapped_column(ForeignKey(f"{SCHEMA}.project.id"), primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    size: Mapped[int]
    content: Mapped[Bytes]
    created_at: Mapped[CreatedAt]


class VersionRow(Base):
    """A numbered event (1, 2, 3 …) that points to immutable content."""

    __tablename__ = "version"
    __table_args__ = (
        Index(None, "artifact_id", "subject_digest"),
        Index(None, "artifact_id", "number", unique=True),
        Index(None, "project_id", "created_at", "id"),
        ForeignKeyConstraint(
            ["project_id", "blob_digest"], [f"{SCHEMA}.blob.project_id", f"{SCHEMA}.blob.digest"]
        ),
        CheckConstraint("number >= 1", name="number"),
        Index("ix_version_run", "run_id", postgresql_where=text("run_id is not null")),
        Index("ix_version_base", "base_id", postgresql_where=text("base_id is not null")),
        CheckConstraint(
            "origin in ('save', 'overlay', 'rebase', 'merge', 'copy', 'import', 'restore')",
            name="origin",
        ),
        CheckConstraint("author_kind in ('person', 'run', 'system')", name="author_kind"),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    artifact_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.artifact.id"))
    number: Mapped[int]
    blob_digest: Mapped[str]
    media_type: Mapped[str]
    subject_digest: Mapped[Words]
    author_kind: Mapped[str]
    author: Mapped[Words]
    reason: Mapped[Words]
    evidence: Mapped[Exact]
    origin: Mapped[str] = mapped_column(server_default=text("'save'"), default="save")
    # The person's version that a learned one (overlay, rebase) lies on; NULL for a base itself.
    base_id: Mapped[Maybe] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    # The evolution run that made it, whatever author it names.
    run_id: Mapped[Maybe]
    created_at: Mapped[CreatedAt]
    deleted_at: Mapped[Moment]


class VersionRolloutRow(Base):
    """A rollout that a version was derived from, such as a demonstration's source."""

    __tablename__ = "version_rollout"
    __table_args__ = (Index(None, "rollout_id"),)
    version_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    rollout_id: Mapped[Key]
    project_id: Mapped[ProjectId]


class VersionParentRow(Base):
    """One edge of a version's ancestry."""

    __tablename__ = "version_parent"
    __table_args__ = (Index(None, "parent_id"),)
    version_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    parent_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    project_id: Mapped[ProjectId]


class VersionPartRow(Base):
    """A version that a bundle pins under a name, such as a component of an agent."""

    __tablename__ = "version_part"
    __table_args__ = (Index(None, "part_id"),)
    version_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    name: Mapped[str] = mapped_column(primary_key=True)
    ordinal: Mapped[int]
    part_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    project_id: Mapped[ProjectId]


class LabelRow(Base):
    """A movable pointer to a version. ``epoch`` grows with every move, so that an ETag changes."""

    __tablename__ = "label"
    __table_args__ = (
        CheckConstraint("name !~ '^[0-9]+$'", name="not_digits"),
        CheckConstraint(
            "move_role in ('operator', 'approver', 'admin')",
            name="move_role",
        ),
        Index(None, "version_id"),
    )
    artifact_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.artifact.id"))
    name: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[ProjectId]
    version_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    number: Mapped[int]
    # The least role that may move it; above 'operator' the label is protected.
    move_role: Mapped[str] = mapped_column(server_default=text("'operator'"), default="operator")
    protected: Mapped[bool] = mapped_column(server_default=text("false"))
    epoch: Mapped[int] = mapped_column(server_default=text("1"))
    moved_at: Mapped[CreatedAt]


class LabelEventRow(Base):
    """One move, creation or removal of a label, with its cause. Append-only."""

    __tablename__ = "label_event"
    __table_args__ = (
        Index(None, "artifact_id", "label", "created_at"),
        Index("ix_label_event_run", "run_id", postgresql_where=text("run_id is not null")),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    artifact_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.artifact.id"))
    label: Mapped[str]
    from_number: Mapped[int | None]
    to_number: Mapped[int | None]
    actor_kind: Mapped[str]
    actor: Mapped[Words]
    cause: Mapped[Words]
    # The evolution run whose work the move put in force, whoever moved it.
    run_id: Mapped[Maybe]
    # Of a move that an import brought: who made it elsewhere, when, and as part of which run.
    imported: Mapped[Exact]
    created_at: Mapped[CreatedAt]


class TaskRow(Base):
    """One task of a task-set version. ``content`` is NULL for sealed tasks: see ``sealed_task``."""

    __tablename__ = "task"
    __table_args__ = (
        Index(None, "version_id", "split", "group_key"),
        CheckConstraint("split in ('train', 'validation', 'sealed')", name="split"),
        CheckConstraint("(split = 'sealed') = (content is null)", name="sealed_content_apart"),
    )
    version_id: Mapped[Key] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    task_id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[ProjectId]
    ordinal: Mapped[int]
    split: Mapped[str]
    group_key: Mapped[str]
    slice: Mapped[str]
    content_digest: Mapped[str]
    content: Mapped[Exact]


class SealedTaskRow(Base):
    """The content of a sealed task. The application may insert, never select: a definer function
    hands out the groups of an open sealed test."""

    __tablename__ = "sealed_task"
    __table_args__ = (
        ForeignKeyConstraint(
            ["version_id", "task_id"], [f"{SCHEMA}.task.version_id", f"{SCHEMA}.task.task_id"]
        ),
    )
    version_id: Mapped[Key]
    task_id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[ProjectId]
    content: Mapped[Exact] = mapped_column(nullable=False)


class McpServerRow(Base):
    """A registered tool source: how to start it, and its test binding for rollouts."""

    __tablename__ = "mcp_server"
    __table_args__ = (
        Index(
            "uq_mcp_server_name",
            "project_id",
            "name",
            unique=True,
            postgresql_where=text("deleted_at is null"),
        ),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    name: Mapped[str]
    config: Mapped[Query]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[Moment]
    deleted_at: Mapped[Moment]


class PriceRow(Base):
    """A project's own price of a model, in US dollars per token and kind."""

    __tablename__ = "price"
    __table_args__ = (Index(None, "project_id", "model", unique=True),)
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    model: Mapped[str]
    prices: Mapped[Query]
    source: Mapped[Words]
    created_at: Mapped[CreatedAt]
    by: Mapped[Maybe]
