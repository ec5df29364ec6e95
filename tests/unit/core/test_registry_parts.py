"""Parts of the registry that need no store: the catalogue's text, resemblance, changed places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar_core.base import JsonValue
from instar_core.kinds import did_you_mean, estimate_tokens, nearest
from instar_core.registry.contract import ContractEntry, build_contract
from instar_core.registry.places import changed_places
from instar_core.similarity import SIMILAR, find_similar, rare_words, resemblance

THIRTY = " ".join(f"word{number}" for number in range(30))


def _entry(kind: str, name: str, version: int | None = 1) -> ContractEntry:
    return ContractEntry(kind=kind, name=name, version=version, line=f"{name}: does {name}")


def test_a_contract_groups_by_kind_and_names_versions() -> None:
    entries = [
        _entry("skill", "sort"),
        _entry("policy", "safe", 3),
        _entry("skill", "tidy", 2),
        _entry("memory_bank", "notes", None),
    ]
    found = build_contract(entries)
    assert found.text.splitlines() == [
        "Skills:",
        "- sort: does sort (version 1)",
        "- tidy: does tidy (version 2)",
        "Policies:",
        "- safe: does safe (version 3)",
        "Memory banks:",
        "- notes: does notes",
    ]
    assert found.cut == () and found.tokens == estimate_tokens(found.text)


def test_s21_a_catalogue_over_its_budget_says_in_words_what_is_missing() -> None:
    entries = [_entry("skill", f"s{number:02}") for number in range(40)]
    found = build_contract(entries, budget_tokens=60)
    assert found.entries == tuple(entries[: len(found.entries)]) and found.cut
    assert len(found.entries) + len(found.cut) == 40
    last = found.text.splitlines()[-1]
    assert f"{len(found.cut)} entries are not listed" in last and "60 tokens" in last
    assert found.cut[0].name in last and last.endswith(f"and {len(found.cut) - 20} more)")
    listed = "\n".join(found.text.splitlines()[:-1])
    assert estimate_tokens(listed) <= 60
    assert "1 entry is not listed" in build_contract(entries[:1], budget_tokens=0).text
    assert build_contract([]).text == ""
    unread = build_contract(entries[:1], unread=1_200)
    assert "(1,200 more entries are not listed" in unread.text and unread.unread == 1_200


@given(st.lists(st.tuples(st.sampled_from("ab"), st.text("xyz", max_size=30))), st.integers(0, 99))
def test_a_contract_never_exceeds_its_budget_nor_loses_an_entry(
    raw: list[tuple[str, str]], budget: int
) -> None:
    entries = [ContractEntry(kind=kind, name=line, line=line) for kind, line in raw]
    found = build_contract(entries, budget_tokens=budget)
    key = sorted((entry.kind, entry.name) for entry in entries)
    assert sorted((one.kind, one.name) for one in (*found.entries, *found.cut)) == key
    lines = found.text.splitlines()[: -1 if found.cut else None]
    assert sum(estimate_tokens(f"{line}\n") for line in lines) <= budget or not lines


def test_s21_resemblance_tells_a_retouched_text_from_another_one() -> None:
    assert resemblance(THIRTY, THIRTY.upper()) == 1.0
    retouched = THIRTY.replace("word29", "other")
    assert resemblance(THIRTY, retouched) >= SIMILAR
    half = " ".join(f"word{number}" if number % 2 else f"w{number}" for number in range(30))
    assert resemblance(THIRTY, half) < 0.5
    assert resemblance("", THIRTY) == resemblance("...", "...") == 0.0
    assert resemblance("two words", "two words") == 1.0


def test_the_most_similar_is_named_and_ties_go_by_name() -> None:
    others = {"b": THIRTY, "a": THIRTY, "c": "something else entirely here"}
    found = find_similar(THIRTY, others)
    assert found is not None and (found.name, found.score) == ("a", 1.0)
    assert find_similar("nothing of the kind at all", others) is None
    assert rare_words("the cat catalogued the catalogue the", 2) == ["catalogue", "catalogued"]


@given(st.text(max_size=60), st.text(max_size=60))
def test_resemblance_is_symmetric_and_within_bounds(one: str, other: str) -> None:
    score = resemblance(one, other)
    assert 0.0 <= score <= 1.0
    assert score == resemblance(other, one)


@pytest.mark.parametrize(
    ("old", "new", "places"),
    [
        ("a", "a", ()),
        ("a", "b", ("",)),
        ({"a": 1}, {"a": 2}, ("/a",)),
        ({"a": [1, 2]}, {"a": [1, 3, 4]}, ("/a/2", "/a/1")),
        ({"a/b": 1, "c~d": 1}, {}, ("/a~1b", "/c~0d")),
        (1, True, ("",)),
        (1, 1.0, ("",)),
        ([], {}, ("",)),
    ],
)
def test_changed_places(old: JsonValue, new: JsonValue, places: tuple[str, ...]) -> None:
    assert sorted(changed_places(old, new)) == sorted(places)


def test_nearest_names() -> None:
    assert nearest("promt", ["prompt", "policy"]) == ["prompt"]
    assert did_you_mean("promt", ["prompt"]) == "Did you mean 'prompt'?"
    assert did_you_mean("zz", ["b", "a"], what="Kinds") == "Kinds: a, b."
    assert did_you_mean("zz", []) == "There are: none."
