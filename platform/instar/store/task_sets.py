"""Task sets: tasks in three splits by group key, as versions of an artifact.

The sealed split's content goes into a table that the application can write and not read; a sealed
test gets its own groups through a definer function. The version's blob is a manifest of ids,
splits, groups and digests, so nothing sealed is in it either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast, get_args

from sqlalchemy import Table, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    encode_content,
    read_content,
    read_version,
    resolve,
)
from instar.store.audit import Author
from instar.store.contents import check_value
from instar.store.tables import SealedTaskRow, TaskRow, VersionRow
from instar_core.base import JsonValue, short
from instar_core.errors import PermissionDenied
from instar_core.tasks import Split, Splits, Task, check_tasks

__all__ = [
    "TASK_SET",
    "SplitCount",
    "TaskSetVersion",
    "copy_task_set",
    "count_sealed_missing",
    "count_tasks",
    "create_task_set",
    "create_task_set_as",
    "list_groups",
    "read_bindings",
    "read_open",
    "read_splits",
    "read_task_set",
    "read_tasks",
]

TASK_SET = "task_set"
_COPY_TASKS = text("select instar.copy_tasks(cast(:source as uuid), cast(:target as uuid))")
_OPEN: tuple[Split, ...] = ("train", "validation")
_MAX_MANIFEST_BYTES = 64 * 2**20


class TaskSetVersion(NamedTuple):
    """One version of a task set."""

    id: str
    name: str
    version: int


class SplitCount(NamedTuple):
    """How many tasks and groups a split has."""

    tasks: int
    groups: int


async def create_task_set(
    session: AsyncSession,
    project_id: str,
    name: str,
    tasks: Sequence[Task],
    *,
    author: Author,
    reason: str = "",
    bindings: dict[str, JsonValue] | None = None,
) -> TaskSetVersion:
    """Saves tasks as a new version of a task set: all of them, or none.

    Args:
        session: A project transaction.
        project_id: The project.
        name: The task set's name.
        tasks: All tasks, of all splits.
        author: Who saves it.
        reason: Why, in words.
        bindings: Tool server → test binding (its name, or the binding as JSON) for rollouts.

    Raises:
        UserError: If there are none, two share an id, or a group is in two splits.
    """
    ref = ArtifactRef(project_id, TASK_SET, name)
    draft = Draft(b"", "", author, reason)
    return await create_task_set_as(session, ref, tasks, draft, bindings=bindings)


async def create_task_set_as(
    session: AsyncSession,
    ref: ArtifactRef,
    tasks: Sequence[Task],
    draft: Draft,
    *,
    bindings: dict[str, JsonValue] | None = None,
) -> TaskSetVersion:
    """Saves tasks as :func:`create_task_set` does, with all that can go with a version.

    Args:
        session: A project transaction.
        ref: The task set.
        tasks: All tasks, of all splits.
        draft: What goes with the version; its content is put in here.
        bindings: Tool server → test binding for rollouts.
    """
    check_tasks(tasks)
    content, media_type = encode_content(_manifest(tasks, bindings or {}))
    for task in tasks:
        check_value(task.model_dump(mode="json"), f"the task {short(task.id, 80)!r}")
    words = "\n".join(task.input for task in tasks if task.split != "sealed")
    filled = replace(
        draft,
        content=content,
        media_type=media_type,
        search_text=words,
        # A line for each task of a large set; the request's own limit bounds it.
        max_bytes=draft.max_bytes or _MAX_MANIFEST_BYTES,
    )
    row = await create_version(session, ref, filled)
    project_id = ref.project_id
    opened: list[dict[str, Any]] = []
    sealed: list[dict[str, Any]] = []
    for ordinal, task in enumerate(tasks):
        dumped = task.model_dump(mode="json")
        is_sealed = task.split == "sealed"
        key = {"version_id": row.id, "task_id": task.id, "project_id": project_id}
        opened.append(
            {
                **key,
                "ordinal": ordinal,
                "split": task.split,
                "group_key": task.group,
                "slice": task.slice,
                "content_digest": task.content_digest,
                "content": None if is_sealed else dumped,
            }
        )
        if is_sealed:
            sealed.append({**key, "content": dumped})
    # Plain tables, not mapped classes: an insert that asks for nothing back needs no right to read.
    await session.execute(insert(cast("Table", TaskRow.__table__)), opened)
    if sealed:
        await session.execute(insert(cast("Table", SealedTaskRow.__table__)), sealed)
    return TaskSetVersion(row.id, ref.name, row.number)


def _manifest(tasks: Sequence[Task], bindings: dict[str, JsonValue]) -> JsonValue:
    """What a version's blob holds: ids, splits, groups and digests, so nothing sealed is in it."""
    return {
        "format": 1,
        "tasks": [
            {
                "id": task.id,
                "split": task.split,
                "group": task.group,
                "slice": task.slice,
                "content_digest": task.content_digest,
            }
            for task in tasks
        ],
        "bindings": dict(bindings),
    }


