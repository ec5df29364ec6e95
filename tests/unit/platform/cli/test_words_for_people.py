"""What commands print for people: no Python, no JSON where words do, nothing twice."""

from __future__ import annotations

import json

from instar.cli.artifacts import diff_words
from instar.cli.client import problem_error
from instar.cli.output import table
from instar.registry.diffs import diff_contents


def test_labels_counts_and_times_are_words() -> None:
    row = {"labels": {"production": 2, "staging": 1}, "at": "2026-11-30T11:11:28.812675Z"}
    assert "production: 2, staging: 1  2026-11-30 11:11:28 UTC" in table([row], ("labels", "at"))
    assert table([{"labels": {}}], ("labels",)).splitlines()[1] == "-"
    odd = {"disabled": False, "instance": True, "name": "", "scopes": ["runs", "audit:read"]}
    assert table([odd], tuple(odd)).splitlines()[1].split("  ")[0] == "no"
    assert table([odd], ("instance", "name")).splitlines()[1].split() == ["yes", "-"]
    assert table([odd], ("scopes",)).splitlines()[1] == "runs, audit:read"


def test_a_problem_says_each_thing_once() -> None:
    one = {"where": "path/run_id", "what": "Input should be a valid UUID"}
    two = {"where": "body/seed", "what": "Field required"}
    problem = {"detail": f"{one['where']}: {one['what']} (and 1 more).", "errors": [one, two]}
    words = str(problem_error(422, json.dumps(problem)))
    assert words.count("valid UUID") == 1
    assert words.count("body/seed: Field required") == 1
    assert "{" not in words


def test_a_diff_names_places_and_both_sides() -> None:
    found = diff_contents({"k": 0, "same": 1, "gone": "x"}, {"k": 4, "same": 1, "pool": ["a"]})
    words = diff_words(found.model_dump(mode="json"))
    assert "replace /k\n  - 0\n  + 4" in words
    assert "remove /gone\n  - x" in words
    assert 'add /pool\n  + ["a"]' in words
    assert "same" not in words


def test_a_diff_of_texts_marks_words() -> None:
    found = diff_contents("Be kind.", "Be brief.")
    assert diff_words(found.model_dump(mode="json")) == "Be [-kind][+brief]."
    same = diff_contents("Be kind.", "Be kind.")
    assert diff_words(same.model_dump(mode="json")) == "(no difference)"
