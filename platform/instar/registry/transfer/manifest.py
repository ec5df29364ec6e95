"""Manifest: the one file of an export that says what all the others are, with their hashes.

Everything refers to everything else by kind, name and number, never by id: ids belong to the
database that made them. Nothing here is trusted on the way in; see :mod:`package`.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from pydantic import Field

from instar_core.base import Frozen, JsonValue, content_hash

__all__ = [
    "FORMAT",
    "MANIFEST",
    "ArtifactFacts",
    "AuthorFacts",
    "FileFacts",
    "LabelFacts",
    "LabelMoveFacts",
    "Manifest",
    "PartFacts",
    "SealedFacts",
    "SecretFacts",
    "TaskFacts",
    "VersionFacts",
    "VersionKey",
    "VersionRef",
    "folder_of",
    "slug_of",
]

FORMAT = "instar-project/1"
MANIFEST = "manifest.json"

_HEX = r"^[0-9a-f]{64}$"
_LABEL = r"^[a-z0-9._-]*[a-z._-][a-z0-9._-]*$"
_PLAIN_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")
_UNSAFE = re.compile(r"[^a-z0-9]+")
_READABLE = 40


class VersionKey(NamedTuple):
    """Kind, name and number: what a version is called everywhere."""

    kind: str
    name: str
    number: int


class VersionRef(Frozen):
    """A version, as the manifest writes it."""

    kind: str = Field(min_length=1, max_length=255)
    name: str = Field(min_length=1, max_length=255)
    number: int = Field(ge=1, le=2**31 - 1)

    @property
    def key(self) -> VersionKey:
        """The same, as a key."""
        return VersionKey(self.kind, self.name, self.number)


class PartFacts(VersionRef):
    """A version that a bundle pins, under a name of its own."""

    part: str = Field(min_length=1, max_length=255)


class FileFacts(Frozen):
    """One file of the export."""

    path: str
    sha256: str = Field(pattern=_HEX)
    size: int = Field(ge=0)


class AuthorFacts(Frozen):
    """Who made or moved something, in the project it comes from."""

    kind: Literal["person", "run", "system"]
    name: str


class TaskFacts(Frozen):
    """Where the tasks of a task-set version are, and how many are sealed."""

    file: str = Field(description="JSONL of the train and validation tasks")
    tasks: int = Field(ge=0)
    sealed: int = Field(default=0, ge=0)
    sealed_digest: str = Field(default="", description="over ids and digests of the sealed tasks")
    sealed_file: str = Field(default="", description="JSONL of the sealed tasks; empty: left out")


class VersionFacts(Frozen):
    """One version, and where its content is."""

    number: int = Field(ge=1, le=2**31 - 1)
    digest: str = Field(pattern=_HEX)
    media_type: str = Field(max_length=255)
    size: int = Field(ge=0)
    folder: str = Field(default="", description="the content in its open format; empty: none")
    blob: str = Field(
        default="", description="the exact bytes, where the folder does not give them"
    )
    subject_digest: str = Field(default="", max_length=255)
    author: AuthorFacts
    reason: str = ""
    evidence: JsonValue = None
    origin: str = Field(default="save", max_length=64)
    run: str | None = None
    rollouts: tuple[str, ...] = ()
    parents: tuple[VersionRef, ...] = ()
    base: VersionRef | None = None
    parts: tuple[PartFacts, ...] = ()
    tasks: TaskFacts | None = None
    created_at: str
    archived: bool = False
    masked: str = Field(default="", description="digest before secrets in it were masked")


class LabelFacts(Frozen):
    """Where a label points, and the least role that may move it."""

    name: str = Field(min_length=1, max_length=63, pattern=_LABEL)
    number: int = Field(ge=1)
    move_role: Literal["operator", "approver", "admin"] = "operator"


class LabelMoveFacts(Frozen):
    """One move of a label; ``None`` is where there was or is no label."""

    label: str = Field(min_length=1, max_length=63, pattern=_LABEL)
    from_number: int | None
    to_number: int | None
    actor: AuthorFacts
    cause: str = ""
    run: str | None = None
    at: str


class ArtifactFacts(Frozen):
    """One artifact with all its versions, and its labels with their history."""

    kind: str = Field(min_length=1, max_length=255)
    name: str = Field(min_length=1, max_length=255)
    description: str = ""
    tags: tuple[str, ...] = ()
    owner_kind: Literal["person", "run", "system"] = "person"
    job_access: Literal["none", "overlay"] = "none"
    archived: bool = False
    versions: tuple[VersionFacts, ...]
    labels: tuple[LabelFacts, ...] = ()
    label_history: tuple[LabelMoveFacts, ...] = ()

    def key(self, number: int) -> VersionKey:
        """What one of its versions is called."""
        return VersionKey(self.kind, self.name, number)


class SealedFacts(Frozen):
    """Whether sealed tasks are in the export, and how many there are."""

    included: bool = False
    tasks: int = Field(default=0, ge=0)


class SecretFacts(Frozen):
    """A secret that a content refers to: how, and its name; never its value."""

    reference: str
    name: str


class Manifest(Frozen):
    """What an export holds."""

    format: str
    instar: str
    project: str
    moment: str
    artifacts: tuple[ArtifactFacts, ...] = ()
    sealed: SealedFacts = SealedFacts()
    rollouts: int = Field(default=0, ge=0)
    secrets: tuple[SecretFacts, ...] = ()
    files: tuple[FileFacts, ...] = ()


def slug_of(kind: str, name: str) -> str:
    """A name for folders and files: readable, never a path, never equal to another's.

    It is made of the name's plain characters and of its hash, so that two names which differ only
    in case, or in what was left out, stay apart everywhere.
    """
    readable = _UNSAFE.sub("-", name.lower()).strip("-")[:_READABLE].strip("-")
    tail = content_hash([kind, name])[:12]
    return f"{readable}-{tail}" if readable else tail


def folder_of(kind: str, name: str) -> str:
    """The folder of an artifact: its kind in clear, where that is a plain word, and its slug."""
    # Kinds were any text once.
    plain = kind if _PLAIN_KIND.fullmatch(kind) else slug_of("kind", kind)
    return f"artifacts/{plain}/{slug_of(kind, name)}"
