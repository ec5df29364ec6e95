"""Similarity: whether two texts say nearly the same, deterministically and without a model.

Texts are folded (NFKC, case, punctuation), cut into shingles of three words, and compared by the
share of shingles that both have (Broder, "On the resemblance and containment of documents", 1997).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import NamedTuple

__all__ = ["COMPARED_KINDS", "SIMILAR", "Similar", "find_similar", "rare_words", "resemblance"]

SIMILAR = 0.7
"""From this resemblance on, a text counts as a near-duplicate. Two texts of 30 words that differ in
one word have 0.8; two that share every second sentence have less than 0.5."""

COMPARED_KINDS = frozenset({"prompt", "lessons", "skill"})
"""Kinds whose near-duplicates bloat what an agent is told, so that new ones are compared."""

_WORDS = re.compile(r"\w+")
_SHINGLE = 3


class Similar(NamedTuple):
    """An existing thing that says nearly the same, and how nearly (0 to 1)."""

    name: str
    score: float


def resemblance(one: str, other: str) -> float:
    """The Jaccard index of the shingles of two texts: 1 for the same words, 0 for nothing shared.

    Texts without a word have no resemblance to anything.
    """
    a, b = _shingles(one), _shingles(other)
    if not a or not b:
        return 0.0
    return len(a & b) / len(a | b)


def find_similar(
    text: str, others: Mapping[str, str], *, threshold: float = SIMILAR
) -> Similar | None:
    """Which of the named texts resembles a text most, if one does from the threshold on.

    Equal resemblances go to the first name in the order of names.
    """
    mine = _shingles(text)
    best: Similar | None = None
    for name in sorted(others):
        theirs = _shingles(others[name])
        score = len(mine & theirs) / len(mine | theirs) if mine and theirs else 0.0
        if score >= threshold and (best is None or score > best.score):
            best = Similar(name, score)
    return best


def rare_words(text: str, most: int = 12) -> list[str]:
    """A few words of a text by which near-duplicates can be looked up: the longest ones, sorted."""
    words = set(_words(text))
    return sorted(sorted(words, key=lambda word: (-len(word), word))[:most])


def _words(text: str) -> list[str]:
    return _WORDS.findall(unicodedata.normalize("NFKC", text).casefold())


def _shingles(text: str) -> frozenset[tuple[str, ...]]:
    words = _words(text)
    if not words:
        return frozenset()
    return frozenset(_cut(words))


def _cut(words: list[str]) -> Iterable[tuple[str, ...]]:
    if len(words) < _SHINGLE:
        return [tuple(words)]
    return (tuple(words[at : at + _SHINGLE]) for at in range(len(words) - _SHINGLE + 1))
