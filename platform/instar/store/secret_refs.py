"""References: ``${secret:<id>}`` in a text stands for a secret; found and filled in here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["find_references", "map_texts", "reference_to", "replace_references"]

_REFERENCE = re.compile(r"\$\{secret:([^}\s]{1,200})\}")


def reference_to(secret_id: str) -> str:
    """The text that stands for a secret."""
    return f"${{secret:{secret_id}}}"


def find_references(value: Any) -> list[str]:
    """What all references inside a text or a JSON structure name, each once, in order."""
    found: dict[str, None] = {}

    def look(text: str) -> str:
        found.update(dict.fromkeys(_REFERENCE.findall(text)))
        return text

    map_texts(value, look)
    return list(found)


def replace_references(value: Any, by: Callable[[str], str]) -> Any:
    """The same structure with every reference replaced by what ``by`` gives for its name."""
    return map_texts(value, lambda text: _REFERENCE.sub(lambda found: by(found.group(1)), text))


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same structure with every text changed; keys of mappings stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_texts(one, change) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [map_texts(one, change) for one in value]
    return value
