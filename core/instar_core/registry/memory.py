"""A registry in this process: every verb, no service, nothing kept when the process ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from instar_core.base import JsonValue, canonical_json, content_hash
from instar_core.errors import ConflictError, InvalidContent, NotFoundError, PermissionDenied
from instar_core.kinds import Kind, TrainableComponent, check_content, did_you_mean
from instar_core.registry.contract import Contract, ContractEntry, build_contract
from instar_core.registry.places import changed_places
from instar_core.registry.protocol import (
    ALL,
    ANY,
    ArtifactState,
    Change,
    LabelEvent,
    LabelState,
    Listed,
    Name,
    Saved,
    VersionState,
)
from instar_core.similarity import COMPARED_KINDS, find_similar

__all__ = ["MemoryRegistry"]

_NAME = re.compile(r"[^\s@/\\.][^\s@\\]{0,254}")
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass
class _Version:
    number: int
    digest: str
    change: Change
    parents: tuple[int, ...]
    archived: bool = False


@dataclass
class _Label:
    number: int
    epoch: int
    protected: bool


@dataclass
class _Artifact:
    ref: Name
    ordinal: int
    description: str = ""
    tags: tuple[str, ...] = ()
    revision: int = 0
    archived: bool = False
    versions: list[_Version] = field(default_factory=list)
    labels: dict[str, _Label] = field(default_factory=dict)
    events: list[LabelEvent] = field(default_factory=list)


class MemoryRegistry:
    """Artifacts in dictionaries. No verb waits inside, so that each is atomic in an event loop.

    Args:
        open_kind: Kind by name, such as ``instar.registry.kinds.open_kind``.
        protected: Labels that :meth:`label` refuses to move once they exist, unless the actor is
            the system.
    """

    def __init__(
        self,
        open_kind: Callable[[str], Kind],
        *,
        protected: frozenset[str] = frozenset({"production"}),
    ) -> None:
        self._open_kind = open_kind
        self._protected = protected
        self._artifacts: dict[Name, _Artifact] = {}
        self._blobs: dict[str, JsonValue] = {}

    @property
    def blobs(self) -> int:
        """How many different contents are kept."""
        return len(self._blobs)

    async def create(self, ref: Name, content: JsonValue, change: Change) -> Saved:
        """Saves the first version of a new artifact."""
        kind = self._open_kind(ref.kind)
        _check_name(ref)
        checked = check_content(kind, content)
        if ref in self._artifacts:
            gone = " (archived)" if self._artifacts[ref].archived else ""
            raise ConflictError(
                f"there is a {ref.kind} named {ref.name!r} already{gone}.",
                remedy="Update or restore it, or choose another name.",
            )
        notices = self._look_for_similar(kind, ref, checked, change)
        artifact = _Artifact(ref, len(self._artifacts), change.description)
        self._artifacts[ref] = artifact
        version = self._append(artifact, checked, change)
        return Saved(version, (*notices, *kind.problems(ref.name, checked)))

    async def read(self, ref: Name, at: str | int = "latest") -> VersionState:
        """What a reference means now."""
        artifact = self._find(ref)
        version, label = self._resolve(artifact, at)
        return self._shown(artifact, version, label)

    async def list(
        self, *, kind: str | None = None, q: str = "", limit: int = 50, after: str | None = None
    ) -> Listed:
        """Artifacts that are not archived, newest first."""
        words = q.casefold().split()
        below = int(after) if after else len(self._artifacts)
        found = [
            one
            for one in sorted(self._artifacts.values(), key=lambda one: -one.ordinal)
            if one.ordinal < below
            and not one.archived
            and kind in (None, one.ref.kind)
            and all(word in self._search_text(one).casefold() for word in words)
        ]
        items = tuple(self._state(one) for one in found[:limit])
        more = len(found) > limit
        return Listed(items, str(found[limit - 1].ordinal) if more else None)

    async def update(self, ref: Name, content: JsonValue, change: Change) -> Saved:
        """Saves a content as the next version."""
        artifact = self._find(ref)
        kind = self._open_kind(ref.kind)
        checked = check_content(kind, content)
        for parent in change.parents:
            self._resolve(artifact, parent)
        return Saved(self._append(artifact, checked, change), kind.problems(ref.name, checked))

    async def describe(
        self,
        ref: Name,
        change: Change,
        *,
        description: str | None = None,
        tags: tuple[str, ...] | None = None,
    ) -> ArtifactState:
        """Edits description or tags."""
        artifact = self._find(ref)
        artifact.description = artifact.description if description is None else description
        artifact.tags = artifact.tags if tags is None else tuple(dict.fromkeys(tags))
        artifact.revision += 1
        return self._state(artifact)

    async def diff(self, ref: Name, old: str | int, new: str | int) -> tuple[str, ...]:
        """The places that differ between two versions."""
        left, right = await self.read(ref, old), await self.read(ref, new)
        return changed_places(left.content, right.content)

    async def label(
        self,
        ref: Name,
        label: str,
        to: int,
        *,
        expected: int | Literal["any"] | None,
        change: Change,
    ) -> LabelState:
        """Points a label at a version by compare-and-swap."""
        if label.isdecimal() or label == "latest" or not _LABEL.fullmatch(label):
            raise InvalidContent(
                f"{label[:80]!r} cannot be a label.",
                remedy="Use 1 to 63 lower-case letters, digits, '.', '_', '-'; not digits alone.",
            )
        artifact = self._find(ref)
        version, _ = self._resolve(artifact, to)
        now = artifact.labels.get(label)
        before = None if now is None else now.number
        if expected not in (ANY, before):
            raise ConflictError(
                f"the label {label!r} of {ref.kind} {ref.name!r} is {_place(before)}, not "
                f"{_place(expected)} as expected; it was not moved.",
                remedy="Read it again and decide anew.",
            )
        if now is not None and now.protected and change.by.kind != "system":
            raise PermissionDenied(
                f"the label {label!r} of {ref.kind} {ref.name!r} is protected.",
                remedy="Move another label, or promote a tested proposal.",
            )
        epoch = 1 + sum(event.label == label for event in artifact.events)
        artifact.labels[label] = _Label(version.number, epoch, label in self._protected)
        artifact.events.append(
            LabelEvent(
                label=label,
                before=before,
                after=version.number,
                by=change.by,
                cause=change.reason,
            )
        )
        return _label_state(label, artifact.labels[label])

    async def labels(self, ref: Name) -> dict[str, LabelState]:
        """The labels of an artifact, by name."""
        found = self._find(ref).labels
        return {name: _label_state(name, found[name]) for name in sorted(found)}

    async def history(self, ref: Name, label: str) -> tuple[LabelEvent, ...]:
        """The moves of a label, oldest first."""
        return tuple(event for event in self._find(ref).events if event.label == label)

    async def roll_back(self, ref: Name, label: str, change: Change) -> LabelState:
        """Moves a label to the version that it named before its last move."""
        artifact = self._find(ref)
        now = artifact.labels.get(label)
        if now is None:
            raise _no_label(artifact, label)
        moves = [event for event in artifact.events if event.label == label]
        before = next((one.before for one in reversed(moves) if one.after == now.number), None)
        if before is None:
            raise ConflictError(
                f"the label {label!r} of {ref.kind} {ref.name!r} has named no version before "
                f"{now.number}.",
                remedy="Point it at a version instead.",
            )
        return await self.label(ref, label, before, expected=now.number, change=change)

    async def archive(self, ref: Name, number: int | Literal["all"], change: Change) -> None:
        """Hides one version, or the artifact with all its versions."""
        artifact = self._find(ref)
        gone = {one.number for one in artifact.versions} if number == ALL else {number}
        if number != ALL:
            self._resolve(artifact, number)[0]
        held = [name for name, label in artifact.labels.items() if label.number in gone]
        if held:
            raise ConflictError(
                f"{ref.kind} {ref.name!r} is what the label {held[0]!r} points to; nothing was "
                "archived.",
                remedy="Move the label first.",
            )
        if number == ALL:
            artifact.archived = True
        else:
            self._any_version(artifact, number).archived = True
        artifact.revision += 1

    async def restore(self, ref: Name, number: int | Literal["all"], change: Change) -> None:
        """Brings back what was archived."""
        artifact = self._artifacts.get(ref)
        if artifact is None:
            raise self._unknown(ref)
        if number == ALL:
            artifact.archived = False
        else:
            self._any_version(artifact, number).archived = False
        artifact.revision += 1

    async def copy(self, ref: Name, to: str, change: Change, *, at: str | int = "latest") -> Saved:
        """Saves a version's content as the first version of a new artifact."""
        artifact = self._find(ref)
        version, _ = self._resolve(artifact, at)
        described = change.model_copy(
            update={"description": change.description or artifact.description}
        )
        allowed = described.model_copy(update={"allow_similar": True})
        return await self.create(Name(ref.kind, to), self._blobs[version.digest], allowed)

    async def contract(self, *, kind: str | None = None, budget_tokens: int = 2_000) -> Contract:
        """The one text that lists what there is."""
        live = [one for one in self._artifacts.values() if not one.archived]
        entries = []
        for one in sorted(live, key=lambda one: one.ref):
            if kind in (None, one.ref.kind):
                version, _ = self._resolve(one, "latest")
                opened = self._open_kind(one.ref.kind)
                content = self._blobs[version.digest]
                line = opened.listing(one.ref.name, one.description, content)
                entries.append(
                    ContractEntry(
                        kind=one.ref.kind, name=one.ref.name, version=version.number, line=line
                    )
                )
        return build_contract(entries, budget_tokens=budget_tokens)

    async def components(
        self, ref: Name, at: str | int = "latest"
    ) -> tuple[TrainableComponent, ...]:
        """The parts of a version that may be trained."""
        version, _ = self._resolve(self._find(ref), at)
        return self._open_kind(ref.kind).components(self._blobs[version.digest])

    def _look_for_similar(
        self, kind: Kind, ref: Name, content: JsonValue, change: Change
    ) -> tuple[str, ...]:
        if ref.kind not in COMPARED_KINDS or (change.allow_similar and change.by.kind == "person"):
            return ()
        others = {
            one.ref.name: kind.search_text(self._blobs[self._resolve(one, "latest")[0].digest])
            for one in self._artifacts.values()
            if one.ref.kind == ref.kind and not one.archived
        }
        similar = find_similar(kind.search_text(content), others)
        if similar is None:
            return ()
        words = f"it resembles the {ref.kind} {similar.name!r} ({similar.score:.0%} of its wording)"
        if change.by.kind == "run":
            raise ConflictError(f"{words}.", remedy=f"Improve {similar.name!r} instead.")
        return (f"{words}: improve {similar.name!r} instead of keeping both?",)

    def _append(self, artifact: _Artifact, content: JsonValue, change: Change) -> VersionState:
        data = content.encode() if isinstance(content, str) else canonical_json(content)
        digest = content_hash(data)
        self._blobs.setdefault(digest, content)
        number = len(artifact.versions) + 1
        parents = tuple(dict.fromkeys(change.parents))
        if not parents and artifact.versions:
            parents = (self._resolve(artifact, "latest")[0].number,)
        version = _Version(number, digest, change, parents)
        artifact.versions.append(version)
        return self._shown(artifact, version, None)

    def _find(self, ref: Name) -> _Artifact:
        artifact = self._artifacts.get(ref)
        if artifact is None or artifact.archived:
            raise self._unknown(ref)
        return artifact

    def _unknown(self, ref: Name) -> NotFoundError:
        self._open_kind(ref.kind)
        names = [one.name for one in self._artifacts if one.kind == ref.kind]
        live = [one for one in names if not self._artifacts[Name(ref.kind, one)].archived]
        return NotFoundError(
            f"there is no {ref.kind} named {ref.name[:100]!r}.", remedy=did_you_mean(ref.name, live)
        )

    def _any_version(self, artifact: _Artifact, number: int) -> _Version:
        if not 1 <= number <= len(artifact.versions):
            raise NotFoundError(
                f"there is no version {number} of {artifact.ref.kind} {artifact.ref.name!r}; the "
                f"newest is {len(artifact.versions)}."
            )
        return artifact.versions[number - 1]

    def _resolve(self, artifact: _Artifact, at: str | int) -> tuple[_Version, str | None]:
        label: str | None = None
        if isinstance(at, str) and at not in ("", "latest") and not at.isdecimal():
            if at not in artifact.labels:
                raise _no_label(artifact, at)
            label, number = at, artifact.labels[at].number
        elif at in ("", "latest"):
            live = [one.number for one in artifact.versions if not one.archived]
            number = max(live, default=0)
        else:
            number = int(at)
        version = self._any_version(artifact, number)
        if version.archived:
            raise NotFoundError(
                f"version {number} of {artifact.ref.kind} {artifact.ref.name!r} was archived.",
                remedy="Restore it first.",
            )
        return version, label

    def _shown(self, artifact: _Artifact, version: _Version, label: str | None) -> VersionState:
        kind = self._open_kind(artifact.ref.kind)
        epoch = None if label is None else artifact.labels[label].epoch
        seen: list[JsonValue] = [*artifact.ref, version.number, artifact.revision, label, epoch]
        return VersionState(
            kind=artifact.ref.kind,
            name=artifact.ref.name,
            number=version.number,
            digest=version.digest,
            by=version.change.by,
            reason=version.change.reason,
            evidence=version.change.evidence,
            parents=version.parents,
            label=label,
            etag=content_hash(seen)[:32],
            content=kind.shown(self._blobs[version.digest]),
        )

    def _state(self, artifact: _Artifact) -> ArtifactState:
        labels = {name: one.number for name, one in sorted(artifact.labels.items())}
        epochs: list[JsonValue] = [
            [name, one.epoch] for name, one in sorted(artifact.labels.items())
        ]
        seen: list[JsonValue] = [*artifact.ref, artifact.revision, len(artifact.versions), *epochs]
        return ArtifactState(
            kind=artifact.ref.kind,
            name=artifact.ref.name,
            description=artifact.description,
            tags=artifact.tags,
            last_version=len(artifact.versions),
            labels=labels,
            etag=content_hash(seen)[:32],
        )

    def _search_text(self, artifact: _Artifact) -> str:
        content = self._blobs[self._resolve(artifact, "latest")[0].digest]
        words = self._open_kind(artifact.ref.kind).search_text(content)
        return "\n".join((artifact.ref.name, artifact.description, *artifact.tags, words))


def _check_name(ref: Name) -> None:
    if not _NAME.fullmatch(ref.name) or ".." in ref.name:
        raise InvalidContent(
            f"{ref.name[:80]!r} cannot be the name of a {ref.kind}.",
            remedy="Use 1 to 255 characters without spaces, '@', '..' and '\\', not a path.",
        )


def _no_label(artifact: _Artifact, label: str) -> NotFoundError:
    return NotFoundError(
        f"{artifact.ref.kind} {artifact.ref.name!r} has no label {label[:80]!r}.",
        remedy=did_you_mean(label, artifact.labels, what="Its labels"),
    )


def _label_state(name: str, label: _Label) -> LabelState:
    return LabelState(
        label=name, number=label.number, protected=label.protected, etag=str(label.epoch)
    )


def _place(number: int | str | None) -> str:
    return "absent" if number is None else f"at version {number}"
