"""Output: one JSON document for programs, or plain lines for people."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from instar_core.errors import UserError

__all__ = ["Json", "check_id", "emit", "in_words", "say", "table"]

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of words.")]


def emit(data: Any, as_json: bool, words: str) -> None:
    """Prints the data as JSON, or the words.

    Args:
        data: Anything JSON can carry.
        as_json: What the person asked for.
        words: The same for people.
    """
    print(json.dumps(data, ensure_ascii=False, indent=2) if as_json else words, flush=True)


def say(words: str) -> None:
    """Prints a remark for people, apart from the result (standard error)."""
    print(words, file=sys.stderr, flush=True)


def check_id(value: str, what: str, where: str) -> None:
    """Refuses what cannot be an id, before the service is asked.

    Args:
        value: What the person wrote.
        what: Of what it should be the id.
        where: The command that lists such ids.

    Raises:
        UserError: It has not the form of an id.
    """
    if not _ID.fullmatch(value):
        raise UserError(f"{value!r} is no id of a {what}.", remedy=f"See `{where}`.")


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as aligned columns under a heading; '(none)' when there are no rows."""
    if not rows:
        return "(none)"
    lines = [[column.replace("_", " ") for column in columns]]
    lines += [[in_words(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def in_words(value: Any) -> str:
    """A value as a person reads it in a line: no braces, no quotes, times to the second."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {in_words(one)}" for key, one in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(in_words, value)) or "-"
    if isinstance(value, str) and _TIME.fullmatch(value):
        return value[:19].replace("T", " ") + " UTC"
    return str(value)
