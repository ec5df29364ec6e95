"""What the commands of history print for people."""

from __future__ import annotations

from typing import Any

from instar.cli.history import behaviour_words, conflict_words, lineage_words, restore_words
from instar.registry.behaviour import BehaviourDiff, TaskChange
from instar.registry.restore import BuiltOn, LabelBack, RestoreReport, StateBack, VersionBack


def test_a_restore_says_what_goes_and_what_stays_and_why() -> None:
    label: dict[str, Any] = {"kind": "agent", "name": "desk", "label": "production", "left": 2}
    report = RestoreReport(
        run_id="r",
        dry_run=True,
        changed=True,
        labels=(
            LabelBack(**label, now=2, to=1, state="restored"),
            LabelBack(**label, now=3, to=1, state="moved_since", by="person:user:anna"),
        ),
        promotions=(StateBack(id="p1", before="watching", after="rolled_back"),),
        versions=(
            VersionBack(
                kind="agent", name="desk", number=2, state="kept", why="the label 'x' names it"
            ),
        ),
        built_on=(
            BuiltOn(
                kind="agent",
                name="desk",
                number=4,
                origin="rebase",
                on_kind="agent",
                on_name="desk",
                on_number=2,
            ),
        ),
    )
    assert restore_words(report.model_dump(mode="json")).splitlines() == [
        "This would happen:",
        "  label production of desk goes from 2 to 1",
        "  label production of desk stays at 3: person:user:anna moved it since (--force moves it "
        "to 1)",
        "  promotion p1: watching -> rolled_back",
        "  agent desk version 2: kept (the label 'x' names it)",
        "  agent desk version 4 (rebase) goes on desk version 2 and stays",
    ]
    again = VersionBack(kind="agent", name="desk", number=2, state="already")
    twice = RestoreReport(run_id="r", dry_run=False, versions=(again,)).model_dump(mode="json")
    assert "  agent desk version 2: archived already" in restore_words(twice)
    gone = again.model_copy(update={"state": "archived"})
    back = RestoreReport(run_id="r", dry_run=False, changed=True, versions=(gone,))
    words = restore_words(back.model_dump(mode="json"), back=True)
    assert words.splitlines() == ["Done:", "  agent desk version 2: no longer archived"]
    nothing = RestoreReport(run_id="r", dry_run=False).model_dump(mode="json")
    assert restore_words(nothing) == "Nothing of the run is left to restore."


def test_behaviour_names_counts_interval_and_the_worst_tasks() -> None:
    task = TaskChange(
        task_id="t1",
        split="train",
        change="worsened",
        old_mean=1.0,
        new_mean=0.25,
        old_n=8,
        new_n=8,
        difference=-0.75,
        p_value=0.007,
    )
    found = BehaviourDiff(
        old_digest="a",
        new_digest="b",
        shared=2,
        improved=0,
        worsened=1,
        unchanged=1,
        only_old=0,
        only_new=3,
        difference=-0.375,
        lower=-0.75,
        upper=0.0,
        tasks=(task,),
    )
    words = behaviour_words(found.model_dump(mode="json"))
    assert "2 tasks under both versions: 1 worsened, 0 improved beyond noise, " in words
    assert "1 could be noise, each by itself." in words
    assert "Mean difference -0.375 (-0.750 to +0.000)." in words
    assert "t1    worsened  1.00 (n=8)  0.25 (n=8)  -0.75       0.007" in words
    alone = found.model_copy(update={"shared": 0}).model_dump(mode="json")
    assert behaviour_words(alone).startswith("No task was measured under both")


def test_a_lineage_is_a_table_with_where_each_version_came_from() -> None:
    node: dict[str, Any] = {
        "kind": "agent",
        "name": "desk",
        "origin": "save",
        "author_kind": "person",
        "author": "anna",
        "cost_usd": None,
        "created_at": "2026-11-30T11:11:28.812675Z",
    }
    score = {"mean": 0.5, "lower": 0.3, "upper": 0.7, "tasks": 24, "split": "validation"}
    found = {
        "nodes": [
            {**node, "id": "b", "number": 2, "origin": "overlay", "score": score},
            {**node, "id": "a", "number": 1, "score": None},
        ],
        "edges": [
            {"child": "b", "parent": "a", "kind": "parent"},
            {"child": "b", "parent": "a", "kind": "overlay-base"},
            {"child": "b", "parent": "rollout", "kind": "derived-from-rollout"},
        ],
        "truncated": True,
    }
    lines = lineage_words(found).splitlines()
    assert "desk 2   agent  overlay  desk 1  person:anna  0.500 (0.30 to 0.70, 24" in lines[1]
    assert lines[2].split()[4] == "-"
    assert lines[-1] == "(there is more: raise --limit or --depth)"


def test_a_conflict_says_whose_side_is_whose_and_how_to_settle_it() -> None:
    place = {"path": "/k", "line": None, "what": "value", "note": ""}
    found = {
        "id": "c1",
        "kind": "agent",
        "name": "desk",
        "overlay": 2,
        "base": 3,
        "resolution": None,
        "conflicts": [{**place, "base": 0, "ours": 4, "theirs": 1}],
    }
    lines = conflict_words(found).splitlines()
    assert lines[2:5] == [
        "    before both: 0",
        "    learned, version 2: 4",
        "    a person's, version 3: 1",
    ]
    assert "instar artifact settle agent desk c1 --prefer learned" in lines[5]
    settled = conflict_words({**found, "resolution": "merged"})
    assert "(merged)" in settled and "Settle it" not in settled
