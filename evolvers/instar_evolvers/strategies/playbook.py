"""Playbook: lessons with stable ids, and the bounded operations that change them.

An id is made once, from the text that was first added, and never renumbered or given to another
lesson of the same playbook; so a lesson's history can be followed through versions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from pydantic import ValidationError

from instar_core.base import Frozen, JsonValue, content_hash
from instar_core.candidates import Lesson, Lessons
from instar_evolvers.strategies.tokens import estimate_tokens

__all__ = [
    "Operation",
    "OperationName",
    "apply_operation",
    "check_operations",
    "lesson_tokens",
    "parse_operations",
    "render_lessons",
]

OperationName = Literal["ADD", "UPDATE", "DELETE", "MERGE", "NONE"]


class Operation(Frozen):
    """One bounded edit: ADD text, UPDATE id to text, DELETE id, MERGE ids into text, or NONE."""

    op: OperationName
    ids: tuple[str, ...] = ()
    text: str = ""


def render_lessons(lessons: Lessons) -> str:
    """Lessons as a proposer sees them, one ``[id] text`` line each."""
    return "\n".join(f"[{entry.id}] {entry.text}" for entry in lessons.entries) or "(none yet)"


def lesson_tokens(lessons: Lessons) -> int:
    """About how many tokens the lessons take in a prompt."""
    return sum(estimate_tokens(entry.text) for entry in lessons.entries)


def parse_operations(items: Sequence[JsonValue]) -> tuple[Operation, ...]:
    """Operations read from a reply's JSON array.

    An object has ``op``, then ``id`` (UPDATE, DELETE) or ``ids`` (MERGE), and ``text`` (ADD,
    UPDATE, MERGE). Operations NONE are dropped.

    Raises:
        ValueError: If an item is not such an object; names the item.
    """
    operations = []
    for number, item in enumerate(items, start=1):
        if not isinstance(item, dict):
            raise ValueError(f"operation {number} is {item!r}, which is not an object")
        ids = item.get("ids") or ([item["id"]] if item.get("id") else [])
        fields = {
            "op": str(item.get("op", "")).upper(),
            "ids": ids,
            "text": " ".join(str(item.get("text") or "").split()),
        }
        try:
            operation = Operation.model_validate(fields)
        except ValidationError as error:
            raise ValueError(
                f"operation {number} has op {item.get('op')!r} and ids {ids!r}; op must be ADD, "
                "UPDATE, DELETE, MERGE or NONE and ids a list of texts"
            ) from error
        if operation.op != "NONE":
            operations.append(operation)
    return tuple(operations)


def check_operations(operations: Sequence[Operation], lessons: Lessons) -> None:
    """Checks that the operations fit the playbook, each applied after the one before it.

    Raises:
        ValueError: If an id is unknown or a text is missing; says what would be allowed, so that
            the model can correct itself.
    """
    for operation in operations:
        lessons = apply_operation(lessons, operation)


def apply_operation(lessons: Lessons, operation: Operation) -> Lessons:
    """The playbook after one operation; other lessons keep id, text and place.

    Raises:
        ValueError: If the operation does not fit this playbook.
    """
    known = {entry.id: entry for entry in lessons.entries}
    unknown = [name for name in operation.ids if name not in known]
    if unknown:
        raise ValueError(
            f"{operation.op} names the unknown id {unknown[0]!r}; known ids: "
            f"{', '.join(known) or 'none, so only ADD is possible'}"
        )
    if operation.op in ("ADD", "UPDATE", "MERGE") and not operation.text:
        raise ValueError(f"{operation.op} needs a text")
    match operation.op:
        case "ADD":
            entry = Lesson(id=_new_id(operation.text, known), text=operation.text)
            return Lessons(entries=(*lessons.entries, entry))
        case "UPDATE" | "DELETE":
            if len(operation.ids) != 1:
                raise ValueError(f"{operation.op} needs exactly one id, not {operation.ids!r}")
            return _replace(lessons, operation)
        case "MERGE":
            if len(set(operation.ids)) < 2:
                raise ValueError(f"MERGE needs at least two ids, not {operation.ids!r}")
            return _replace(lessons, operation)
        case "NONE":
            return lessons


def _replace(lessons: Lessons, operation: Operation) -> Lessons:
    """The first id's lesson gets the new text (or goes, on DELETE); the other ids' lessons go."""
    keeper = "" if operation.op == "DELETE" else operation.ids[0]
    entries = []
    for entry in lessons.entries:
        if entry.id == keeper:
            entries.append(Lesson(id=entry.id, text=operation.text))
        elif entry.id not in operation.ids:
            entries.append(entry)
    return Lessons(entries=tuple(entries))


def _new_id(text: str, taken: Collection[str]) -> str:
    digest = content_hash(text.encode("utf-8"))
    for length in range(6, len(digest) + 1):
        if (name := f"l-{digest[:length]}") not in taken:
            return name
    return f"l-{digest}-{len(taken)}"
