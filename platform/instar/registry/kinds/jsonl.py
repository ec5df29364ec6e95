"""JSON lines: entries of a content as a file with one object a line, and their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from instar.registry.kinds.base import only_file, parse_json_file
from instar_core.base import JsonValue, canonical_json, short
from instar_core.errors import InvalidContent

__all__ = ["parse_lines", "read_lines", "unique_ids", "write_lines"]


def write_lines(path: str, entries: JsonValue) -> dict[str, bytes]:
    """A file with one canonical line per entry; empty for none."""
    assert isinstance(entries, list)
    return {path: b"".join(canonical_json(entry) + b"\n" for entry in entries)}


def read_lines(files: Mapping[str, bytes], path: str) -> list[JsonValue]:
    """The entries in the one file that is there.

    Raises:
        InvalidContent: If another file is there, or a line is no JSON; names the line.
    """
    return parse_lines(only_file(files, path), files[path])


def parse_lines(path: str, data: bytes) -> list[JsonValue]:
    """The entries in the lines of a file; empty lines are passed over.

    Raises:
        InvalidContent: If a line is no JSON; names it.
    """
    return [
        parse_json_file(f"{path} line {number}", line)
        for number, line in enumerate(data.split(b"\n"), start=1)
        if line.strip()
    ]


def unique_ids(ids: Iterable[str], what: str) -> None:
    """Refuses ids that are empty or used twice.

    Raises:
        InvalidContent: Names the first one.
    """
    for one, count in Counter(ids).items():
        if not one.strip():
            raise InvalidContent(f"{what}: an entry has an empty id.", remedy="Give it one.")
        if count > 1:
            raise InvalidContent(
                f"{what}: {count} entries have the id {short(one)!r}.",
                remedy="Give every entry its own id; ids are never reused.",
            )
