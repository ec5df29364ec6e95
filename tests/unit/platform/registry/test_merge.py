"""Merging: what is taken from which side, and what is left to a person."""

from __future__ import annotations

from instar.registry.merge import merge_contents
from instar.registry.merge_report import dropped_from
from instar_core.base import JsonValue

_BASE = "Be kind. Answer in one line.\nNever guess.\nSign with your name.\n"


def test_changes_of_different_sentences_are_both_kept() -> None:
    ours = _BASE.replace("Never guess.", "Never guess a price.")
    theirs = _BASE + "Say which source you used.\n"
    merged = merge_contents("text", _BASE, ours, theirs)
    assert merged.content == ours + "Say which source you used.\n"


def test_changes_of_one_sentence_are_a_conflict_with_its_line() -> None:
    ours = _BASE.replace("Never guess.", "Never guess a price.")
    theirs = _BASE.replace("Never guess.", "Guess only when asked to.")
    merged = merge_contents("text", _BASE, ours, theirs)
    assert not merged.clean and merged.content is None
    (conflict,) = merged.conflicts
    assert (conflict.what, conflict.line) == ("text", 2)
    assert conflict.base == "Never guess.\n"
    assert conflict.ours == "Never guess a price.\n"
    assert conflict.theirs == "Guess only when asked to.\n"
    settled = merge_contents("text", _BASE, ours, theirs, prefer="theirs")
    assert settled.content == theirs
    assert [(one.side, one.content) for one in settled.dropped] == [
        ("ours", "Never guess a price.\n")
    ]


def test_entries_with_ids_are_merged_by_id() -> None:
    base: JsonValue = {"entries": [{"id": "l1", "text": "One."}, {"id": "l2", "text": "Two."}]}
    ours: JsonValue = {
        "entries": [
            {"id": "l1", "text": "One."},
            {"id": "l9", "text": "Learned."},
            {"id": "l2", "text": "Two."},
        ]
    }
    theirs: JsonValue = {
        "entries": [{"id": "l2", "text": "Two, rewritten."}, {"id": "l5", "text": "Five."}]
    }
    merged = merge_contents("json", base, ours, theirs)
    assert merged.content == {
        "entries": [
            {"id": "l9", "text": "Learned."},
            {"id": "l2", "text": "Two, rewritten."},
            {"id": "l5", "text": "Five."},
        ]
    }


def test_an_entry_changed_here_and_removed_there_is_a_conflict() -> None:
    base: JsonValue = [{"id": "l1", "text": "One."}]
    ours: JsonValue = [{"id": "l1", "text": "One, learned."}]
    (conflict,) = merge_contents("json", base, ours, []).conflicts
    assert (conflict.path, conflict.what, conflict.missing) == ("/l1", "presence", ("theirs",))


def test_two_orders_are_a_conflict_and_one_is_taken() -> None:
    entries: list[JsonValue] = [{"id": key, "text": key} for key in "abc"]
    one, two, three = entries
    base: list[JsonValue] = [one, two, three]
    taken = merge_contents("json", base, [three, one, two], base)
    assert taken.content == [three, one, two]
    (conflict,) = merge_contents("json", base, [three, one, two], [two, one, three]).conflicts
    assert (conflict.path, conflict.what) == ("#order", "order")


def test_lists_without_ids_are_taken_whole_or_left_to_a_person() -> None:
    assert merge_contents("json", {"a": [1]}, {"a": [1, 2]}, {"a": [1], "b": 1}).content == {
        "a": [1, 2],
        "b": 1,
    }
    (conflict,) = merge_contents("json", [1], [1, 2], [1, 3]).conflicts
    assert (conflict.what, conflict.ours, conflict.theirs) == ("value", [1, 2], [1, 3])


def test_numbers_that_look_alike_are_different() -> None:
    assert merge_contents("json", [1], [True], [1]).content == [True]
    assert not merge_contents("json", {"a": 1}, {"a": True}, {"a": 1.0}).clean


_SKILL = (
    "---\nname: refunds\ndescription: How to refund.\n---\n\n# Refunds\n\nAsk for the receipt.\n"
)


