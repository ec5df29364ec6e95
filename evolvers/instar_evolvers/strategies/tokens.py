"""Tokens: a rough count that needs no tokenizer, used for size budgets of texts."""

from __future__ import annotations

import math

__all__ = ["estimate_tokens"]

_CHARACTERS_PER_TOKEN = 4.0


def estimate_tokens(text: str) -> int:
    """About how many tokens a text takes: a quarter of its characters, and at least its words.

    English text under common tokenizers has 3.5 to 4.5 characters a token; a budget needs no more
    precision, and the same text counts the same everywhere.
    """
    return max(math.ceil(len(text) / _CHARACTERS_PER_TOKEN), len(text.split()))
