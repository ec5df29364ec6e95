"""The bound on a text's tokens: never below what a real tokenizer counts, on any kind of text."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from instar.models.bounds import text_bound
from instar.settings import prepare_process

ROOT = Path(__file__).parents[4]


def _from(letters: str, count: int = 3000) -> str:
    return "".join(random.Random(7).choices(letters, k=count))


def _words(length: int, between: str) -> str:
    rng = random.Random(length)
    return between.join("".join(rng.choices(string.ascii_lowercase, k=length)) for _ in range(500))


TEXTS: dict[str, Callable[[], str]] = {
    "english": lambda: (ROOT / "README.md").read_text(encoding="utf-8"),
    "code": lambda: Path(__file__).read_text(encoding="utf-8"),
    "json": lambda: json.dumps({f"k{i}": [i, str(i), None, True] for i in range(300)}),
    "base64": lambda: base64.b64encode(random.Random(1).randbytes(3000)).decode(),
    "hex": lambda: random.Random(1).randbytes(1500).hex(),
    "letters": lambda: _from(string.ascii_letters),
    "one word": lambda: _from(string.ascii_lowercase),
    "punctuation": lambda: _from(string.punctuation),
    "printable": lambda: _from(string.printable),
    "white space": lambda: _from(" \t\n\r\v\f\u00a0\u2003"),
    "scripts": lambda: "".join(
        chr(random.Random(3).randrange(0x3000, 0xD7FF)) for _ in range(2000)
    ),
    "emoji": lambda: "".join(chr(code) for code in range(0x1F300, 0x1F9FF)),
    "half a pair": lambda: "a\ud800b" * 10,
    **{f"words of {n}": partial(_words, n, " ") for n in (1, 2, 3, 4, 6, 8, 12, 13)},
    **{f"glued words of {n}": partial(_words, n, "_") for n in (1, 2, 3, 4, 8)},
}


@pytest.fixture(scope="module")
def count() -> Callable[[str], int]:
    """How many tokens a real tokenizer takes (the one that litellm brings along)."""
    prepare_process()
    from litellm.litellm_core_utils.default_encoding import encoding

    tokenizer: Any = encoding
    return lambda text: len(tokenizer.encode(text, disallowed_special=()))


@pytest.mark.parametrize("kind", TEXTS)
def test_s97_no_text_takes_more_tokens_than_its_bound(
    kind: str, count: Callable[[str], int]
) -> None:
    text = TEXTS[kind]()
    assert count(text) <= text_bound(text)


def test_the_bound_of_plain_text_is_no_more_than_three_times_its_tokens(
    count: Callable[[str], int],
) -> None:
    text = TEXTS["english"]()
    assert text_bound(text) <= 3 * count(text)
    assert text_bound("") == 0
