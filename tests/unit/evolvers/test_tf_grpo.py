"""Training-Free GRPO: a test for each trait that fails when the trait is taken away."""

from __future__ import annotations

import json
import re

import pytest

from instar_core.base import JsonValue
from instar_core.candidates import Candidate, Lessons
from instar_core.errors import ParseFailure, UserError
from instar_core.messages import Messages
from instar_core.tasks import Splits, Task
from instar_core.testing import ReplyScript
from instar_evolvers.strategies.trials import TrialConfig
from instar_evolvers.testing import ScriptedWorld, run_evolver
from instar_evolvers.tf_grpo import TrainingFreeGRPO, TrainingFreeGRPOConfig
from instar_evolvers.worlds import open_world

SUMMARY, ADVANTAGE = "# Stage: summary", "# Stage: advantage"
UPDATE, CONSOLIDATION = "# Stage: update", "# Stage: consolidation"
GOOD, BAD = "When asked, look twice.", "When asked, look away."


def lessons_of(candidate: Candidate) -> list[str]:
    content = candidate.components["lessons"].content
    return [entry.text for entry in Lessons.model_validate(content).entries]


def findings(*texts: str) -> str:
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(texts, start=1))
    return f"<comparison>c</comparison><reasons>r</reasons><lessons>\n{listed}\n</lessons>"


def adds_of_findings(messages: Messages) -> str:
    """An ADD for every finding that is not a lesson yet."""
    prompt = messages[1].content
    lessons, _, rest = prompt.partition("## Findings")
    operations: list[JsonValue] = [
        {"op": "NONE"} if text in lessons.split("## Tried")[0] else {"op": "ADD", "text": text}
        for text in re.findall(r"^\d+\. (.*)$", rest, flags=re.MULTILINE)
    ]
    return json.dumps(operations)


def first_of_each(messages: Messages) -> str:
    lines = re.findall(r"^\{.*\}$", messages[1].content, flags=re.MULTILINE)
    return json.dumps([json.loads(line) for line in dict.fromkeys(lines)])


def script(*texts: str, **replies: object) -> ReplyScript:
    """A proposer that offers these texts, with single stages replaced by name."""
    return ReplyScript(
        [
            (SUMMARY, replies.get("summary", "<summary>It looked once.</summary>")),  # type: ignore[list-item]
            (ADVANTAGE, replies.get("advantage", findings(*texts))),  # type: ignore[list-item]
            (UPDATE, replies.get("update", adds_of_findings)),  # type: ignore[list-item]
            (CONSOLIDATION, replies.get("consolidation", first_of_each)),  # type: ignore[list-item]
            (lambda messages: True, replies.get("otherwise", adds_of_findings)),  # type: ignore[list-item]
        ]
    )


def small(**changes: object) -> TrainingFreeGRPO:
    fields = {"epochs": 1, "batch_size": 6, "group_size": 4, **changes}
    return TrainingFreeGRPO(TrainingFreeGRPOConfig.model_validate(fields))


def good_lesson_helps(candidate: Candidate, task: Task) -> float:
    held = lessons_of(candidate)
    return min(0.95, max(0.0, 0.4 + 0.5 * (GOOD in held) - 0.3 * (BAD in held)))


def stages(asked: ReplyScript) -> list[str]:
    return [
        found.group(1)
        for messages in asked.seen
        if (found := re.search(r"^# Stage: (\w+)$", messages[1].content, flags=re.MULTILINE))
    ]


def test_the_lesson_that_helps_is_kept_and_the_harmful_one_is_not() -> None:
    world = ScriptedWorld(good_lesson_helps, script(GOOD, BAD))
    night = run_evolver(small(), world)
    assert lessons_of(night.candidate) == [GOOD]
    kept = {str(e.data["text"]): e.data["kept"] for e in night.events if e.kind == "tf_grpo.trial"}
    assert kept == {GOOD: True, BAD: False}


def test_only_the_lessons_change_and_the_tested_form_is_the_one_returned() -> None:
    world = ScriptedWorld(good_lesson_helps, script(GOOD))
    night, seed = run_evolver(small(), world), world.seed_candidate()
    assert night.candidate.digest in {one.candidate.digest for one in world.requests}
    for name, part in seed.components.items():
        if name != "lessons":
            assert night.candidate.components[name] == part
    assert night.candidate.harness == seed.harness
    # Lessons are never put into the task: the tasks practised on are the tasks given.
    given = {task.content_digest for part in world.tasks() for task in part}
    assert {one.task.content_digest for one in world.requests} <= given


