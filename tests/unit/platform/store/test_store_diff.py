"""Diffs: texts word by word, structures place by place, always enough to get both sides back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content
from instar.store.audit import SYSTEM
from instar.store.diff import Diff, JsonChange, diff_contents, diff_json, diff_text, diff_versions
from instar.store.session import Database
from instar.store.testing import MigratedDatabase
from instar_core.base import JsonValue


def _sides(old: str, new: str) -> tuple[str, str]:
    changes = diff_text(old, new)
    left = "".join(change.text for change in changes if change.op != "add")
    right = "".join(change.text for change in changes if change.op != "remove")
    return left, right


def test_words_are_the_unit() -> None:
    changes = diff_text("Route it to Amber, now.", "Route it to Moss, now.")
    assert [(change.op, change.text) for change in changes] == [
        ("keep", "Route it to "),
        ("remove", "Amber"),
        ("add", "Moss"),
        ("keep", ", now."),
    ]


@given(st.text(max_size=60), st.text(max_size=60))
def test_both_sides_can_be_read_off(old: str, new: str) -> None:
    assert _sides(old, new) == (old, new)


def test_long_texts_are_compared_by_lines() -> None:
    old = "".join(f"line {i} of the text\n" for i in range(6000))
    new = old.replace("line 3000 of", "line 3000 in")
    assert _sides(old, new) == (old, new)
    assert [change.op for change in diff_text(old, new)] == ["keep", "remove", "add", "keep"]


def test_structures_are_compared_by_place() -> None:
    old: JsonValue = {"a": {"b/c": [1, 2], "d~": "x y"}, "gone": None}
    new: JsonValue = {"a": {"b/c": [1, 3, 4], "d~": "x z"}, "new": True}
    told = [(change.op, change.path, change.old, change.new) for change in diff_json(old, new)]
    assert told == [
        ("replace", "/a/b~1c/1", 2, 3),
        ("add", "/a/b~1c/2", None, 4),
        ("replace", "/a/d~0", "x y", "x z"),
        ("add", "/new", None, True),
        ("remove", "/gone", None, None),
    ]


def test_entries_with_ids_are_compared_by_id() -> None:
    entries: list[JsonValue] = [{"id": key, "text": key} for key in ("l1", "l2", "l3")]
    one, two, three = entries
    assert diff_json([one, two], [three, one, two]) == (
        JsonChange(op="add", path="/l3", new=three),
    )
    assert [change.op for change in diff_json([one, two], [two])] == ["remove"]
    order = diff_json([one, two], [two, one])
    assert [(change.path, change.old, change.new) for change in order] == [
        ("#order", ["l1", "l2"], ["l2", "l1"])
    ]
    changed = diff_json([one], [{"id": "l1", "text": "l1 more"}])
    assert [change.path for change in changed] == ["/l1/text"]
    assert [word.op for word in changed[0].words] == ["keep", "add"]


def test_equal_contents_and_kinds() -> None:
    assert diff_contents("same", "same").equal
    assert diff_contents({"a": [1]}, {"a": [1]}) == Diff(kind="json", equal=True)
    # 1 and 1.0 are different bytes, and so are 1 and true.
    assert not diff_contents([1], [1.0]).equal
    assert not diff_contents([1], [True]).equal
    assert diff_contents("text", {"a": 1}).kind == "json"


@pytest.mark.postgres
def test_versions_are_compared_by_any_reference(database: MigratedDatabase) -> None:
    ref = ArtifactRef(database.project_id, "prompt", "greeting")

    async def work(db: Database) -> Diff:
        async with db.transaction(ref.project_id) as session:
            for text in ("Hello there.", "Hello you."):
                await create_version(session, ref, Draft(*encode_content(text), SYSTEM))
            return await diff_versions(session, ref, 1, "latest")

    found = database.run(work)
    assert [change.text for change in found.text if change.op != "keep"] == ["there", "you"]
