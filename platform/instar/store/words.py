"""Words: how texts and questions are cut for full-text search, in any language.

PostgreSQL's ``simple`` configuration knows no language: a word is a run of letters, in lower case.
Scripts that put no spaces between words (Chinese, Japanese, Thai …) would be one word a sentence;
their letters are indexed in pairs instead, and so are those of a question.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["MAX_INDEXED", "index_words", "query_words"]

MAX_INDEXED = 60_000
"""Characters of a content that are searched; beyond it an index entry would not fit."""
# Thai to Khmer, kana, Han (with its extensions) and halfwidth kana: written without spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]+"
)
_MARKS = re.compile(r"[^\w\x00-\x7f]")
# JSON punctuation says nothing; escapes in it would glue letters to words.
_ESCAPE = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])')


def index_words(text: str | bytes) -> str:
    """The words of a content, for ``to_tsvector('simple', …)``.

    Args:
        text: A text, or the bytes of a content; bytes that are no UTF-8 have no words.
    """
    if isinstance(text, bytes):
        raw = text[: 4 * MAX_INDEXED].decode("utf-8", "ignore")
        text = raw if not raw.startswith(("{", "[", '"')) else _ESCAPE.sub(" ", raw)
    return _cut(text[:MAX_INDEXED]).replace("\x00", " ")


def query_words(question: str) -> str:
    """A question in the same cut, for ``websearch_to_tsquery('simple', …)``."""
    return _cut(question).replace("\x00", " ")


def _cut(text: str) -> str:
    if text.isascii():
        return text
    folded = _MARKS.sub(_unless_accent, unicodedata.normalize("NFKC", text).casefold())
    return _UNSPACED.sub(lambda found: f" {_pairs(found[0])} ", folded)


def _unless_accent(found: re.Match[str]) -> str:
    # Quotes and dashes beyond ASCII part words in some of PostgreSQL's locales only. Accents and
    # vowel signs belong to their letter.
    return found[0] if unicodedata.category(found[0]).startswith("M") else " "


def _pairs(run: str) -> str:
    if len(run) == 1:
        return run
    return " ".join(run[i : i + 2] for i in range(len(run) - 1))
