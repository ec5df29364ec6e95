"""Bounds: how many tokens a request can be, before a provider has counted them."""

from __future__ import annotations

import json

from instar.models.base import ModelRequest

__all__ = ["prompt_bound", "text_bound"]

_PER_MESSAGE = 16
_PER_REQUEST = 64


def text_bound(text: str) -> int:
    """A conservative number of tokens of a text.

    Letters, spaces and punctuation count half a token each (English has about four characters a
    token), digits and bytes beyond ASCII one each, which is what the finest tokenizers in use take.
    """
    plain = sum(1 for c in text if c < "\x80" and not c.isdigit())
    dense = len(text.encode("utf-8", errors="replace")) - plain
    return (plain + 1) // 2 + dense


def prompt_bound(request: ModelRequest) -> int:
    """A conservative number of tokens of a request's messages and tool definitions together."""
    total = _PER_REQUEST
    for message in request.messages:
        total += _PER_MESSAGE + text_bound(message.content)
        for call in message.tool_calls:
            total += _PER_MESSAGE + text_bound(call.name + json.dumps(call.arguments))
    for tool in request.tools:
        total += _PER_MESSAGE + text_bound(json.dumps(tool.model_dump(mode="json")))
    return total
