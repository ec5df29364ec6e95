"""Bounds: how many tokens a request can be, before a provider has counted them."""

from __future__ import annotations

import json
import re

from instar.models.base import ModelRequest

__all__ = ["prompt_bound", "text_bound"]

_PER_MESSAGE = 16
_PER_REQUEST = 64
_PIECE = re.compile(r"[A-Za-z]+| +|.", re.DOTALL)
_LONGEST_WORD = 12


def text_bound(text: str) -> int:
    """A number of tokens that a text is not longer than.

    Words in lower case (the first letter aside) count six tenths of a token for each letter, where
    English takes a quarter and letters drawn at random a little more than half; a space counts
    half a token. All else (digits, punctuation, words of mixed case such as base64 is made of,
    bytes beyond ASCII) counts one token for each byte, and no tokenizer in use takes more.
    """
    tenths = 0
    for match in _PIECE.finditer(text):
        piece = match.group()
        if piece[0] == " ":
            tenths += 5 * len(piece)
        elif len(piece) <= _LONGEST_WORD and piece.isascii() and piece[1:].islower():
            tenths += 6 * len(piece)
        else:
            tenths += 10 * len(piece.encode("utf-8", errors="replace"))
    return -(-tenths // 10)


def prompt_bound(request: ModelRequest) -> int:
    """A number of tokens that a request's messages and tool definitions together do not exceed."""
    total = _PER_REQUEST
    for message in request.messages:
        total += _PER_MESSAGE + text_bound(message.content)
        for call in message.tool_calls:
            total += _PER_MESSAGE + text_bound(call.name + json.dumps(call.arguments))
    for tool in request.tools:
        total += _PER_MESSAGE + text_bound(json.dumps(tool.model_dump(mode="json")))
    return total
