"""Task sets: JSONL files of tasks in three splits, read strictly or not at all.

The first line may be a header, ``{"task_set": {"name": …, "bindings": {…}}}``; every other line is
a task. Any problem anywhere means that nothing is imported; up to twenty are named with their
lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from instar.rollouts.verifiers.registry import find_verifier
from instar.runtime.tools.config import TestBinding
from instar_core.base import Frozen, short
from instar_core.errors import TaskFileError, VerifierError
from instar_core.tasks import Split, Splits, Task

__all__ = ["SplitShares", "TaskSet", "load_task_set", "parse_task_set", "split_of_group"]

MAX_PROBLEMS = 20
MAX_LINE_BYTES = 2_000_000


class SplitShares(Frozen):
    """Shares of the splits where a file leaves the split to us; they are levelled to sum to 1."""

    train: float = Field(default=0.4, ge=0)
    validation: float = Field(default=0.2, ge=0)
    sealed: float = Field(default=0.4, ge=0)


class _Header(Frozen):
    name: str = ""
    description: str = ""
    bindings: dict[str, str | TestBinding] = Field(default_factory=dict)
    shares: SplitShares = SplitShares()


class TaskSet(Frozen):
    """Tasks in their splits, and under which bindings rollouts use tool servers."""

    name: str
    description: str = ""
    bindings: dict[str, str | TestBinding] = Field(
        default_factory=dict, description="server name → name of a test binding, or the binding"
    )
    tasks: tuple[Task, ...]

    def of(self, split: Split) -> tuple[Task, ...]:
        """The tasks of one split, in the file's order."""
        return tuple(task for task in self.tasks if task.split == split)

    @cached_property
    def visible(self) -> Splits:
        """What an evolver may see: everything but the sealed split."""
        return Splits(train=self.of("train"), validation=self.of("validation"))

    @cached_property
    def sealed_groups(self) -> tuple[tuple[Task, ...], ...]:
        """The sealed tasks by group key, in order of first appearance."""
        groups: dict[str, list[Task]] = {}
        for task in self.of("sealed"):
            groups.setdefault(task.group, []).append(task)
        return tuple(map(tuple, groups.values()))


def split_of_group(group: str, shares: SplitShares) -> Split:
    """The split of a group key: a fixed function of the key, so that more tasks change nothing."""
    total = shares.train + shares.validation + shares.sealed
    place = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "big") / 2**64 * total
    if place < shares.train:
        return "train"
    return "validation" if place < shares.train + shares.validation else "sealed"


