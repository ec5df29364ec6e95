"""Base: the frozen model that everything stored or sent is made of, canonical bytes and ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Self

import uuid_utils
from pydantic import BaseModel, ConfigDict
from pydantic import JsonValue as JsonValue

__all__ = ["Frozen", "JsonValue", "canonical_json", "content_hash", "new_id", "short"]


class Frozen(BaseModel):
    """An immutable value with strict fields: unknown keys are refused, instances never change."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values; what was computed from the old ones (a digest) is not kept."""
        copied = super().model_copy(update=update, deep=deep)
        kept = vars(copied)
        for name in kept.keys() - type(self).model_fields.keys():
            kept.pop(name)
        return copied


def canonical_json(value: Any) -> bytes:
    """Canonical UTF-8 bytes of a JSON value: sorted keys, no spaces, no escapes beyond JSON's own.

    Args:
        value: A JSON value, or a pydantic model (dumped in JSON mode first).

    Returns:
        The same bytes for equal values, in every process and under every hash seed.

    Raises:
        ValueError: For NaN or infinity, which JSON cannot carry.
        TypeError: For anything that is not JSON.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8")


def content_hash(value: Any) -> str:
    """The sha256 (64 hex digits) of a value's canonical bytes; raw bytes are hashed as they are."""
    data = value if isinstance(value, bytes) else canonical_json(value)
    return hashlib.sha256(data).hexdigest()


def new_id() -> str:
    """A fresh UUIDv7 as text: unique, and sorted by creation time."""
    return str(uuid_utils.uuid7())


def short(text: str, limit: int = 200) -> str:
    """The text cut to at most ``limit`` characters, with an ellipsis when something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
