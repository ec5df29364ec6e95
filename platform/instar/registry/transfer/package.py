"""Package: an export that came from elsewhere, checked whole before a single row is written.

Every hash is computed again, every content passes the check of its kind, and every reference leads
to a version that is in the package. What is wrong is collected and told at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from instar.registry.transfer.contents import (
    attachments_of,
    check_stored,
    parse_json,
    read_open_form,
)
from instar.registry.transfer.manifest import (
    FORMAT,
    MANIFEST,
    ArtifactFacts,
    Manifest,
    TaskFacts,
    VersionFacts,
    VersionKey,
)
from instar.store.contents import check_words
from instar.store.labels import check_label
from instar.store.names import check_name
from instar_core.base import JsonValue, content_hash, short
from instar_core.errors import InstarError, InvalidContent
from instar_core.kinds import did_you_mean
from instar_core.tasks import Task

__all__ = ["Package", "VersionItem", "open_package"]

MAX_PROBLEMS = 20
_MAX_CAUSE = 2_000
_NOT_NEEDED = "rollouts/"


@dataclass(slots=True)
class VersionItem:
    """One version of the package with its bytes.

    Attributes:
        artifact: What it is a version of.
        facts: What the manifest says about it.
        data: Its stored bytes.
        rows: Its tasks as rows of the store, where it is a task set.
        sealed: Contents of its sealed tasks by id, where they came along.
        attached: Files that its content names by hash.
    """

    artifact: ArtifactFacts
    facts: VersionFacts
    data: bytes
    rows: list[dict[str, Any]] = field(default_factory=list)
    sealed: dict[str, JsonValue] = field(default_factory=dict)
    attached: list[bytes] = field(default_factory=list)

    @property
    def key(self) -> VersionKey:
        """Its kind, name and number."""
        return self.artifact.key(self.facts.number)

    def references(self) -> list[VersionKey]:
        """The versions that must be there before it."""
        facts = self.facts
        found = [one.key for one in (*facts.parents, *facts.parts)]
        if facts.base is not None:
            found.append(facts.base.key)
        if facts.number > 1:
            found.append(self.artifact.key(facts.number - 1))
        return found


@dataclass(frozen=True, slots=True)
class Package:
    """A checked export: its manifest and its versions, each after all that it refers to."""

    manifest: Manifest
    versions: tuple[VersionItem, ...]


class _Problems:
    """Collects what is wrong, with its place."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def at(self, where: str) -> Iterator[None]:
        """Notes an error of the block under its place, and goes on."""
        try:
            yield
        except InstarError as error:
            self.found.append(f"{where}: {error}")

    def add(self, where: str, what: str) -> None:
        """Notes one problem."""
        self.found.append(f"{where}: {what}")

    def raise_any(self) -> None:
        """Refuses the package if anything was noted.

        Raises:
            InvalidContent: Lists what was noted, the first of it in full.
        """
        if not self.found:
            return
        shown = "\n".join(f"  {one}" for one in self.found[:MAX_PROBLEMS])
        left = len(self.found) - MAX_PROBLEMS
        more = f"\n  … and {left} more" if left > 0 else ""
        count = f"{len(self.found)} problem{'s' if len(self.found) > 1 else ''}"
        raise InvalidContent(
            f"this is no export that can be imported: {count}; nothing was written.\n"
            f"{shown}{more}\n",
            remedy="Export the project again, and transfer it unchanged.",
        )


def open_package(files: Mapping[str, bytes]) -> Package:
    """The export that these files are.

    Args:
        files: Relative path → bytes, as :func:`instar_skills.archives.read_archive` gives them.

    Raises:
        InvalidContent: If it is none, or anything in it is wrong; names up to twenty problems.
    """
    manifest = _read_manifest(files)
    problems = _Problems()
    _check_files(manifest, files, problems)
    _check_artifacts(manifest, problems)
    problems.raise_any()
    items = [
        item
        for artifact in manifest.artifacts
        for item in _read_versions(artifact, files, problems)
    ]
    ordered = _in_order(items, problems)
    problems.raise_any()
    return Package(manifest, tuple(ordered))


def _read_manifest(files: Mapping[str, bytes]) -> Manifest:
    if MANIFEST not in files:
        raise InvalidContent(
            f"there is no {MANIFEST!r} at the top, so this is no export of a project.",
            remedy=did_you_mean(MANIFEST, files, what="Its files"),
        )
    value = parse_json(files[MANIFEST], MANIFEST)
    written = value.get("format") if isinstance(value, dict) else None
    if written != FORMAT:
        raise InvalidContent(
            f"the export has the format {short(repr(written), 60)}; this Instar reads {FORMAT!r}.",
            remedy="Use the version of Instar that wrote it.",
        )
    try:
        # The value and not the bytes again: that reader's own bound on nesting is below ours.
        return Manifest.model_validate(value)
    except ValidationError as error:
        problems = _Problems()
        for one in error.errors(include_url=False, include_input=False)[:MAX_PROBLEMS]:
            problems.add(".".join(map(str, one["loc"])) or MANIFEST, str(one["msg"]))
        problems.raise_any()
        raise


