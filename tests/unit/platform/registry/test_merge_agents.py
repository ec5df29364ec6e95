"""Merging agents: each component in the form of its kind, the harness place by place."""

from __future__ import annotations

from typing import Any

from instar.registry.merge_agents import merge_candidates, same_candidate
from instar_core.candidates import Candidate, Component, Harness


def _agent(model: str = "scripted/desk", **parts: Component) -> Candidate:
    return Candidate(components=parts, harness=Harness(model=model))


def _prompt(text: str, **more: Any) -> Component:
    return Component(kind="instructions", content=text, **more)


_BASE = _agent(prompt=_prompt("Be kind.\nNever guess.\n"), note=_prompt("Sign.\n"))


def test_a_side_that_changed_nothing_takes_the_other() -> None:
    other = _agent("scripted/x", extra=_prompt("New."), prompt=_prompt("Other.\n", owner="job"))
    for sides in ((_BASE, _BASE, other), (_BASE, other, _BASE), (_BASE, other, other)):
        merged = merge_candidates(*sides)
        assert merged.candidate is not None and not merged.conflicts
        assert same_candidate(merged.candidate, other)
        assert merged.candidate.digest == other.digest
        assert merged.candidate.parents == (sides[1].digest, sides[2].digest)


def test_changes_of_different_components_and_of_different_lines_are_both_kept() -> None:
    ours = _agent(prompt=_prompt("Be kind.\nNever guess.\nBe brief.\n"), note=_prompt("Sign.\n"))
    theirs = _agent(
        "scripted/x",
        prompt=_prompt("Be very kind.\nNever guess.\n"),
        note=_prompt("Sign it.\n", budget_tokens=50),
    )
    found = merge_candidates(_BASE, ours, theirs).candidate
    assert found is not None
    assert found.components["prompt"].content == "Be very kind.\nNever guess.\nBe brief.\n"
    assert found.components["note"] == theirs.components["note"]
    assert found.harness.model == "scripted/x"
    assert list(found.components) == ["prompt", "note"]


def test_conflicts_name_component_or_harness_and_a_preferred_side_settles_them() -> None:
    ours = _agent("scripted/a", prompt=_prompt("Be kind.\nNever err.\n"))
    theirs = _agent(
        "scripted/b",
        prompt=_prompt("Be kind.\nAlways ask.\n"),
        note=_prompt("Sign your name.\n"),
    )
    found = merge_candidates(_BASE, ours, theirs)
    assert found.candidate is None
    told = {(one.path, one.what, one.missing) for one in found.conflicts}
    assert told == {
        ("/components/prompt/content", "text", ()),
        ("/components/note", "presence", ("ours",)),
        ("/harness/model", "text", ()),
    }
    settled = merge_candidates(_BASE, ours, theirs, prefer="theirs")
    assert settled.candidate is not None
    assert same_candidate(settled.candidate, theirs)
    assert {one.path for one in settled.dropped} == {path for path, _, _ in told}
    mine = merge_candidates(_BASE, ours, theirs, prefer="ours")
    assert mine.candidate is not None and same_candidate(mine.candidate, ours)


def test_two_orders_of_components_are_a_conflict() -> None:
    a, b, c = _prompt("A."), _prompt("B."), _prompt("C.")
    base, ours, theirs = _agent(a=a, b=b, c=c), _agent(c=c, a=a, b=b), _agent(b=b, a=a, c=c)
    (conflict,) = merge_candidates(base, ours, theirs).conflicts
    assert (conflict.path, conflict.what) == ("/components#order", "order")
    moved = merge_candidates(base, ours, base).candidate
    assert moved is not None and list(moved.components) == ["c", "a", "b"]
