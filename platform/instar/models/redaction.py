"""Redaction: takes secrets out of what is logged, shown or stored, by value and by key name.

A value is known when it was registered, or when it lies in an environment variable whose name says
that it is secret. Text is also searched for the usual shapes of credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["MASK", "redact", "redact_text", "register_secret"]

MASK = "[redacted]"
_SECRET_NAME = re.compile(
    r"(?i)(api[-_]?key|secret|passw(or)?d|passphrase|credential|private[-_]?key|authorization"
    r"|cookie|bearer|(access|refresh|auth|id|session|api|hf|github|gitlab|slack)[-_]?token|^token$)"
)
_SHAPES = (
    (re.compile(r"(?i)(://[^/\s:@]*:)[^@/\s]+(@)"), rf"\1{MASK}\2"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {MASK}"),
    (
        re.compile(r"\b(sk|pk|rk|ghp|gho|glpat|xox[abprs]|hf|AIza|AKIA)[-_]?[A-Za-z0-9_-]{16,}"),
        MASK,
    ),
    (
        re.compile(
            r"(?i)([\"']?[\w-]*(?:api[-_]?key|secret|password|access[-_]?token)[\w-]*[\"']?"
            r"\s*[=:]\s*[\"']?)[^\s\"',;&}]{4,}"
        ),
        rf"\1{MASK}",
    ),
)
_MIN_LENGTH = 6
_registered: set[str] = set()


def register_secret(value: str) -> None:
    """Makes a value known as secret in this process, whatever text it appears in later.

    Values shorter than six characters are not taken: they would mask ordinary words.
    """
    if len(value) >= _MIN_LENGTH:
        _registered.add(value)


def redact_text(text: str) -> str:
    """The text with every known secret, and whatever looks like one, replaced by a mask."""
    for value in _known_values():
        text = text.replace(value, MASK)
    for pattern, replacement in _SHAPES:
        text = pattern.sub(replacement, text)
    return text


def redact(value: Any) -> Any:
    """The same structure with secrets masked: whole values under secret names, and inside texts.

    Args:
        value: Mappings, sequences, texts and scalars, nested as they like.

    Returns:
        A copy; the argument is not changed.
    """
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {
            key: MASK if _is_secret_name(str(key)) and item not in (None, "") else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, bytes | bytearray):
        return value
    if isinstance(value, Sequence):
        return [redact(item) for item in value]
    return value


def _is_secret_name(name: str) -> bool:
    return _SECRET_NAME.search(name) is not None


def _known_values() -> Iterable[str]:
    """Longest first, so that a secret that contains another is masked whole."""
    found = {
        value
        for name, value in os.environ.items()
        if len(value) >= _MIN_LENGTH and _is_secret_name(name)
    }
    return sorted(found | _registered, key=lambda v: (-len(v), v))
