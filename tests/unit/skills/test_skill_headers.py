"""Headers that are written to take long: each is read, mended or refused in one pass."""

from __future__ import annotations

import pytest

from instar_skills.document import read_document

_HEADER = "---\nname: deep\ndescription: Reads headers.\n{}\n---\nbody\n"


@pytest.mark.parametrize("opened", ["[", "{", "[{", "{a: "])
def test_a_header_nested_without_end_is_read_as_a_text_and_told(opened: str) -> None:
    # Reading it to its end would take a minute for each of these.
    value = opened * (60_000 // len(opened))
    found = read_document(_HEADER.format(f"q: {value}"))
    assert found.extra["q"] == value.rstrip()
    assert any("inside each other beyond 32 levels" in one for one in found.problems)


def test_lists_inside_each_other_up_to_the_bound_are_read() -> None:
    found = read_document(_HEADER.format("q: " + "[" * 31 + "x" + "]" * 31))
    assert not any("inside each other" in one for one in found.problems)
    assert found.extra["q"] != ""


def test_many_fields_twice_are_told_each_once() -> None:
    fields = "\n".join(f"f{number % 4_000}:" for number in range(8_000))
    told = [one for one in read_document(_HEADER.format(fields)).problems if "there twice" in one]
    assert len(told) == 4_000


def test_spaces_after_a_value_that_needs_quotes_are_left_out() -> None:
    found = read_document(_HEADER.format("q: a: b" + " " * 30_000))
    assert found.extra["q"] == "a: b"
