"""Memory bank: entries with stable ids, each with where it came from and what took its place."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pydantic import Field, field_validator, model_validator

from instar.registry.kinds.base import ModelKind, parse_json_file, pretty_json
from instar.registry.kinds.jsonl import parse_lines, unique_ids, write_lines
from instar_core.base import Frozen, JsonValue
from instar_core.errors import InvalidContent
from instar_core.kinds import KindLimits, did_you_mean

__all__ = ["MemoryBank", "MemoryBankContent", "MemoryEntry", "Provenance"]

_ENTRIES, _BANK = "entries.jsonl", "bank.json"


def _is_moment(value: str) -> str:
    if value and datetime.fromisoformat(value).tzinfo is None:
        raise ValueError(f"{value!r} is a time without a zone; write 2026-01-31T12:00:00Z")
    return value


class Provenance(Frozen):
    """Where an entry came from: rollouts or conversations, the run that wrote it, a person."""

    rollouts: tuple[str, ...] = ()
    run: str = ""
    person: str = ""
    note: str = ""


class MemoryEntry(Frozen):
    """One remembered thing. Nothing is overwritten: an entry is closed, and names its successor."""

    id: str
    text: str = Field(min_length=1)
    tags: tuple[str, ...] = ()
    source: Provenance = Provenance()
    created_at: str = ""
    closed_at: str = Field(default="", description="since when it no longer holds")
    superseded_by: str = Field(default="", description="id of the entry that took its place")
    count: int = Field(default=1, ge=1, description="how often it was observed")

    _moments = field_validator("created_at", "closed_at")(_is_moment)

    @model_validator(mode="after")
    def _closed_when_superseded(self) -> MemoryEntry:
        if self.superseded_by and not self.closed_at:
            raise ValueError(f"the entry {self.id!r} is superseded but has no closed_at")
        return self


class MemoryBankContent(Frozen):
    """Entries in order, and how many are recalled into a context."""

    entries: tuple[MemoryEntry, ...] = ()
    recall: int = Field(default=8, ge=0, le=1_000)


class MemoryBank(ModelKind[MemoryBankContent]):
    """A memory bank as an artifact."""

    name = "memory_bank"
    title = "what an agent remembers, entry by entry, with where it came from"
    model = MemoryBankContent
    limits = KindLimits(max_bytes=5_000_000)
    budget_tokens = 2_000

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two memory banks."""
        first: dict[str, JsonValue] = {
            "id": "M1",
            "text": "The customer writes in French.",
            "source": {"run": "night-1"},
        }
        closed: dict[str, JsonValue] = {
            **first,
            "closed_at": "2026-05-01T09:00:00Z",
            "superseded_by": "M2",
        }
        second: dict[str, JsonValue] = {
            "id": "M2",
            "text": "The customer writes in English.",
            "tags": ["language"],
        }
        return {"entries": [first]}, {"entries": [closed, second], "recall": 4}

    def check(self, content: JsonValue) -> JsonValue:
        """Entries with unique ids; whoever is superseded names an entry that is there."""
        bank = self.parse(content)
        ids = [entry.id for entry in bank.entries]
        unique_ids(ids, "memory bank")
        for entry in bank.entries:
            if entry.superseded_by and (
                entry.superseded_by not in ids or entry.superseded_by == entry.id
            ):
                raise InvalidContent(
                    f"memory bank: {entry.id!r} is superseded by {entry.superseded_by!r}, which is "
                    "no other entry of this bank.",
                    remedy=did_you_mean(entry.superseded_by, ids, what="Its entries"),
                )
        dumped: JsonValue = bank.model_dump(mode="json")
        return dumped

    def summary(self, content: JsonValue) -> str:
        """How many entries hold."""
        entries = self.parse(content).entries
        held = sum(not entry.closed_at for entry in entries)
        return f"entries that hold: {held}" + (
            f", {len(entries) - held} closed" if held < len(entries) else ""
        )

    def search_text(self, content: JsonValue) -> str:
        """The texts and tags of entries that hold."""
        return "\n".join(
            f"{entry.text} {' '.join(entry.tags)}"
            for entry in self.parse(content).entries
            if not entry.closed_at
        )

    def trained_text(self, content: JsonValue) -> str:
        """What a context gets at most: the longest entries that are recalled."""
        bank = self.parse(content)
        texts = sorted((one.text for one in bank.entries if not one.closed_at), key=len)
        return "\n".join(texts[len(texts) - min(bank.recall, len(texts)) :])

    def files(self, content: JsonValue) -> dict[str, bytes]:
        """``entries.jsonl``, one entry a line, and ``bank.json``: the settings."""
        assert isinstance(content, dict)
        settings = {key: value for key, value in content.items() if key != "entries"}
        return {**write_lines(_ENTRIES, content["entries"]), _BANK: pretty_json(settings)}

    def read_files(self, files: Mapping[str, bytes]) -> JsonValue:
        """The bank in those files; the settings may be left out."""
        if _ENTRIES not in files or set(files) - {_ENTRIES, _BANK}:
            raise InvalidContent(
                f"a memory bank is the files {_ENTRIES!r} and {_BANK!r}, not "
                f"{', '.join(sorted(files)) or 'none'}."
            )
        settings = parse_json_file(_BANK, files[_BANK]) if _BANK in files else {}
        if not isinstance(settings, dict):
            raise InvalidContent(f"{_BANK!r} must hold an object.")
        return self.check({**settings, "entries": parse_lines(_ENTRIES, files[_ENTRIES])})
