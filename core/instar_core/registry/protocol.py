"""The registry's verbs, and the values that they take and give.

A version is a numbered event (1, 2, 3 …) that points to immutable content by its hash. A label is a
movable pointer to a version: whoever moves one says where it is believed to be, and nothing moves
where that is wrong. Everything is archived, never deleted.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from pydantic import Field

from instar_core.base import Frozen, JsonValue
from instar_core.kinds import TrainableComponent
from instar_core.registry.contract import Contract

__all__ = [
    "ALL",
    "ANY",
    "Actor",
    "ArtifactState",
    "Change",
    "LabelEvent",
    "LabelState",
    "Listed",
    "Name",
    "Registry",
    "Saved",
    "VersionState",
]

ANY: Literal["any"] = "any"
"""For ``expected``: move the label wherever it is."""
ALL: Literal["all"] = "all"
"""For ``archive`` and ``restore``: the artifact with all its versions."""


class Name(NamedTuple):
    """Which artifact of a project: its kind and its name."""

    kind: str
    name: str


class Actor(Frozen):
    """Who acts: a person, an evolution run (by its id), or the system itself."""

    kind: Literal["person", "run", "system"] = "person"
    name: str = ""


class Change(Frozen):
    """Who changes something, why, and on what evidence.

    ``parents`` are numbers of versions of the same artifact that the new one was made from: none
    means the newest one, a merge has two. ``allow_similar`` lets a person create what resembles
    something that is there.
    """

    by: Actor
    reason: str = ""
    evidence: JsonValue = None
    parents: tuple[int, ...] = ()
    rollouts: tuple[str, ...] = ()
    description: str = ""
    allow_similar: bool = False


class ArtifactState(Frozen):
    """An artifact as it is now; ``labels`` maps label to version number."""

    kind: str
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    last_version: int
    labels: dict[str, int] = Field(default_factory=dict)
    etag: str


class VersionState(Frozen):
    """A version with its content, as a reference resolved to it; ``etag`` changes with anything
    that the same reference would give."""

    kind: str
    name: str
    number: int
    digest: str
    by: Actor
    reason: str = ""
    evidence: JsonValue = None
    parents: tuple[int, ...] = ()
    label: str | None = None
    etag: str
    content: JsonValue


class LabelState(Frozen):
    """Where a label points. Its ETag changes with every move."""

    label: str
    number: int
    protected: bool = False
    etag: str


class LabelEvent(Frozen):
    """One move of a label; ``before`` or ``after`` is ``None`` where there was or is none."""

    label: str
    before: int | None
    after: int | None
    by: Actor
    cause: str = ""


class Saved(NamedTuple):
    """A version that was saved, and what its author should know about it."""

    version: VersionState
    notices: tuple[str, ...] = ()


class Listed(NamedTuple):
    """Some artifacts, and the cursor of the page after them (``None`` at the end)."""

    items: tuple[ArtifactState, ...]
    next: str | None = None


class Registry(Protocol):
    """Everything an agent is made of: the same verbs for every kind."""

    async def create(self, ref: Name, content: JsonValue, change: Change) -> Saved:
        """Saves the first version of a new artifact.

        Raises:
            ConflictError: If it exists (archived ones too), or, for a run, resembles one that does.
            InvalidContent: If it is no content of its kind, or the name cannot be one.
        """
        ...

    async def read(self, ref: Name, at: str | int = "latest") -> VersionState:
        """What a version number, a label or ``latest`` means now.

        Raises:
            NotFoundError: If there is no such thing, or it was archived; names the nearest.
        """
        ...

    async def list(
        self, *, kind: str | None = None, q: str = "", limit: int = 50, after: str | None = None
    ) -> Listed:
        """Artifacts that are not archived, newest first; ``q``: only those with all its words."""
        ...

    async def update(self, ref: Name, content: JsonValue, change: Change) -> Saved:
        """Saves a content as the next version, with the next consecutive number."""
        ...

    async def describe(
        self,
        ref: Name,
        change: Change,
        *,
        description: str | None = None,
        tags: tuple[str, ...] | None = None,
    ) -> ArtifactState:
        """Edits description or tags: no new version, but another ETag of what it resolves to."""
        ...

    async def diff(self, ref: Name, old: str | int, new: str | int) -> tuple[str, ...]:
        """The places that differ between two versions, as JSON pointers; () if they are equal."""
        ...

    async def label(
        self,
        ref: Name,
        label: str,
        to: int,
        *,
        expected: int | Literal["any"] | None,
        change: Change,
    ) -> LabelState:
        """Points a label at a version if it is where the caller believes it to be.

        Raises:
            ConflictError: If it is elsewhere; nothing was moved.
            UserError: If the name cannot be a label's (digits only, ``latest``).
            PermissionDenied: If it is protected from this caller.
        """
        ...

    async def labels(self, ref: Name) -> dict[str, LabelState]:
        """The labels of an artifact, by name."""
        ...

    async def history(self, ref: Name, label: str) -> tuple[LabelEvent, ...]:
        """The moves of a label, oldest first."""
        ...

    async def roll_back(self, ref: Name, label: str, change: Change) -> LabelState:
        """Moves a label to the version that it named before its last move."""
        ...

    async def archive(self, ref: Name, number: int | Literal["all"], change: Change) -> None:
        """Hides one version, or the artifact with all its versions. Nothing is lost.

        Raises:
            ConflictError: If a label or another artifact depends on what would go.
        """
        ...

    async def restore(self, ref: Name, number: int | Literal["all"], change: Change) -> None:
        """Brings back what was archived, under its old numbers."""
        ...

    async def copy(self, ref: Name, to: str, change: Change, *, at: str | int = "latest") -> Saved:
        """Saves a version's content as the first version of a new artifact of the same kind."""
        ...

    async def contract(self, *, kind: str | None = None, budget_tokens: int = 2_000) -> Contract:
        """The one text that lists, by kind, what there is, within a budget."""
        ...

    async def components(
        self, ref: Name, at: str | int = "latest"
    ) -> tuple[TrainableComponent, ...]:
        """The parts of a version that may be trained, with owners and size budgets."""
        ...
