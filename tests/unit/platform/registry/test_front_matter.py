"""Front matter in its parts: keys, their lines, and lines that are no keys."""

from __future__ import annotations

from instar.registry.front_matter import header_blocks


def test_keys_keep_their_lines_and_lose_the_spaces_before_their_colon() -> None:
    header = "name : one\nlong key:\n  - a\n# note\nlast:\n"
    assert header_blocks(header) == {
        "name": "name : one\n",
        "long key": "long key:\n  - a\n# note\n",
        "last": "last:\n",
    }
    assert header_blocks("a: 1\na : 2\n") is None
    assert header_blocks("no key at all\n") is None


def test_a_line_of_spaces_without_a_colon_is_passed_once() -> None:
    # With a look at every way to part the spaces this would take hours.
    assert header_blocks("a" + " " * 1_000_000 + "\n") is None
