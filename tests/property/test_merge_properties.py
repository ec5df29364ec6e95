"""Merging: what holds for every content, whichever side made which change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.registry.merge import Merge, merge_contents
from instar.registry.merge_parts import units
from instar_core.base import JsonValue
from instar_core.kinds import Form
from instar_core.matching import Work, matching_blocks

_WORDS = st.sampled_from(
    ["a", "b", "Go on. ", "Stop! ", "\n", "\n\n", "x: 1\n", "---\n", "é", "- "]
)
_TEXTS = st.lists(_WORDS, max_size=12).map("".join)
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2), _TEXTS)
_ENTRIES = st.lists(
    st.fixed_dictionaries({"id": st.sampled_from("pqrstu"), "text": _TEXTS}),
    max_size=5,
    unique_by=lambda entry: str(entry["id"]),
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(_SCALARS, _ENTRIES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("klm/~"), inner, max_size=4)
    ),
    max_leaves=8,
)
_FRONT = st.tuples(
    st.lists(
        st.sampled_from(["name: x\n", "name: y\n", "on: true\n", "  more\n", "#\n"]), max_size=4
    ).map("".join),
    _TEXTS,
).map(lambda parts: f"---\n{parts[0]}---\n{parts[1]}")
_FILES = st.one_of(_FRONT, _TEXTS, st.sampled_from([{"base64": "AAE="}, {"base64": "AAI="}]))
_TREES = st.dictionaries(st.sampled_from(["SKILL.md", "a/b", "c.md"]), _FILES, max_size=3).map(
    lambda files: {"files": files}
)
_BY_FORM: list[tuple[Form, st.SearchStrategy[Any]]] = [
    ("text", _TEXTS),
    ("json", _VALUES),
    ("front_matter", st.one_of(_FRONT, _TEXTS)),
    ("tree", _TREES),
]


def _merge(form: Form, base: JsonValue, ours: JsonValue, theirs: JsonValue) -> Merge:
    return merge_contents(form, base, ours, theirs)


@pytest.mark.parametrize(("form", "contents"), _BY_FORM)
@given(data=st.data())
def test_a_side_that_changed_nothing_takes_the_other(
    form: Form, contents: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    base, changed = data.draw(contents), data.draw(contents)
    assert _merge(form, base, base, changed) == Merge(clean=True, content=changed)
    assert _merge(form, base, changed, base) == Merge(clean=True, content=changed)
    assert _merge(form, base, changed, changed) == Merge(clean=True, content=changed)


@pytest.mark.parametrize(("form", "contents"), _BY_FORM)
@given(data=st.data())
def test_exchanging_the_sides_exchanges_their_names_alone(
    form: Form, contents: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    base, ours, theirs = (data.draw(contents) for _ in range(3))
    one, other = _merge(form, base, ours, theirs), _merge(form, base, theirs, ours)
    assert one.clean == other.clean
    assert one.content == other.content
    turned = [
        conflict.model_copy(
            update={
                "ours": conflict.theirs,
                "theirs": conflict.ours,
                "missing": tuple(
                    side
                    for side in ("base", "ours", "theirs")
                    if {"ours": "theirs", "theirs": "ours"}.get(side, side) in conflict.missing
                ),
            }
        )
        for conflict in other.conflicts
        if conflict.what != "file"
    ]
    assert [one for one in one.conflicts if one.what != "file"] == turned


@pytest.mark.parametrize(("form", "contents"), _BY_FORM)
@given(data=st.data())
def test_a_preferred_side_settles_everything_and_tells_what_was_dropped(
    form: Form, contents: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    base, ours, theirs = (data.draw(contents) for _ in range(3))
    plain = _merge(form, base, ours, theirs)
    settled = merge_contents(form, base, ours, theirs, prefer="theirs")
    assert {one.side for one in settled.dropped} <= {"ours"}
    if plain.clean:
        assert settled == plain
    elif settled.clean:
        assert settled.dropped


@given(_TEXTS, _TEXTS, _TEXTS)
def test_a_conflict_leaves_no_merged_text_and_quotes_all_three(
    base: str, ours: str, theirs: str
) -> None:
    assert "".join(units(base)) == base
    merged = merge_contents("text", base, ours, theirs)
    assert merged.clean == (not merged.conflicts)
    if not merged.clean:
        assert merged.content is None
    for conflict in merged.conflicts:
        for quoted, whole in (
            (conflict.base, base),
            (conflict.ours, ours),
            (conflict.theirs, theirs),
        ):
            assert isinstance(quoted, str) and quoted in whole


@given(st.lists(st.sampled_from("abc"), max_size=20), st.lists(st.sampled_from("abc"), max_size=20))
def test_matching_blocks_are_equal_and_in_order(a: list[str], b: list[str]) -> None:
    left = right = 0
    for block in matching_blocks(a, b):
        assert block.size > 0 and block.left >= left and block.right >= right
        left, right = block.left + block.size, block.right + block.size
        assert a[block.left : left] == b[block.right : right]
    # Without work to spend the answer is coarser and still true.
    for block in matching_blocks(a, b, work=Work(0)):
        assert a[block.left : block.left + block.size] == b[block.right : block.right + block.size]