def test_groups_in_which_all_pass_cost_nothing_more() -> None:
    asked = script(GOOD)
    world = ScriptedWorld(lambda _, task: 1.0 if task.split == "train" else 0.5, asked)
    night = run_evolver(small(), world)
    assert asked.seen == []
    assert night.candidate.digest == world.seed_candidate().digest
    assert "tf_grpo.all_passed" in night.kinds()


def test_mixed_groups_are_contrasted_summary_by_summary() -> None:
    asked = script(GOOD)
    world = ScriptedWorld(lambda _, task: 0.5, asked)
    run_evolver(small(search_rollouts=90), world)
    contrasted = sum("Compare the better attempts" in m[1].content for m in asked.seen)
    assert contrasted > 0
    assert stages(asked).count("summary") == 4 * contrasted
    prompt = next(m[1].content for m in asked.seen if "Compare the better" in m[1].content)
    assert "It looked once." in prompt
    assert "reward 1.00" in prompt
    assert "reward 0.00" in prompt


def test_groups_in_which_all_fail_learn_from_the_verifiers_feedback() -> None:
    asked = script(GOOD)

    def truth(candidate: Candidate, task: Task) -> float:
        return 0.9 if GOOD in lessons_of(candidate) else 0.0

    world = ScriptedWorld(truth, asked, feedback="You looked only once.")
    night = run_evolver(small(), world)
    first = next(m[1].content for m in asked.seen if ADVANTAGE in m[1].content)
    assert "You looked only once." in first
    # The first batch failed whole, so no summaries were paid for before the first question.
    assert stages(asked)[0] == "advantage"
    assert "tf_grpo.all_failed" in night.kinds()
    assert lessons_of(night.candidate) == [GOOD]


def test_s35_a_dead_start_without_feedback_is_said_at_once_and_ends_the_search() -> None:
    asked = script(GOOD)
    world = ScriptedWorld(lambda *_: 0.0, asked, feedback="")
    night = run_evolver(small(), world)
    assert asked.seen == []
    assert night.spent == 16 + 6 * 4
    (event,) = [event for event in night.events if event.kind == "tf_grpo.all_failed"]
    assert "bootstrap" in event.message


def test_s35_a_perfect_start_is_said_at_once() -> None:
    world = ScriptedWorld(lambda *_: 1.0, script(GOOD))
    night = run_evolver(small(), world)
    assert night.spent == 16
    assert night.kinds() == ["tf_grpo.all_passed"]
    assert night.candidate.digest == world.seed_candidate().digest


def test_an_unknown_id_is_an_error_shown_to_the_model() -> None:
    wrong = json.dumps([{"op": "UPDATE", "id": "G7", "text": GOOD}])
    asked = script(GOOD, update=wrong)
    world = ScriptedWorld(good_lesson_helps, asked)
    night = run_evolver(small(), world)
    shown = [m[-1].content for m in asked.seen if "unknown id" in m[-1].content]
    assert shown
    assert "'G7'" in shown[0]
    assert lessons_of(night.candidate) == [GOOD]


def test_a_batch_is_consolidated_in_one_question_and_an_edit_is_tried_once() -> None:
    asked = script(GOOD, BAD)
    world = ScriptedWorld(lambda *_: 0.5, asked)
    night = run_evolver(small(batch_size=12, search_rollouts=400, trials_per_change=1), world)
    practised = stages(asked).count("consolidation")
    assert 1 <= practised <= 2
    tried = [event.data["text"] for event in night.events if event.kind == "tf_grpo.trial"]
    assert sorted(map(str, tried)) == sorted({GOOD, BAD})


def test_one_bad_consolidation_does_not_lose_the_batch() -> None:
    asked = script(GOOD, BAD, consolidation="no", otherwise="no")
    world = ScriptedWorld(good_lesson_helps, asked)
    night = run_evolver(small(), world)
    assert "tf_grpo.not_consolidated" in night.kinds()
    assert lessons_of(night.candidate) == [GOOD]


def test_one_lost_group_does_not_lose_the_others() -> None:
    replies = ["no", "no", "no", "no", findings(GOOD)]
    asked = script(GOOD, advantage=replies, otherwise="no")
    world = ScriptedWorld(good_lesson_helps, asked)
    night = run_evolver(small(), world)
    assert "tf_grpo.group_lost" in night.kinds()
    assert lessons_of(night.candidate) == [GOOD]


def test_a_proposer_that_is_never_usable_fails_the_run() -> None:
    world = ScriptedWorld(
        lambda *_: 0.5, script(summary="no", advantage="no", update="no", otherwise="no")
    )
    with pytest.raises(ParseFailure, match="'no'"):
        run_evolver(small(), world)


def test_the_token_budget_is_enforced_before_a_rollout_is_spent() -> None:
    long = "When asked, " + "think and " * 300 + "look twice."
    world = ScriptedWorld(lambda *_: 0.5, script(long))
    night = run_evolver(small(token_budget=100), world)
    assert "tf_grpo.over_budget" in night.kinds()
    seed = world.seed_candidate().digest
    assert {one.candidate.digest for one in world.requests} == {seed}


