"""Results of tool calls: the text a model sees, capped in bytes without splitting a character."""

from __future__ import annotations

from typing import cast

from instar.redaction import mask_known
from instar.store.secret_refs import map_texts
from instar_core.base import Frozen, JsonValue

__all__ = ["ToolResult", "cap_text", "tool_result"]


class ToolResult(Frozen):
    """What a tool gave back. ``text`` is what the model sees; ``cut_bytes`` were left out of it."""

    text: str
    is_error: bool = False
    structured: JsonValue = None
    cut_bytes: int = 0


def tool_result(
    text: str, limit: int, *, is_error: bool = False, structured: JsonValue = None
) -> ToolResult:
    """A result as it goes on from here: within ``limit`` bytes, and with known secrets masked.

    A tool's own credentials are of no use to a model. Masked here, they reach no provider, no
    trajectory, no judge and no page. Only values that are known to be secret go: what merely looks
    like one may be what the model was asked to read.
    """
    shown, cut = cap_text(mask_known(text), limit)
    masked = cast(JsonValue, map_texts(structured, mask_known))
    return ToolResult(text=shown, is_error=is_error, structured=masked, cut_bytes=cut)


def cap_text(text: str, limit: int) -> tuple[str, int]:
    """The text within ``limit`` bytes of UTF-8: head and tail kept, a notice in between.

    Args:
        text: Any text.
        limit: Bytes to keep of the text itself, at least 2 (the notice comes on top).

    Returns:
        The text, and how many bytes were left out (0 when nothing was).
    """
    data = text.encode("utf-8", errors="replace")
    if len(data) <= limit:
        return data.decode("utf-8"), 0
    head_bytes = limit * 2 // 3
    head = data[:head_bytes].decode("utf-8", errors="ignore")
    tail = data[len(data) - (limit - head_bytes) :].decode("utf-8", errors="ignore")
    cut = len(data) - len(head.encode("utf-8")) - len(tail.encode("utf-8"))
    return f"{head}\n[… {cut} of {len(data)} bytes left out …]\n{tail}", cut
