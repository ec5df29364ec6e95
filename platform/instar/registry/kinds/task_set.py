"""Task set: tasks in three splits by group. What is sealed goes in and never comes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pydantic import Field

from instar.registry.kinds.base import ModelKind, parse_json_file, pretty_json
from instar.registry.kinds.jsonl import parse_lines, write_lines
from instar_core.base import Frozen, JsonValue
from instar_core.errors import InvalidContent
from instar_core.kinds import KindLimits
from instar_core.tasks import Task, check_tasks

__all__ = ["TaskSet", "TaskSetContent"]

_TASKS, _BINDINGS = "tasks.jsonl", "bindings.json"


class TaskSetContent(Frozen):
    """Tasks of all splits, and under which test binding each tool server runs."""

    tasks: tuple[Task, ...] = Field(min_length=1)
    bindings: dict[str, JsonValue] = Field(default_factory=dict)


class TaskSet(ModelKind[TaskSetContent]):
    """A task set as an artifact."""

    name = "task_set"
    title = "tasks in three splits, one of them sealed"
    model = TaskSetContent
    limits = KindLimits(max_bytes=64 * 1024 * 1024, max_depth=80)

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two task sets."""

        def task(number: int, split: str) -> JsonValue:
            return {
                "id": f"T{number}",
                "input": f"Which queue takes case {number}?",
                "split": split,
                "group": f"G{number}",
                "verifier": {"name": "exact", "config": {"answer": "billing"}},
            }

        first = [task(1, "train"), task(2, "validation"), task(3, "sealed")]
        return {"tasks": first}, {"tasks": [*first, task(4, "train")], "bindings": {"desk": "copy"}}

    def check(self, content: JsonValue) -> JsonValue:
        """Tasks with ids of their own, each group in one split."""
        found = self.parse(content)
        check_tasks(found.tasks)
        dumped: JsonValue = found.model_dump(mode="json")
        return dumped

    def shown(self, content: JsonValue) -> JsonValue:
        """The content without its sealed tasks: not even their ids come out."""
        assert isinstance(content, dict)
        tasks = content["tasks"]
        assert isinstance(tasks, list)
        open_ones = [
            one for one in tasks if not (isinstance(one, dict) and one.get("split") == "sealed")
        ]
        return {**content, "tasks": open_ones}

    def summary(self, content: JsonValue) -> str:
        """How many tasks each split has."""
        counts = Counter(task.split for task in self.parse(content).tasks)
        return ", ".join(f"{count} {split}" for split, count in sorted(counts.items()))

    def search_text(self, content: JsonValue) -> str:
        """Inputs of the tasks that are not sealed, so that a search cannot guess what is."""
        tasks = self.parse(content).tasks
        return "\n".join(task.input for task in tasks if task.split != "sealed")

    def files(self, content: JsonValue) -> dict[str, bytes]:
        """``tasks.jsonl``, one task a line, and ``bindings.json``, where there are bindings."""
        assert isinstance(content, dict)
        found = write_lines(_TASKS, content["tasks"])
        if content["bindings"]:
            found[_BINDINGS] = pretty_json(content["bindings"])
        return found

    def read_files(self, files: Mapping[str, bytes]) -> JsonValue:
        """The task set in those files."""
        if _TASKS not in files or set(files) - {_TASKS, _BINDINGS}:
            raise InvalidContent(
                f"a task set is the files {_TASKS!r} and {_BINDINGS!r}, not "
                f"{', '.join(sorted(files)) or 'none'}."
            )
        bindings = parse_json_file(_BINDINGS, files[_BINDINGS]) if _BINDINGS in files else {}
        return self.check({"tasks": parse_lines(_TASKS, files[_TASKS]), "bindings": bindings})
