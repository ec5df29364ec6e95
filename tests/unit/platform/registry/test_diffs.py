"""Diffs: texts word by word, structures place by place, always enough to get both sides back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.registry.diffs import (
    Diff,
    JsonChange,
    diff_contents,
    diff_front_matter,
    diff_json,
    diff_text,
)
from instar.registry.verbs import diff
from instar.store.artifacts import ArtifactRef, Draft, create_version, encode_content
from instar.store.audit import SYSTEM
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


def test_long_texts_are_compared_word_by_word_too() -> None:
    old = "".join(f"line {i} of the text\n" for i in range(30_000))
    new = old.replace("line 3000 of", "line 3000 in")
    assert _sides(old, new) == (old, new)
    assert [change.text for change in diff_text(old, new) if change.op != "keep"] == ["of", "in"]


def test_texts_that_differ_everywhere_are_compared_in_coarser_steps() -> None:
    old = "".join(f"a {i % 7} b\n" for i in range(60_000))
    new = "".join(f"a {i % 5} c\n" for i in range(60_000))
    changes = diff_text(old, new)
    assert len(changes) <= 20_000
    assert _sides(old, new) == (old, new)


_SKILL = "---\nname: refunds\ntags: [a, b]\n---\nAsk for the receipt.\n"


def test_front_matter_is_a_structure_and_its_body_words() -> None:
    new = _SKILL.replace("[a, b]", "[a, c]").replace("receipt", "order")
    found = diff_contents(_SKILL, new, "front_matter")
    assert found.kind == "front_matter" and not found.equal
    assert [(one.path, one.old, one.new) for one in found.json_changes] == [("/tags/1", "b", "c")]
    assert [one.text for one in found.text if one.op != "keep"] == ["receipt", "order"]
    respaced = diff_contents(
        _SKILL, _SKILL.replace("name: refunds", "name:  refunds"), "front_matter"
    )
    assert [one.path for one in respaced.json_changes] == ["#text"]
    assert diff_contents("no header", "none here", "front_matter").kind == "text"


def test_headers_that_refer_to_themselves_are_never_unfolded() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    deep = "a: " + "[" * 40 + "]" * 40 + "\n"
    for header in (bomb, deep, "a: [\n", "? {a: 1}\n: 2\n"):
        found = diff_front_matter(f"---\n{header}---\n", f"---\n{header}b: 1\n---\n")
        assert [one.path for one in found.json_changes] == ["#text"]


def test_trees_tell_what_came_went_moved_and_changed() -> None:
    guide = "".join(f"Step {i}: look at place {i}.\n" for i in range(20))
    old: JsonValue = {
        "files": {
            "SKILL.md": _SKILL,
            "guide.md": guide,
            "logo.png": {"base64": "AAE="},
            "gone.txt": "nothing alike",
            "same.md": "same",
            "old.bin": {"base64": "AQID"},
        }
    }
    new: JsonValue = {
        "files": {
            "SKILL.md": _SKILL.replace("receipt", "order"),
            "docs/guide.md": guide + "One more.\n",
            "logo.png": {"base64": "AAI="},
            "same.md": "same",
            "new.bin": {"base64": "AQID"},
            "added.txt": "fresh words only",
        }
    }
    found = diff_contents(old, new, "tree")
    told = {one.path: (one.op, one.old_path, one.binary) for one in found.files}
    assert told == {
        "SKILL.md": ("change", "", False),
        "docs/guide.md": ("rename", "guide.md", False),
        "logo.png": ("change", "", True),
        "new.bin": ("rename", "old.bin", True),
        "added.txt": ("add", "", False),
        "gone.txt": ("remove", "", False),
    }
    by_path = {one.path: one for one in found.files}
    assert [one.text for one in by_path["SKILL.md"].text if one.op != "keep"] == [
        "receipt",
        "order",
    ]
    assert [one.text for one in by_path["docs/guide.md"].text if one.op == "add"] == ["One more.\n"]
    logo = by_path["logo.png"]
    assert (logo.old_size, logo.new_size, logo.text) == (2, 2, ())
    assert logo.old_digest != logo.new_digest
    assert diff_contents(old, old, "tree").equal
    more: JsonValue = {"files": {}, "more": 1}
    assert not diff_contents({"files": {}}, more, "tree").equal


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
            return await diff(session, ref, 1, "latest")

    found = database.run(work)
    assert [change.text for change in found.text if change.op != "keep"] == ["there", "you"]