def load_task_set(path: Path | str) -> TaskSet:
    """The task set in a JSONL file.

    Raises:
        TaskFileError: If the file cannot be read, or anything in it is wrong.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskFileError(
            f"The tasks file {str(path)!r} cannot be read: {error.strerror or error}.",
            remedy="Check the path and its permissions.",
        ) from error
    return parse_task_set(data, name=path.stem, source=str(path), root=path.resolve().parent)


def parse_task_set(
    data: bytes, *, name: str = "tasks", source: str = "tasks", root: Path | None = None
) -> TaskSet:
    """The task set in the bytes of a JSONL file.

    Args:
        data: UTF-8 text, one JSON object a line; blank lines are skipped.
        name: Name of the set where the header has none.
        source: What the data is called in messages.
        root: Folder against which relative paths of inline bindings are resolved.

    Raises:
        TaskFileError: Naming up to twenty problems with line and cause; nothing is imported.
    """
    reader = _Reader(root)
    for number, line in enumerate(data.splitlines(), start=1):
        reader.take(number, line)
    reader.finish()
    problems = reader.problems
    if not problems and not reader.tasks:
        problems = [(1, "there is no task in it")]
    if problems:
        problems = sorted(problems)
        shown = "\n".join(f"  line {line}: {words}" for line, words in problems[:MAX_PROBLEMS])
        left = len(problems) - MAX_PROBLEMS
        more = f"\n  … and {left} more" if left > 0 else ""
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise TaskFileError(
            f"{source}: {count}; nothing was imported.\n{shown}{more}\n",
            remedy="Correct the file and import it again.",
        )
    header = reader.header
    return TaskSet(
        name=header.name or name,
        description=header.description,
        bindings={server: reader.rooted(one) for server, one in header.bindings.items()},
        tasks=tuple(task for _, task in reader.tasks),
    )


class _Reader:
    """Reads lines into tasks and collects what is wrong with them."""

    def __init__(self, root: Path | None) -> None:
        self.header = _Header()
        self.problems: list[tuple[int, str]] = []
        self.tasks: list[tuple[int, Task]] = []
        self._root = root
        self._raw: list[tuple[int, dict[str, Any]]] = []
        self._first = True

    def rooted(self, binding: str | TestBinding) -> str | TestBinding:
        """An inline binding with its paths counted from the file's folder."""
        if isinstance(binding, str) or self._root is None:
            return binding
        return binding.model_copy(update={"root": str(self._root / binding.root)})

    def take(self, number: int, line: bytes) -> None:
        """Reads one line."""
        if not line.strip():
            return
        first, self._first = self._first, False
        try:
            value = _strict_json(line)
            if first and isinstance(value, dict) and set(value) == {"task_set"}:
                self.header = _Header.model_validate(value["task_set"])
            elif isinstance(value, dict):
                self._raw.append((number, value))
            else:
                self.problems.append((number, f"{short(repr(value), 60)} is not a JSON object"))
        except ValidationError as error:
            self.problems.extend((number, f"task_set: {words}") for words in _words(error, _Header))
        except ValueError as error:
            self.problems.append((number, str(error)))

    def finish(self) -> None:
        """Turns the raw lines into tasks, once all groups and the header are known."""
        splits = {
            _group_of(raw): raw["split"]
            for _, raw in self._raw
            if raw.get("split") in ("train", "validation", "sealed")
        }
        for number, raw in self._raw:
            group = _group_of(raw)
            raw.setdefault("group", group)
            raw.setdefault("split", splits.get(group) or split_of_group(group, self.header.shares))
            if isinstance(raw.get("verifier"), str):
                raw["verifier"] = {"name": raw["verifier"]}
            try:
                task = Task.model_validate(raw)
            except ValidationError as error:
                self.problems.extend((number, words) for words in _words(error, Task))
                continue
            self.tasks.append((number, task))
            self._check_verifier(number, task)
        self._check_groups()
        self._check_repeats()

    def _check_verifier(self, number: int, task: Task) -> None:
        try:
            verifier = find_verifier(task.verifier.name)
            verifier.check(task)
        except VerifierError as error:
            self.problems.append((number, error.message))
            return
        if verifier.needs_state and not self.header.bindings:
            self.problems.append(
                (
                    number,
                    f"verifier {task.verifier.name!r} reads the environment's state, but the "
                    "file's header names no 'bindings'",
                )
            )

    def _check_groups(self) -> None:
        home: dict[str, tuple[int, Split]] = {}
        for number, task in self.tasks:
            line, split = home.setdefault(task.group, (number, task.split))
            if split != task.split:
                self.problems.append(
                    (
                        number,
                        f"group {task.group!r} is in split {task.split!r} here and in {split!r} "
                        f"on line {line}; a group must stay in one split",
                    )
                )

    def _check_repeats(self) -> None:
        ids: dict[str, int] = {}
        inputs: dict[str, tuple[int, Split]] = {}
        for number, task in self.tasks:
            line = ids.setdefault(task.id, number)
            if line != number:
                self.problems.append((number, f"id {task.id!r} was used on line {line} already"))
            level = " ".join(task.input.split()).casefold()
            line, split = inputs.setdefault(level, (number, task.split))
            if split != task.split:
                self.problems.append(
                    (
                        number,
                        f"the input of line {line} (split {split!r}) is repeated in split "
                        f"{task.split!r}; what is tested must not have been seen",
                    )
                )


def _group_of(raw: dict[str, Any]) -> str:
    """The group key; a task without one is a group of its own."""
    group = raw.get("group", raw.get("id"))
    return group if isinstance(group, str) else ""


def _strict_json(line: bytes) -> Any:
    """The JSON value of a line; doubled keys and numbers JSON does not have are refused."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the line is longer than {MAX_LINE_BYTES} bytes")
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}"
        ) from error

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"the key {key!r} is given twice")
            found[key] = value
        return found

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not JSON")

    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON at column {error.colno}: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    _refuse_unstorable(text, value)
    return value


def _refuse_unstorable(text: str, value: Any) -> None:
    """Refuses what JSON may spell with escapes but no text can hold: half characters and NUL."""
    if "\\u" not in text:
        return
    plain = json.dumps(value, ensure_ascii=False)
    try:
        plain.encode()
    except UnicodeEncodeError as error:
        half = plain[error.start]
        raise ValueError(
            f"\\u{ord(half):04x} is half of a character (a surrogate without its partner)"
        ) from error
    if "\\u0000" in plain.replace("\\\\", ""):
        raise ValueError("\\u0000 is a NUL character, which cannot be stored")


def _words(error: ValidationError, kind: type[Frozen]) -> Iterable[str]:
    """Each problem of a validation as one phrase, with the allowed keys where one is unknown."""
    for part in error.errors()[:5]:
        where = ".".join(map(str, part["loc"]))
        words = part["msg"]
        if part["type"] == "extra_forbidden" and len(part["loc"]) == 1:
            words = f"unknown key (known: {', '.join(kind.model_fields)})"
        given = "" if part["type"] in ("missing", "extra_forbidden") else f", not {part['input']!r}"
        yield f"{where}: {words}{short(given, 80)}"
