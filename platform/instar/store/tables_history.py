"""Tables of the registry's history: learned changes that no longer fit what they lie on."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from instar.store.tables_base import (
    SCHEMA,
    Base,
    CreatedAt,
    Exact,
    Id,
    Maybe,
    Moment,
    OwnId,
    ProjectId,
    Words,
)

__all__ = ["OverlayConflictRow"]


class OverlayConflictRow(Base):
    """A learned version that could not be laid on a person's new base, with the places where."""

    __tablename__ = "overlay_conflict"
    __table_args__ = (
        Index(
            "uq_overlay_conflict_open",
            "overlay_id",
            "base_id",
            unique=True,
            postgresql_where=text("resolution = ''"),
        ),
        Index(None, "project_id", "created_at", "id"),
        Index(None, "artifact_id"),
        CheckConstraint(
            "resolution in ('', 'merged', 'superseded', 'dismissed')", name="resolution"
        ),
    )
    id: Mapped[OwnId]
    project_id: Mapped[ProjectId]
    artifact_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.artifact.id"))
    overlay_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    # The person's version that it lies on, and the newer one that it should lie on.
    former_base_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    base_id: Mapped[Id] = mapped_column(ForeignKey(f"{SCHEMA}.version.id"))
    conflicts: Mapped[Exact] = mapped_column(nullable=False)
    # Empty while it is open.
    resolution: Mapped[Words]
    resolved_version_id: Mapped[Maybe]
    resolved_by: Mapped[Words]
    created_at: Mapped[CreatedAt]
    resolved_at: Mapped[Moment]
