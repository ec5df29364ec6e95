"""Task sets: strict reading, named problems, splits by group."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.rollouts.reasoning_gym_source import open_task_source
from instar.rollouts.taskset import SplitShares, load_task_set, parse_task_set, split_of_group
from instar.rollouts.verifiers.registry import find_verifier
from instar.runtime.tools.config import TestBinding
from instar_core.errors import TaskFileError, UserError
from instar_core.rollouts import Trajectory


def line(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"t{number}",
        "input": f"What is {number}?",
        "verifier": {"name": "exact", "config": {"answer": str(number)}},
        **changes,
    }


def lines(*values: Any) -> bytes:
    return "\n".join(
        value if isinstance(value, str) else json.dumps(value) for value in values
    ).encode()


def problems(*values: Any) -> str:
    with pytest.raises(TaskFileError) as caught:
        parse_task_set(lines(*values), source="tasks.jsonl")
    assert "nothing was imported" in caught.value.message
    return caught.value.message


def test_a_file_with_header_splits_and_groups(tmp_path: Path) -> None:
    header = {
        "task_set": {
            "name": "desk",
            "bindings": {"live": "sandbox", "own": {"template": {"a.db": "data/a.db"}}},
        }
    }
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(
        lines(
            header,
            line(1, split="train", group="a"),
            "",
            line(2, split="validation"),
            line(3, split="sealed", group="c"),
            line(4, split="sealed", group="c", input="more"),
        )
    )
    found = load_task_set(path)
    assert found.name == "desk"
    assert [task.id for task in found.of("sealed")] == ["t3", "t4"]
    assert found.of("validation")[0].group == "t2"
    assert [len(group) for group in found.sealed_groups] == [2]
    assert found.visible.by_id.keys() == {"t1", "t2"}
    assert found.bindings["live"] == "sandbox"
    own = found.bindings["own"]
    assert isinstance(own, TestBinding)
    assert own.source("a.db") == tmp_path / "data" / "a.db"


def test_a_name_alone_is_enough_for_a_verifier_that_needs_no_more() -> None:
    found = parse_task_set(lines(line(1, verifier="exact", reference_answer="1")))
    assert found.tasks[0].verifier.name == "exact"


def test_groups_without_a_split_are_assigned_and_stay_together() -> None:
    values = [line(number, group=f"g{number // 3}") for number in range(600)]
    found = parse_task_set(lines(*values))
    homes: dict[str, set[str]] = {}
    for task in found.tasks:
        homes.setdefault(task.group, set()).add(task.split)
    assert all(len(home) == 1 for home in homes.values())
    counts = Counter(task.split for task in found.tasks)
    assert 150 < counts["train"] < 330
    assert 60 < counts["validation"] < 190
    more = parse_task_set(lines(*values, line(1_000)))
    assert more.tasks[:600] == found.tasks


def test_a_group_follows_the_split_that_one_of_its_tasks_names() -> None:
    found = parse_task_set(lines(line(1, group="g"), line(2, group="g", split="validation")))
    assert [task.split for task in found.tasks] == ["validation", "validation"]


@given(st.text(max_size=20))
def test_the_split_of_a_group_is_a_fixed_function(group: str) -> None:
    shares = SplitShares(train=1, validation=0, sealed=0)
    assert split_of_group(group, shares) == "train"
    assert split_of_group(group, SplitShares()) == split_of_group(group, SplitShares())


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ('{"id": "x"', "line 2: not JSON at column"),
        ("[1]", "line 2: [1] is not a JSON object"),
        ('{"id": "a", "id": "b"}', "line 2: the key 'id' is given twice"),
        ('{"id": NaN}', "line 2: NaN is not JSON"),
        (line(2, inputs="x"), "line 2: inputs: unknown key (known: id, input, split"),
        ({"id": "x", "verifier": "exact"}, "line 2: input: Field required"),
        (line(2, split="test"), "line 2: split: Input should be 'train', 'validation' or 'sealed'"),
        (line(2, verifier="exactly"), "line 2: there is no verifier 'exactly'; there are: exact"),
        (line(2, verifier="exact"), "line 2: verifier 'exact': needs 'answer'"),
        (
            line(2, verifier={"name": "numeric", "config": {"tol": 1}}),
            "line 2: verifier 'numeric': tol: Extra inputs are not permitted (keys: after, answer",
        ),
        (
            line(2, verifier={"name": "state", "config": {"expect": {"a": 1}}}),
            "line 2: verifier 'state' reads the environment's state, but the file's header names "
            "no 'bindings'",
        ),
        (line(1, input="other"), "line 2: id 't1' was used on line 1 already"),
    ],
)
def test_each_mistake_is_named_with_its_line(bad: Any, words: str) -> None:
    assert words in problems(line(1), bad)


def test_what_is_tested_must_not_have_been_seen() -> None:
    found = problems(
        line(1, split="train", group="a"),
        line(2, split="sealed", group="a"),
        line(3, split="sealed", input="what  IS 1?"),
    )
    assert "line 2: group 'a' is in split 'sealed' here and in 'train' on line 1" in found
    assert "line 3: the input of line 1 (split 'train') is repeated in split 'sealed'" in found


def test_a_broken_header_is_named() -> None:
    found = problems({"task_set": {"name": "x", "binding": {}}}, line(1))
    assert "line 1: task_set: binding: unknown key (known: name, description, bindings" in found


def test_bytes_that_are_not_utf8_are_named() -> None:
    with pytest.raises(TaskFileError, match="line 2: not UTF-8: byte 3 is 0xff"):
        parse_task_set(lines(line(1)) + b'\n{"\xff"}')


def test_twenty_problems_are_shown_and_the_rest_counted() -> None:
    found = problems(*({"id": str(number)} for number in range(30)))
    assert found.count("\n  line ") == 20
    assert "and 40 more" in found


def test_empty_and_missing_files_are_refused(tmp_path: Path) -> None:
    assert "there is no task in it" in problems("")
    with pytest.raises(TaskFileError, match="cannot be read: No such file"):
        load_task_set(tmp_path / "none.jsonl")


def test_reasoning_gym_is_a_task_source_whose_tasks_prove_themselves() -> None:
    found = open_task_source("reasoning_gym:letter_counting?size=20&seed=3&max_words=7")
    assert [len(found.of(split)) for split in ("train", "validation", "sealed")] == [8, 4, 8]
    verifier = find_verifier("reasoning_gym")
    for task in found.tasks:
        verifier.check(task)
        gold = verifier.score(task, Trajectory(answer=f"Answer: {task.reference_answer}"))
        assert gold.reward == 1.0
        assert verifier.score(task, Trajectory(answer="")).reward == 0.0
        assert verifier.score(task, Trajectory(answer="zebra")).reward == 0.0
    assert open_task_source("reasoning_gym:letter_counting?size=20&seed=3&max_words=7") == found
    other = open_task_source("reasoning_gym:letter_counting?size=20&seed=4&max_words=7")
    assert {task.input for task in other.tasks}.isdisjoint(task.input for task in found.tasks)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("reasoning_gym:nope", "no dataset 'nope'; it has: .*letter_counting"),
        ("reasoning_gym:gcd?size=x", "size is 'x'"),
        ("reasoning_gym:gcd?size=1", "no task for"),
        ("reasoning_gym:gcd?flavour=1", "refuses 'gcd'"),
    ],
)
def test_specs_that_mean_nothing_are_refused(spec: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        open_task_source(spec)


def test_a_question_that_the_library_no_longer_gives_is_not_scored() -> None:
    task = open_task_source("reasoning_gym:gcd?size=10").tasks[0]
    changed = task.model_copy(update={"input": "something else"})
    with pytest.raises(Exception, match="another question"):
        find_verifier("reasoning_gym").check(changed)


@pytest.mark.parametrize(
    ("spelled", "words"), [(r"\ud800", "half of a character"), (r"a\u0000", "NUL character")]
)
def test_text_that_cannot_be_stored_is_named_with_its_line(spelled: str, words: str) -> None:
    line = '{"id": "a", "input": "' + spelled + '", "split": "train", "verifier": "exact"}'
    with pytest.raises(TaskFileError, match=f"line 2: .*{words}"):
        parse_task_set(f"\n{line}\n".encode())


def test_a_backslash_in_text_is_no_escape() -> None:
    line = (
        r'{"id": "a", "input": "say \\u0000 twice", "split": "train",'
        r' "verifier": {"name": "exact", "config": {"answer": "x"}}}'
    )
    assert parse_task_set(line.encode()).tasks[0].input == r"say \u0000 twice"