async def copy_task_set(
    session: AsyncSession, source: VersionRow, to: ArtifactRef, draft: Draft
) -> VersionRow:
    """Saves a task-set version as a version of another task set, sealed tasks too.

    The database copies what is sealed: the application cannot read it.
    """
    manifest = await read_content(session, source)
    content, media_type = encode_content(manifest)
    filled = replace(
        draft,
        content=content,
        media_type=media_type,
        parents=[source.id],
        # Found by what can be seen of it: the manifest has the ids of sealed tasks.
        search_text="\n".join(task.input for task in await read_open(session, source.id)),
        max_bytes=draft.max_bytes or _MAX_MANIFEST_BYTES,
    )
    row = await create_version(session, to, filled)
    await session.execute(_COPY_TASKS, {"source": source.id, "target": row.id})
    return row


async def read_task_set(
    session: AsyncSession, project_id: str, name: str, ref: str | int = "latest"
) -> TaskSetVersion:
    """The version that a reference (number, label or ``latest``) means now.

    Raises:
        NotFoundError: If there is no such task set, version or label.
    """
    found = (await resolve(session, ArtifactRef(project_id, TASK_SET, name), ref)).version
    return TaskSetVersion(found.id, name, found.number)


async def read_bindings(session: AsyncSession, version_id: str) -> dict[str, JsonValue]:
    """Under which test binding each tool server runs in rollouts on this version's tasks."""
    manifest = await read_content(session, await read_version(session, version_id))
    found = manifest.get("bindings") if isinstance(manifest, dict) else None
    return dict(found) if isinstance(found, dict) else {}


async def count_tasks(session: AsyncSession, version_id: str) -> dict[Split, SplitCount]:
    """Tasks and groups of each split, sealed too."""
    rows = await session.execute(
        select(TaskRow.split, func.count(), func.count(TaskRow.group_key.distinct()))
        .where(TaskRow.version_id == version_id)
        .group_by(TaskRow.split)
    )
    counts: dict[Split, SplitCount] = {split: SplitCount(0, 0) for split in get_args(Split)}
    for split, tasks, groups in rows:
        counts[cast("Split", split)] = SplitCount(int(tasks), int(groups))
    return counts


async def count_sealed_missing(session: AsyncSession, version_id: str) -> int:
    """How many sealed tasks have no content here: those of an import that came without it."""
    found = await session.scalar(
        text("select instar.count_sealed_missing(cast(:version as uuid))"), {"version": version_id}
    )
    return int(found or 0)


async def list_groups(session: AsyncSession, version_id: str, split: Split) -> dict[str, int]:
    """Group key → number of its tasks, in the order of keys; for the sealed split too."""
    rows = await session.execute(
        select(TaskRow.group_key, func.count())
        .where(TaskRow.version_id == version_id, TaskRow.split == split)
        .group_by(TaskRow.group_key)
        .order_by(TaskRow.group_key)
    )
    return {key: int(count) for key, count in rows}


async def read_tasks(session: AsyncSession, version_id: str, split: Split) -> list[Task]:
    """The tasks of the train or validation split, in their order.

    Raises:
        PermissionDenied: For the sealed split: only a sealed test reads it, its own groups alone.
    """
    if split not in _OPEN:
        raise PermissionDenied(
            f"the {split} split cannot be read.",
            remedy="Only sealed tests are given its tasks; count_tasks tells how many there are.",
        )
    rows = await session.scalars(
        select(TaskRow.content)
        .where(TaskRow.version_id == version_id, TaskRow.split == split)
        .order_by(TaskRow.ordinal)
    )
    return [Task.model_validate(content) for content in rows]


async def read_open(session: AsyncSession, version_id: str) -> list[Task]:
    """The tasks of a task-set version that are not sealed, in their order."""
    rows = await session.scalars(
        select(TaskRow.content)
        .where(TaskRow.version_id == version_id, TaskRow.split.in_(_OPEN))
        .order_by(TaskRow.ordinal)
    )
    return [Task.model_validate(content) for content in rows]


async def read_splits(session: AsyncSession, version_id: str) -> Splits:
    """What an evolver may see of a task-set version: train and validation."""
    return Splits(
        train=tuple(await read_tasks(session, version_id, "train")),
        validation=tuple(await read_tasks(session, version_id, "validation")),
    )