def test_no_more_lessons_than_allowed_are_kept() -> None:
    def truth(candidate: Candidate, task: Task) -> float:
        return 0.1 + 0.4 * min(2, len(lessons_of(candidate)))

    world = ScriptedWorld(truth, script("When one, do one.", "When two, do two."))
    night = run_evolver(small(max_lessons=1), world)
    assert len(lessons_of(night.candidate)) == 1
    assert "tf_grpo.over_budget" in night.kinds()


def test_batches_are_drawn_anew_each_epoch_and_the_same_for_a_seed() -> None:
    def practised(seed: int) -> list[str]:
        world = ScriptedWorld(lambda *_: 0.5, script(advantage=findings("none")))
        run_evolver(small(epochs=2), world, seed=seed)
        order = [one.task.id for one in world.requests if one.task.split == "train"]
        return list(dict.fromkeys(order[: 24 * 4])) + list(dict.fromkeys(order[24 * 4 :]))

    order = practised(1)
    first, second = order[:24], order[24:]
    assert sorted(first) == sorted(second)
    assert first != second
    assert first != sorted(first)
    assert practised(1) == order
    assert practised(2) != order


def test_the_seed_is_returned_when_nothing_is_better_on_validation() -> None:
    def truth(candidate: Candidate, task: Task) -> float:
        """The lesson wins every trial on train tasks and is no use elsewhere."""
        return 0.9 if GOOD in lessons_of(candidate) and task.split == "train" else 0.2

    def certain(candidate: Candidate, task: Task) -> float:
        if task.split == "train":
            return truth(candidate, task)
        return 0.0 if lessons_of(candidate) else float(int(task.id[-2:]) % 2)

    world = ScriptedWorld(certain, script(GOOD))
    night = run_evolver(small(), world)
    assert any(event.data.get("kept") for event in night.events)
    assert night.candidate.digest == world.seed_candidate().digest
    assert "tf_grpo.nothing_better" in night.kinds()


def test_a_lesson_that_does_nothing_is_kept_in_at_most_one_trial_of_fifty() -> None:
    kept = 0
    for seed in range(24):
        world = ScriptedWorld(lambda *_: 0.5, script(f"Do nothing, number {seed}."), spec=None)
        night = run_evolver(small(trial=TrialConfig(max_pairs=60)), world, seed=seed)
        kept += any(event.data.get("kept") for event in night.events)
    assert kept <= 3  # 24 trials at 1/50: more than 3 has probability .002


def test_a_budget_of_eight_rollouts_is_refused_in_words() -> None:
    world = ScriptedWorld(lambda *_: 0.5, script(GOOD))
    with pytest.raises(UserError, match="8 rollouts"):
        run_evolver(small(), world, rollouts=8)
    assert world.requests == []


@pytest.mark.parametrize("budget", [60, 97, 150])
def test_the_search_never_overruns_its_budget(budget: int) -> None:
    world = ScriptedWorld(good_lesson_helps, script(GOOD, BAD))
    assert run_evolver(small(epochs=5), world, rollouts=budget).spent <= budget
    capped = small(epochs=5, search_rollouts=budget)
    assert run_evolver(capped, ScriptedWorld(good_lesson_helps, script(GOOD, BAD))).spent <= budget


def test_an_agent_without_lessons_is_refused_in_words() -> None:
    class Bare(ScriptedWorld):
        def seed_candidate(self) -> Candidate:
            full = super().seed_candidate()
            parts = {k: part for k, part in full.components.items() if k != "lessons"}
            return full.model_copy(update={"components": parts})

    with pytest.raises(UserError, match="lessons"):
        run_evolver(small(), Bare(lambda *_: 0.5, script(GOOD)))


def test_empty_splits_are_refused_in_words() -> None:
    world = ScriptedWorld(lambda *_: 0.5, script(GOOD))
    data = Splits(train=world.tasks().train, validation=())
    with pytest.raises(UserError, match="0 validation"):
        run_evolver(small(), world, data=data)


def test_planted_rules_are_found() -> None:
    world = open_world("world:planted:seed=17,train=96,validation=32")
    night = run_evolver(TrainingFreeGRPO(), world)
    held = lessons_of(night.candidate)
    kinds = [world.lore.statements[text].kind for text in held]
    assert kinds.count("helpful") >= 10
    assert kinds.count("harmful") == 0
    ids = [
        entry.id
        for entry in Lessons.model_validate(night.candidate.components["lessons"].content).entries
    ]
    assert len(set(ids)) == len(ids)