def _check_files(manifest: Manifest, files: Mapping[str, bytes], problems: _Problems) -> None:
    """Every file is named with its hash, and every named file is there; rollouts may be left."""
    named = {one.path: one for one in manifest.files}
    if len(named) != len(manifest.files):
        problems.add(MANIFEST, "a file is named twice")
    for path in sorted(set(files) - set(named) - {MANIFEST}):
        problems.add(short(path, 120), "the manifest does not name this file")
    for path, facts in named.items():
        if path not in files:
            if not path.startswith(_NOT_NEEDED):
                problems.add(short(path, 120), "the file is missing")
        elif len(files[path]) != facts.size or content_hash(files[path]) != facts.sha256:
            problems.add(short(path, 120), "the bytes are not those that the manifest names")


def _check_artifacts(manifest: Manifest, problems: _Problems) -> None:
    seen: set[tuple[str, str]] = set()
    for artifact in manifest.artifacts:
        where = f"{artifact.kind} {short(artifact.name, 80)!r}"
        if (artifact.kind, artifact.name) in seen:
            problems.add(where, "it is given twice")
        seen.add((artifact.kind, artifact.name))
        with problems.at(where):
            check_name(artifact.kind, artifact.name)
        numbers = [one.number for one in artifact.versions]
        if not numbers or numbers != list(range(1, len(numbers) + 1)):
            problems.add(where, "its versions are not numbered 1, 2, 3 …")
            continue
        _check_labels(artifact, problems, where)
        for facts in artifact.versions:
            parts = [one.part for one in facts.parts]
            if len(set(parts)) != len(parts):
                problems.add(where, f"version {facts.number} pins two parts under one name")


def _check_labels(artifact: ArtifactFacts, problems: _Problems, where: str) -> None:
    """Labels are what labels can be, each once, and name versions that are there."""
    numbers = {one.number for one in artifact.versions}
    live = {one.number for one in artifact.versions if not one.archived and not artifact.archived}
    names = [label.name for label in artifact.labels]
    if len(set(names)) != len(names):
        problems.add(where, "a label is given twice")
    for name in dict.fromkeys([*names, *(move.label for move in artifact.label_history)]):
        with problems.at(where):
            check_label(name)
    for label in artifact.labels:
        if label.number not in live:
            problems.add(where, f"the label {label.name!r} names no version that is in force")
    for move in artifact.label_history:
        with problems.at(f"{where}, label {move.label!r}"):
            check_words(move.cause, _MAX_CAUSE, "the cause")
        ends = (move.from_number, move.to_number)
        if any(one is not None and one not in numbers for one in ends):
            problems.add(where, f"a move of the label {move.label!r} names no version")


def _read_versions(
    artifact: ArtifactFacts, files: Mapping[str, bytes], problems: _Problems
) -> list[VersionItem]:
    found: list[VersionItem] = []
    for facts in artifact.versions:
        where = f"{artifact.kind} {short(artifact.name, 80)!r} version {facts.number}"
        with problems.at(where):
            found.append(_read_version(artifact, facts, files))
    return found


def _read_version(
    artifact: ArtifactFacts, facts: VersionFacts, files: Mapping[str, bytes]
) -> VersionItem:
    """A version with its bytes; they are what the manifest names, and its kind takes them.

    Raises:
        InstarError: If they are not, or it does not.
    """
    inside = f"{facts.folder}/"
    folder = (
        {path.removeprefix(inside): files[path] for path in files if path.startswith(inside)}
        if facts.folder
        else {}
    )
    if facts.blob:
        if facts.blob not in files:
            raise InvalidContent(f"its blob {short(facts.blob, 100)!r} is missing.")
        data, media_type = files[facts.blob], facts.media_type
    else:
        data, media_type = read_open_form(artifact.kind, folder)
    if content_hash(data) != facts.digest or media_type != facts.media_type:
        raise InvalidContent(
            f"its content is {content_hash(data)[:12]}…, not {facts.digest[:12]}… as the manifest "
            "says."
        )
    value = check_stored(artifact.kind, data, media_type)
    item = VersionItem(artifact, facts, data)
    if artifact.kind == "task_set":
        _read_tasks(item, value, files)
    wanted = set(attachments_of(artifact.kind, value).values())
    item.attached = [one for one in folder.values() if content_hash(one) in wanted]
    return item


