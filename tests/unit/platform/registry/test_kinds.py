"""Kinds: what each takes and refuses, in words that name the place and the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.registry.kinds import list_kinds, open_kind
from instar.registry.kinds.agent import agent_content, candidate_of
from instar.registry.kinds.lessons import render_lessons
from instar.registry.kinds.prompt import fill_prompt
from instar_core.base import JsonValue, content_hash
from instar_core.candidates import ARTIFACT_KINDS, Lesson, Lessons
from instar_core.errors import InvalidContent, NotFoundError, UserError
from instar_core.kinds import check_content
from instar_skills.check import check_skill

STEP = {"id": "a", "role": "r"}
WORK = {"roles": {"r": {"model": "m"}}, "steps": [STEP]}
RULE = {"id": "r", "text": "permit (principal, action, resource);"}
JUDGE = {"model": "m", "instructions": "Judge."}
BAD: list[tuple[str, Any, str]] = [
    ("prompt", 7, "a prompt is a text"),
    ("prompt", {"text": "{{who}}", "variables": {}}, "who.* is used and not declared"),
    ("prompt", {"text": "x", "variables": {"who": {}}}, "'who' is declared and not used"),
    ("prompt", {"text": "{{a-b}}", "variables": {"a-b": {}}}, "cannot be a variable's name"),
    ("prompt", {"text": "x", "varables": {}}, "no such field.*Did you mean 'variables'"),
    ("lessons", {"entries": [{"id": "L", "text": " "}]}, "'L' has no text"),
    ("lessons", {"entries": [{"id": "L", "text": "a"}] * 2}, "2 entries have the id 'L'"),
    ("demonstrations", {"pool": [{"id": "d", "input": "x"}]}, "neither an action nor an answer"),
    ("demonstrations", {"order": ["d"]}, "'d' is ordered but not in the pool"),
    ("memory_bank", {"entries": [{"id": "m", "text": ""}]}, "entries.0.text"),
    (
        "memory_bank",
        {"entries": [{"id": "m", "text": "x", "created_at": "2026-01-01T00:00:00"}]},
        "without a zone",
    ),
    (
        "memory_bank",
        {
            "entries": [
                {
                    "id": "m",
                    "text": "x",
                    "closed_at": "2026-01-01T00:00:00Z",
                    "superseded_by": "n",
                }
            ]
        },
        "no other entry",
    ),
    ("tool_definition", [], "a tool definition is an object"),
    ("tool_definition", {"name": "t", "parameters": {"type": "array"}}, "type 'array'"),
    ("tool_definition", {"name": "t", "description": "x"}, "parameters"),
    (
        "tool_definition",
        {"name": "t", "parameters": {"$ref": "http://x/y"}},
        "only references inside it",
    ),
    ("tool_definition", {"close": 7}, "'close' is 7"),
    ("middleware", {"steps": []}, "steps"),
    ("middleware", {"steps": [{"id": "s", "on": "end"}]}, "either 'use' or 'code'"),
    ("middleware", {"steps": [{"id": "s", "on": "end", "code": "def ("}]}, "no Python"),
    ("policy", {"rules": [{"id": "r", "text": "allow everything"}]}, "starts with 'permit'"),
    ("policy", {"rules": [RULE, RULE]}, "two rules have the id 'r'"),
    ("policy", {"temporal": [{"id": "t", "then": ["pay"]}]}, "needs 'after'"),
    ("workflow", {**WORK, "steps": [{**STEP, "role": "x"}]}, "role 'x'; roles: r"),
    ("workflow", {**WORK, "steps": [{**STEP, "needs": ["b"]}]}, "needs 'b', which is no step"),
    (
        "workflow",
        {**WORK, "steps": [{**STEP, "needs": ["b"]}, {"id": "b", "role": "r", "needs": ["a"]}]},
        "steps wait for each other",
    ),
    ("workflow", {**WORK, "steps": [{**STEP, "input": "{{steps.b}}"}]}, "neither the input"),
    ("workflow", {**WORK, "roles": {"r": {"agent": "a", "model": "m"}}}, "either 'agent' or"),
    ("agent", {"components": {}, "harnes": {}}, "Did you mean 'harness'"),
    (
        "agent",
        {"components": {"a": {"kind": "instructions", "content": 1}}, "harness": {"model": "m"}},
        "'a' of kind 'instructions' must be a text",
    ),
    (
        "agent",
        {"components": {}, "harness": {"model": "m", "tools": [{"name": "t"}]}},
        "no model is shown a tool",
    ),
    ("environment", {"backend": "moon"}, "backend"),
    ("environment", {"servers": {"d": {"by": "effect_free", "binding": "x"}}}, "effect_free"),
    ("evaluator", {}, "either a 'verifier' or a 'judge'"),
    ("evaluator", {"judge": {**JUDGE, "scale": [1, 0]}}, "does not rise"),
    ("adapter", {"base_model": "b", "config": {"peft_type": "MAGIC"}}, "peft_type"),
    (
        "adapter",
        {
            "base_model": "b",
            "config": {"peft_type": "LORA"},
            "files": {"../x": {"sha256": "ab" * 32, "size": 1}},
        },
        "leads out of its folder",
    ),
    ("skill", {"files": {}}, "needs the file 'SKILL.md'"),
    ("skill", {"files": {"SKILL.md": "no header"}}, "does not start with a header"),
    ("skill", {"files": {"SKILL.md": "---\nname: a\n---\n"}}, "no description"),
    ("skill", {"files": {"SKILL.md": {"base64": "?"}}}, "no valid base64"),
    ("skill", {"file": {}}, "a skill is a folder"),
]


@pytest.mark.parametrize(("kind", "content", "words"), BAD)
def test_what_is_no_content_is_refused_in_words(kind: str, content: Any, words: str) -> None:
    with pytest.raises(InvalidContent, match=f"(?s){words}"):
        check_content(open_kind(kind), content)


def test_s103_what_is_superseded_is_closed_and_kept_and_its_successor_holds() -> None:
    kind = open_kind("memory_bank")
    content: Any = check_content(kind, kind.examples()[1])
    old, new = content["entries"]
    assert old["closed_at"] and old["superseded_by"] == new["id"] and not new["closed_at"]
    # Both are kept; by the successor alone the bank is found, and the files hold both.
    found = kind.search_text(content)
    assert new["text"] in found and old["text"] not in found
    assert b"French" in kind.files(content)["entries.jsonl"]
    open_ended = {**old, "closed_at": ""}
    with pytest.raises(InvalidContent, match="superseded but has no closed_at"):
        kind.check({"entries": [open_ended, new]})
    lost: Any = {"entries": [old]}
    with pytest.raises(InvalidContent, match="no other entry of this bank"):
        kind.check(lost)


def test_sealed_tasks_go_in_and_do_not_come_out() -> None:
    kind = open_kind("task_set")
    content = check_content(kind, kind.examples()[0])
    shown = kind.shown(content)
    assert isinstance(shown, dict) and isinstance(shown["tasks"], list)
    assert len(shown["tasks"]) == 2
    assert "case 3" in str(content) and "case 3" not in str(shown) + kind.search_text(content)
    repeated: Any = {"tasks": [shown["tasks"][0]] * 2}
    with pytest.raises(UserError, match="2 tasks have the id"):
        kind.check(repeated)


@pytest.mark.parametrize("name", list_kinds())
def test_files_and_canonical_form_are_stable(name: str) -> None:
    kind = open_kind(name)
    for example in kind.examples():
        content = check_content(kind, example)
        assert kind.check(content) == content
        files = kind.files(content)
        assert kind.read_files(files) == content and kind.files(kind.read_files(files)) == files
        with pytest.raises(InvalidContent):
            kind.read_files({"nothing.of.ours": b""})


def test_an_agent_keeps_the_order_of_its_components() -> None:
    kind = open_kind("agent")
    parts: Any = {
        name: {"kind": "instructions", "content": name} for name in ("zebra", "ant", "bee")
    }
    content = kind.check({"components": parts, "harness": {"model": "m"}})
    candidate = candidate_of(content)
    assert list(candidate.components) == ["zebra", "ant", "bee"]
    assert agent_content(candidate) == content
    assert candidate_of(kind.check(agent_content(candidate))).digest == candidate.digest


def test_every_kind_of_component_has_a_kind_of_artifact() -> None:
    assert set(ARTIFACT_KINDS.values()) <= set(list_kinds())


def test_lessons_are_rendered_line_by_line() -> None:
    lessons = Lessons(entries=(Lesson(id="L1", text=" Do\n this. "), Lesson(id="L2", text="That")))
    assert render_lessons(lessons) == "Lessons from earlier work:\n[L1] Do this.\n[L2] That"
    assert render_lessons(Lessons()) == ""


def test_a_prompt_is_filled_with_values_as_they_are() -> None:
    content = open_kind("prompt").check(
        {"text": "Hi {{who}}, {{ what }}!", "variables": {"who": {"default": "Ada"}, "what": {}}}
    )
    assert fill_prompt(content, {"what": "{{who}}"}) == "Hi Ada, {{who}}!"
    with pytest.raises(InvalidContent, match="'what' has no value"):
        fill_prompt(content, {})
    with pytest.raises(InvalidContent, match="Did you mean 'what'"):
        fill_prompt(content, {"whta": "x"})
    assert fill_prompt("plain {{text}}", {}) == "plain {{text}}"


SKILL_MD = "---\nname: sort\ndescription: Sorts.\n---\nBody\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SKILL_MD.replace("Sorts.", "Use: it sorts"), "YAML only after quoting a value"),
        (SKILL_MD.replace("Sorts.", "[draft] sorts"), "YAML only after quoting a value"),
        ("\ufeff" + SKILL_MD, "byte-order mark"),
        (SKILL_MD.replace("name: sort", "name: Sort"), "capital letters"),
        (SKILL_MD.replace("name: sort", "name: so--rt"), "hyphen"),
        (SKILL_MD.replace("name: sort", "name: other"), "not that of its folder, 'sort'"),
        (SKILL_MD.replace("name: sort\n", ""), "no name"),
        (SKILL_MD.replace("---\nBody", "hint: x\n---\nBody"), "'hint' is not one of"),
        (SKILL_MD.replace("Sorts.", "x" * 1025), "1025 characters"),
        (SKILL_MD.replace("---\nBody", "name: sort\n---\nBody"), "is there twice"),
        (SKILL_MD.replace("---\nBody", "allowed-tools: [a, b]\n---\nBody"), "is no text"),
    ],
)
def test_s127_an_odd_skill_is_kept_byte_for_byte_and_its_faults_listed(
    text: str, words: str
) -> None:
    kind = open_kind("skill")
    content = kind.check({"files": {"SKILL.md": text}})
    assert kind.files(content) == {"SKILL.md": text.encode()}
    assert any(words in one for one in kind.problems("sort", content)), kind.problems("x", content)
    with pytest.raises(InvalidContent, match="not in the strict format"):
        check_skill(kind.files(content), folder="sort", strict=True)


def test_s128_line_ends_of_other_systems_are_read_and_kept() -> None:
    kind = open_kind("skill")
    text = SKILL_MD.replace("\n", "\r\n")
    content = kind.check({"files": {"SKILL.md": text}})
    assert kind.problems("sort", content) == ()
    assert kind.files(content)["SKILL.md"] == text.encode()
    assert kind.listing("sort", "", content) == "sort: Sorts."
    assert check_skill(kind.files(content), folder="sort", strict=True).strict


@pytest.mark.parametrize(
    "header",
    ["- a\n- b", "\t: x", "a: 'x", "a:\n  &x [1]\nb:\n  *x"],
)
def test_a_hopeless_header_is_refused_with_its_line(header: str) -> None:
    text = f"---\nname: s\ndescription: d\n{header}\n---\n"
    with pytest.raises(InvalidContent, match="no valid YAML"):
        open_kind("skill").check({"files": {"SKILL.md": text}})


def test_scripts_are_named_with_their_hashes() -> None:
    files: Any = {
        "SKILL.md": SKILL_MD,
        "scripts/a.py": "print()",
        "run": "#!/bin/sh\n",
        "x.md": "#!",
    }
    kind = open_kind("skill")
    found = check_skill(kind.files(kind.check({"files": files}))).scripts
    assert found["scripts/a.py"] == content_hash(b"print()")
    assert sorted(found) == ["run", "scripts/a.py", "x.md"]


@given(st.dictionaries(st.text("abc", min_size=1, max_size=5), st.binary(max_size=40), max_size=4))
def test_bytes_of_a_skill_come_out_as_they_went_in(extra: dict[str, bytes]) -> None:
    kind = open_kind("skill")
    files = {"SKILL.md": SKILL_MD.encode(), **{f"f-{name}": data for name, data in extra.items()}}
    assert kind.files(kind.read_files(files)) == files


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.sampled_from(list_kinds()), json_values)
def test_whatever_comes_is_taken_or_refused_in_words(name: str, content: Any) -> None:
    kind = open_kind(name)
    try:
        checked = check_content(kind, content)
    except UserError as error:
        assert str(error)
        return
    assert kind.check(checked) == checked
    kind.listing("n", "", checked)
    kind.search_text(checked)
    kind.components(checked)
    kind.problems("n", checked)


def test_an_agent_has_no_more_components_than_can_be_kept_apart() -> None:
    parts: list[JsonValue] = [
        {"name": f"c{number}", "kind": "instructions", "content": "x"} for number in range(201)
    ]
    whole: JsonValue = {"components": [*parts], "harness": {"model": "scripted/tell"}}
    with pytest.raises(InvalidContent, match="201 components cannot be saved; at most 200"):
        check_content(open_kind("agent"), whole)
    twice: JsonValue = {"components": [parts[0], parts[0]], "harness": {"model": "scripted/tell"}}
    with pytest.raises(InvalidContent, match="two components have the name 'c0'"):
        check_content(open_kind("agent"), twice)
    check_content(
        open_kind("agent"), {"components": parts[:200], "harness": {"model": "scripted/tell"}}
    )


def test_installed_packages_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    list_kinds()

    def again(**_: str) -> None:
        raise AssertionError("the packages were looked through again")

    monkeypatch.setattr("instar.registry.kinds.entry_points", again)
    assert list_kinds()[0] == "prompt"
    with pytest.raises(NotFoundError, match="There is no kind 'promt'"):
        open_kind("promt")