def test_front_matter_is_merged_key_by_key_and_keeps_its_bytes() -> None:
    ours = _SKILL.replace("How to refund.", "How to refund an order.").replace(
        "receipt.\n", "receipt.\nNever promise a date.\n"
    )
    theirs = _SKILL.replace("name: refunds\n", "name:   refunds\nlicense: 'MIT' # ours\n")
    merged = merge_contents("front_matter", _SKILL, ours, theirs)
    assert merged.content == (
        "---\nname:   refunds\nlicense: 'MIT' # ours\ndescription: How to refund an order.\n---\n"
        "\n# Refunds\n\nAsk for the receipt.\nNever promise a date.\n"
    )
    clash = merge_contents(
        "front_matter", _SKILL, ours, _SKILL.replace("How to refund.", "Refunding.")
    )
    assert [one.path for one in clash.conflicts] == ["/header/description"]


def test_lines_of_a_value_go_with_their_key() -> None:
    base = "---\na: 1\nb: 2\n---\n"
    ours = "---\na: |\n  text\nb: 2\n---\n"
    theirs = "---\na: 1\nb: 2\n---\nBody.\n"
    assert merge_contents("front_matter", base, ours, theirs).clean
    twice = merge_contents(
        "front_matter", base, "---\na: 1\nb: 2\nc: [1\n  ]\n---\n", "---\na: 1\nb: {x: 2}\n---\n"
    )
    assert twice.content == "---\na: 1\nb: {x: 2}\nc: [1\n  ]\n---\n"


def test_trees_are_merged_file_by_file_and_binaries_by_hash() -> None:
    base: JsonValue = {"files": {"SKILL.md": _SKILL, "a.bin": {"base64": "AAE="}, "x.md": "x\n"}}
    ours: JsonValue = {
        "files": {"SKILL.md": _SKILL + "More.\n", "a.bin": {"base64": "AAE="}, "x.md": "x\n"}
    }
    theirs: JsonValue = {"files": {"SKILL.md": _SKILL, "a.bin": {"base64": "AAI="}, "y.md": "y\n"}}
    assert merge_contents("tree", base, ours, theirs).content == {
        "files": {"SKILL.md": _SKILL + "More.\n", "a.bin": {"base64": "AAI="}, "y.md": "y\n"}
    }
    other: JsonValue = {"files": {"SKILL.md": _SKILL, "a.bin": {"base64": "AAM="}, "x.md": "x\n"}}
    (conflict,) = merge_contents("tree", base, other, theirs).conflicts
    assert (conflict.path, conflict.what) == ("a.bin", "file")
    assert isinstance(conflict.ours, dict) and conflict.ours["size"] == 2


def test_a_file_against_a_folder_of_its_name_is_a_conflict() -> None:
    base: JsonValue = {"files": {}}
    merged = merge_contents("tree", base, {"files": {"a": "1"}}, {"files": {"a/b": "2"}})
    assert [(one.path, one.what) for one in merged.conflicts] == [("a", "file")]


def test_s17_what_a_merge_drops_of_its_sources_is_listed() -> None:
    refunds = "Ask for the receipt. Never promise a date.\n"
    returns = "Ask for the order number. Send a label.\n"
    merged = "Ask for the receipt. Send a label.\n"
    assert [one.content for one in dropped_from(refunds, merged)] == ["Never promise a date.\n"]
    assert [one.content for one in dropped_from(returns, merged)] == ["Ask for the order number. "]
    entries: JsonValue = [{"id": "l1", "text": "One."}, {"id": "l2", "text": "Two. Three."}]
    kept: JsonValue = [{"id": "l2", "text": "Two."}]
    told = [(one.path, one.content) for one in dropped_from(entries, kept)]
    assert told == [("/l1", {"id": "l1", "text": "One."}), ("/l2/text", "Three.")]
    tree: JsonValue = {"files": {"SKILL.md": "A.\n", "b.md": "B.\n"}}
    lost = dropped_from(tree, {"files": {"SKILL.md": "A.\n"}})
    assert [one.path for one in lost] == ["/files/b.md"]


def test_a_megabyte_is_merged_without_comparing_everything_with_everything() -> None:
    # No clock: the work that may be spent is counted, and this needs a thousandth of the square.
    lines = [f"Rule {number}: keep the number {number % 7} in mind.\n" for number in range(20_000)]
    ours, theirs = list(lines), list(lines)
    ours[10], theirs[-10] = "Rule: changed here.\n", "Rule: changed there.\n"
    merged = merge_contents("text", "".join(lines), "".join(ours), "".join(theirs))
    expected = list(ours)
    expected[-10] = theirs[-10]
    assert merged.content == "".join(expected)
