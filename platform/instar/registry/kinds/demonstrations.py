"""Demonstrations: solved cases shown to an agent as chat turns, and which are shown."""

from __future__ import annotations

from collections.abc import Mapping

from instar.registry.kinds.base import ModelKind, parse_json_file, pretty_json
from instar.registry.kinds.jsonl import parse_lines, unique_ids, write_lines
from instar_core.base import JsonValue, canonical_json
from instar_core.candidates import Demonstration, Demonstrations
from instar_core.errors import InvalidContent
from instar_core.kinds import did_you_mean

__all__ = ["DemonstrationsKind"]

_POOL, _CHOICE = "pool.jsonl", "choice.json"


class DemonstrationsKind(ModelKind[Demonstrations]):
    """Demonstrations as an artifact."""

    name = "demonstrations"
    title = "solved cases that are shown before the task"
    model = Demonstrations
    budget_tokens = 6_000

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """One case as it is, and two by similarity."""
        case: dict[str, JsonValue] = {
            "id": "D1",
            "input": "My card was charged twice.",
            "answer": "billing",
        }
        other: dict[str, JsonValue] = {
            "id": "D2",
            "input": "Close ticket 7.",
            "actions": [{"name": "close", "arguments": {"ticket": 7}}],
            "source": "reference:close-7",
        }
        return (
            {"pool": [case], "order": ["D1"]},
            {"pool": [case, other], "retrieval": "nearest", "k": 1},
        )

    def check(self, content: JsonValue) -> JsonValue:
        """A pool with unique ids; what is ordered is in it; each case has an action or answer."""
        found = self.parse(content)
        ids = [shown.id for shown in found.pool]
        unique_ids(ids, "demonstrations")
        for one in found.order:
            if one not in ids:
                raise InvalidContent(
                    f"demonstrations: {one!r} is ordered but not in the pool.",
                    remedy=did_you_mean(one, ids, what="In the pool"),
                )
        for shown in found.pool:
            if not shown.actions and shown.answer is None:
                raise InvalidContent(
                    f"demonstrations: {shown.id!r} shows neither an action nor an answer.",
                    remedy="Give it one, or take it out of the pool.",
                )
        dumped: JsonValue = found.model_dump(mode="json")
        return dumped

    def summary(self, content: JsonValue) -> str:
        """How many there are, and how many are shown."""
        found = self.parse(content)
        shown = len(found.order) if found.retrieval == "fixed" else min(found.k, len(found.pool))
        return f"solved cases: {len(found.pool)}, shown: {shown} ({found.retrieval})"

    def search_text(self, content: JsonValue) -> str:
        """Inputs and answers of the cases."""
        return "\n".join(f"{one.input}\n{one.answer or ''}" for one in self.parse(content).pool)

    def trained_text(self, content: JsonValue) -> str:
        """What is shown at most: the ordered cases, or the longest ``k``."""
        found = self.parse(content)
        if found.retrieval == "fixed":
            by_id = {shown.id: shown for shown in found.pool}
            return "\n".join(_turns(by_id[one]) for one in found.order)
        longest = sorted((_turns(shown) for shown in found.pool), key=len, reverse=True)
        return "\n".join(longest[: found.k])

    def files(self, content: JsonValue) -> dict[str, bytes]:
        """``pool.jsonl``, one case a line, and ``choice.json``: how they are chosen."""
        assert isinstance(content, dict)
        choice = {key: value for key, value in content.items() if key != "pool"}
        return {**write_lines(_POOL, content["pool"]), _CHOICE: pretty_json(choice)}

    def read_files(self, files: Mapping[str, bytes]) -> JsonValue:
        """The demonstrations in those files."""
        if set(files) != {_POOL, _CHOICE}:
            raise InvalidContent(
                f"demonstrations are the files {_POOL!r} and {_CHOICE!r}, not "
                f"{', '.join(sorted(files)) or 'none'}."
            )
        choice = parse_json_file(_CHOICE, files[_CHOICE])
        if not isinstance(choice, dict):
            raise InvalidContent(f"{_CHOICE!r} must hold an object.")
        return self.check({**choice, "pool": parse_lines(_POOL, files[_POOL])})


def _turns(shown: Demonstration) -> str:
    actions = canonical_json([one.model_dump(mode="json") for one in shown.actions]).decode()
    return f"{shown.input}\n{actions}\n{shown.answer or ''}"
