"""Files of a tree: a text as it is, anything else as ``{"base64": …}``."""

from __future__ import annotations

import base64
import binascii

from instar_core.base import JsonValue

__all__ = ["file_bytes"]


def file_bytes(value: object) -> bytes | None:
    """The bytes of a file of a tree; ``None`` where the value is no file."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and isinstance(value.get("base64"), str):
        encoded: JsonValue = value["base64"]
        try:
            return base64.b64decode(str(encoded), validate=True)
        except (ValueError, binascii.Error):
            return None
    return None