def _read_tasks(item: VersionItem, value: JsonValue, files: Mapping[str, bytes]) -> None:
    """The rows of a task set's tasks: what its content lists, filled with what the files hold.

    Raises:
        InvalidContent: If a task is missing, or is not the one whose digest is listed.
    """
    facts = item.facts.tasks
    listed = value.get("tasks") if isinstance(value, dict) else None
    if facts is None or not isinstance(value, dict) or not isinstance(listed, list):
        raise InvalidContent("it lists no tasks.")
    _check_bindings(value.get("bindings"))
    visible = _task_file(files, facts.file)
    sealed = _task_file(files, facts.sealed_file) if facts.sealed_file else {}
    seen: set[str] = set()
    for ordinal, entry in enumerate(listed):
        if not isinstance(entry, dict):
            raise InvalidContent(f"entry {ordinal} of its tasks is no object.")
        row = _task_row(ordinal, entry)
        if row["task_id"] in seen:
            raise InvalidContent(f"the task {short(row['task_id'], 80)!r} is listed twice.")
        seen.add(row["task_id"])
        is_sealed = row["split"] == "sealed"
        source = sealed if is_sealed else visible
        content = source.pop(row["task_id"], None)
        if content is not None:
            _check_task(row, content)
        elif not is_sealed or facts.sealed_file:
            raise InvalidContent(f"the task {short(row['task_id'], 80)!r} is missing.")
        if is_sealed and content is not None:
            item.sealed[row["task_id"]] = content
        item.rows.append({**row, "content": None if is_sealed else content})
    if visible or sealed:
        extra = next(iter({**visible, **sealed}))
        raise InvalidContent(f"the task {short(extra, 80)!r} is in a file and not in its list.")
    _check_counts(item, facts)


def _check_bindings(bindings: JsonValue) -> None:
    """Test bindings by tool server: each a name, or the binding itself."""
    each = bindings.values() if isinstance(bindings, dict) else None
    if each is None or not all(isinstance(one, str | dict) for one in each):
        raise InvalidContent("its bindings are no object of names and bindings by tool server.")


def _check_counts(item: VersionItem, facts: TaskFacts) -> None:
    sealed = [
        [row["task_id"], row["content_digest"]] for row in item.rows if row["split"] == "sealed"
    ]
    digest = content_hash(sealed) if sealed else ""
    if (len(item.rows) - len(sealed), len(sealed), digest) != (
        facts.tasks,
        facts.sealed,
        facts.sealed_digest,
    ):
        raise InvalidContent("the manifest counts other tasks than its content lists.")


def _task_row(ordinal: int, entry: Mapping[str, JsonValue]) -> dict[str, Any]:
    try:
        return {
            "task_id": str(entry["id"]),
            "ordinal": ordinal,
            "split": str(entry["split"]),
            "group_key": str(entry["group"]),
            "slice": str(entry["slice"]),
            "content_digest": str(entry["content_digest"]),
        }
    except KeyError as error:
        raise InvalidContent(f"entry {ordinal} of its tasks lacks {error}.") from error


def _check_task(row: Mapping[str, Any], content: JsonValue) -> None:
    where = f"the task {short(row['task_id'], 80)!r}"
    try:
        task = Task.model_validate(content)
    except ValidationError as error:
        raise InvalidContent(f"{where} is no task: {error.errors()[0]['msg']}.") from error
    listed = (row["split"], row["group_key"], row["slice"], row["content_digest"])
    if (task.split, task.group, task.slice, task.content_digest) != listed:
        raise InvalidContent(f"{where} is not the one that its list names.")


def _task_file(files: Mapping[str, bytes], path: str) -> dict[str, JsonValue]:
    if path not in files:
        raise InvalidContent(f"its file {short(path, 100)!r} is missing.")
    found: dict[str, JsonValue] = {}
    for number, line in enumerate(files[path].split(b"\n"), start=1):
        if not line.strip():
            continue
        value = parse_json(line, f"{path} line {number}")
        key = value.get("id") if isinstance(value, dict) else None
        if not isinstance(key, str) or key in found:
            raise InvalidContent(f"{path} line {number}: no id, or one that was used before.")
        found[key] = value
    return found


def _in_order(items: list[VersionItem], problems: _Problems) -> list[VersionItem]:
    """The versions, each after those that it refers to; without recursion, in one fixed order."""
    by_key = {item.key: item for item in items}
    waiting: dict[VersionKey, int] = {}
    needed_by: dict[VersionKey, list[VersionKey]] = {}
    for item in items:
        references = set(item.references())
        missing = sorted(references - set(by_key))
        if missing:
            kind, name, number = missing[0]
            problems.add(
                f"{item.key.kind} {short(item.key.name, 80)!r} version {item.key.number}",
                f"it refers to {kind} {short(name, 80)!r} version {number}, which is not here",
            )
        waiting[item.key] = len(references & set(by_key))
        for reference in references:
            needed_by.setdefault(reference, []).append(item.key)
    ready = [item.key for item in items if not waiting[item.key]]
    ordered: list[VersionItem] = []
    while ready:
        key = ready.pop()
        ordered.append(by_key[key])
        for follower in needed_by.get(key, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    if len(ordered) < len(items):
        stuck = min(key for key, count in waiting.items() if count)
        problems.add(
            f"{stuck.kind} {short(stuck.name, 80)!r} version {stuck.number}",
            "it refers to itself, in a circle",
        )
    return ordered
