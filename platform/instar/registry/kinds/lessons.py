"""Lessons: learned entries with stable ids, rendered into an agent's system prompt in order."""

from __future__ import annotations

from collections.abc import Mapping

from instar.registry.kinds.base import ModelKind
from instar.registry.kinds.jsonl import read_lines, unique_ids, write_lines
from instar_core.base import JsonValue
from instar_core.candidates import Lessons
from instar_core.errors import InvalidContent

__all__ = ["LessonsKind", "render_lessons"]

_FILE = "lessons.jsonl"


class LessonsKind(ModelKind[Lessons]):
    """Lessons as an artifact."""

    name = "lessons"
    title = "learned entries, each: when a condition holds, do this"
    model = Lessons
    budget_tokens = 2_000

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """One lesson, and two."""
        first: dict[str, JsonValue] = {
            "id": "L1",
            "text": "When a refund is asked for, look up the order first.",
        }
        second: dict[str, JsonValue] = {
            "id": "L2",
            "text": "When two queues fit, take the one that was named.",
        }
        return {"entries": [first]}, {"entries": [first, second]}

    def check(self, content: JsonValue) -> JsonValue:
        """Entries with ids that are unique and texts that say something."""
        lessons = self.parse(content)
        unique_ids([entry.id for entry in lessons.entries], "lessons")
        for entry in lessons.entries:
            if not entry.text.strip():
                raise InvalidContent(
                    f"lessons: the lesson {entry.id!r} has no text.", remedy="Write it or drop it."
                )
        dumped: JsonValue = lessons.model_dump(mode="json")
        return dumped

    def summary(self, content: JsonValue) -> str:
        """How many there are."""
        count = len(self.parse(content).entries)
        return "1 lesson" if count == 1 else f"{count} lessons"

    def search_text(self, content: JsonValue) -> str:
        """The texts of the lessons."""
        return "\n".join(entry.text for entry in self.parse(content).entries)

    def trained_text(self, content: JsonValue) -> str:
        """What the system prompt gets."""
        return render_lessons(self.parse(content))

    def files(self, content: JsonValue) -> dict[str, bytes]:
        """``lessons.jsonl``, one lesson a line."""
        assert isinstance(content, dict)
        return write_lines(_FILE, content["entries"])

    def read_files(self, files: Mapping[str, bytes]) -> JsonValue:
        """The lessons in that file."""
        return self.check({"entries": read_lines(files, _FILE)})


def render_lessons(lessons: Lessons) -> str:
    """Lessons as the section of the system prompt that they become; empty for none."""
    if not lessons.entries:
        return ""
    lines = [f"[{entry.id}] {' '.join(entry.text.split())}" for entry in lessons.entries]
    return "\n".join(("Lessons from earlier work:", *lines))
