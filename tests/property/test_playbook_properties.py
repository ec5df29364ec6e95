"""Playbook: whatever is done to it, ids stay what they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar_core.candidates import Lesson, Lessons
from instar_evolvers.strategies.playbook import (
    Operation,
    apply_operation,
    check_operations,
    lesson_tokens,
    parse_operations,
    render_lessons,
)

TEXTS = st.text(alphabet="abcdef ", min_size=1, max_size=20).map(str.strip).filter(bool)


@st.composite
def edits(draw: st.DrawFn) -> list[tuple[str, int, int, str]]:
    kinds = st.sampled_from(["ADD", "UPDATE", "DELETE", "MERGE"])
    one = st.tuples(kinds, st.integers(0, 9), st.integers(0, 9), TEXTS)
    return draw(st.lists(one, max_size=30))


def operation_for(
    lessons: Lessons, kind: str, first: int, second: int, text: str
) -> Operation | None:
    ids = [entry.id for entry in lessons.entries]
    if kind == "ADD":
        return Operation(op="ADD", text=text)
    if not ids:
        return None
    chosen = ids[first % len(ids)]
    if kind == "UPDATE":
        return Operation(op="UPDATE", ids=(chosen,), text=text)
    if kind == "DELETE":
        return Operation(op="DELETE", ids=(chosen,))
    other = ids[second % len(ids)]
    return None if other == chosen else Operation(op="MERGE", ids=(chosen, other), text=text)


@given(edits())
def test_ids_are_unique_stable_and_never_renumbered(
    changes: list[tuple[str, int, int, str]],
) -> None:
    lessons = Lessons()
    for kind, first, second, text in changes:
        operation = operation_for(lessons, kind, first, second, text)
        if operation is None:
            continue
        after = apply_operation(lessons, operation)
        before, now = ({e.id: e.text for e in part.entries} for part in (lessons, after))
        assert len(now) == len(after.entries)
        untouched = set(before) - set(operation.ids)
        assert {name: before[name] for name in untouched}.items() <= now.items()
        # The order of what stays is the order that it had.
        kept = [entry.id for entry in lessons.entries if entry.id in now]
        assert [entry.id for entry in after.entries if entry.id in before] == kept
        if operation.op == "ADD":
            assert after.entries[-1].text == text
            assert after.entries[-1].id not in before
        elif operation.op == "DELETE":
            assert set(now) == untouched
        else:
            assert now[operation.ids[0]] == text
            assert set(now) == untouched | {operation.ids[0]}
        lessons = after


@given(st.lists(TEXTS, min_size=1, max_size=6), TEXTS)
def test_an_unknown_id_changes_nothing_and_names_the_known_ones(
    texts: list[str], text: str
) -> None:
    lessons = Lessons()
    for one in texts:
        lessons = apply_operation(lessons, Operation(op="ADD", text=one))
    for operation in (
        Operation(op="UPDATE", ids=("l-nowhere",), text=text),
        Operation(op="DELETE", ids=("l-nowhere",)),
        Operation(op="MERGE", ids=(lessons.entries[0].id, "l-nowhere"), text=text),
    ):
        with pytest.raises(ValueError, match="l-nowhere") as caught:
            check_operations([operation], lessons)
        assert lessons.entries[-1].id in str(caught.value)


@given(edits())
def test_parsing_is_a_round_trip(changes: list[tuple[str, int, int, str]]) -> None:
    lessons = Lessons(entries=(Lesson(id="l-a", text="a"), Lesson(id="l-b", text="b")))
    found = [operation_for(lessons, *change) for change in changes]
    operations = tuple(one for one in found if one is not None)
    written = [one.model_dump(mode="json") for one in operations]
    parsed = parse_operations([*written, {"op": "none"}])
    normal = tuple(
        one.model_copy(update={"text": " ".join(one.text.split())}) for one in operations
    )
    assert parsed == normal


@given(st.lists(TEXTS, max_size=8))
def test_the_size_is_that_of_the_texts(texts: list[str]) -> None:
    lessons = Lessons()
    for text in texts:
        lessons = apply_operation(lessons, Operation(op="ADD", text=text))
    assert (lesson_tokens(lessons) == 0) is (not texts)
    assert all(entry.id in render_lessons(lessons) for entry in lessons.entries)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (["ADD"], "not an object"),
        ([{"op": "RENAME", "id": "l-a"}], "RENAME"),
        ([{"op": "DELETE", "ids": [3]}], "ids"),
    ],
)
def test_operations_that_are_none_are_told_by_number(items: list[object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_operations(items)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (Operation(op="ADD"), "needs a text"),
        (Operation(op="UPDATE", text="x"), "exactly one id"),
        (Operation(op="DELETE", ids=("l-a", "l-b")), "exactly one id"),
        (Operation(op="MERGE", ids=("l-a", "l-a"), text="x"), "at least two"),
    ],
)
def test_incomplete_operations_are_refused(operation: Operation, words: str) -> None:
    lessons = Lessons(entries=(Lesson(id="l-a", text="a"), Lesson(id="l-b", text="b")))
    with pytest.raises(ValueError, match=words):
        apply_operation(lessons, operation)
