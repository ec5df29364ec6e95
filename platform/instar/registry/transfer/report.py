"""Report: what an import does or would do, artifact by artifact; the same for a dry run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from instar_core.base import Frozen

__all__ = ["ArtifactChange", "ImportReport"]


class ArtifactChange(Frozen):
    """What happens to one artifact."""

    kind: str
    name: str
    came_as: str = Field(description="its name in the export")
    action: Literal["create", "extend", "keep", "conflict"]
    versions: tuple[int, ...] = Field(default=(), description="numbers that are added")
    labels: tuple[str, ...] = Field(default=(), description="labels that are placed or moved")
    reason: str = Field(default="", description="why it conflicts")


class ImportReport(Frozen):
    """What an import does: nothing where there is a conflict."""

    project: str = Field(description="the project that was exported")
    dry_run: bool
    written: bool
    artifacts: int = 0
    created: int = 0
    extended: int = 0
    kept: int = 0
    versions: int = Field(default=0, description="versions that are added")
    labels: int = Field(default=0, description="labels that are placed or moved")
    tasks: int = 0
    sealed: int = Field(default=0, description="sealed tasks whose contents are written")
    changes: tuple[ArtifactChange, ...] = ()
    conflicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether everything is there already."""
        return not (self.versions or self.labels or self.sealed)
