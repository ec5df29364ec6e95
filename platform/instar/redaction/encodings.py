"""Encodings: every form in which a value may turn up in a log, a URL or a JSON text."""

from __future__ import annotations

import base64
import json
from html import escape
from urllib.parse import quote, quote_plus

__all__ = ["SHORTEST", "forms_of"]

SHORTEST = 6
"""Characters a form must have: shorter ones would mask ordinary words."""


def forms_of(value: str) -> frozenset[str]:
    """The value as it is, backwards, JSON- and HTML-escaped, URL-encoded, in hex and in base64.

    Base64 depends on how many bytes come before the value, so its three alignments are given, each
    without the characters that also depend on the neighbours: ``user:secret`` in a Basic header is
    found although only ``secret`` is known.
    """
    data = value.encode("utf-8", errors="surrogatepass")
    quoted = {quote(value, safe="", errors="replace"), quote_plus(value, errors="replace")}
    quoted |= {quote(value, errors="replace")}
    forms = {
        value,
        value[::-1],
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        escape(value),
        data.hex(),
        data.hex().upper(),
        *quoted,
        *(_lower_escapes(one) for one in quoted),
        *_base64_forms(data),
    }
    return frozenset(form for form in forms if len(form) >= SHORTEST)


def _lower_escapes(text: str) -> str:
    """Percent escapes in lower case, the rest untouched."""
    head, *rest = text.split("%")
    return head + "".join(f"%{part[:2].lower()}{part[2:]}" for part in rest)


def _base64_forms(data: bytes) -> set[str]:
    forms = set()
    for before in range(3):
        # Whole groups of three bytes inside the value, seen from this alignment.
        start = (3 - before) % 3
        whole = (len(data) - start) // 3 * 3
        inside = data[start : start + max(whole, 0)]
        # Less would be found in ordinary text by chance.
        if len(inside) >= SHORTEST:
            forms |= {
                base64.b64encode(inside).decode("ascii"),
                base64.urlsafe_b64encode(inside).decode("ascii"),
            }
    return forms
