"""Strategies: replies, prompts, trials, homes, batches, allowance, the factored bandit."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from instar_core.candidates import Candidate, Lesson, Lessons
from instar_core.errors import EnvironmentFault, UserError
from instar_core.lab import Lab
from instar_core.messages import Message, ToolCall
from instar_core.rollouts import Rollout, Score, Step, Trajectory
from instar_core.tasks import Task
from instar_core.usage import Remaining
from instar_evolvers.lab import MemoryBook, MemoryJournal, open_lab
from instar_evolvers.strategies.allowance import Allowance
from instar_evolvers.strategies.batches import shuffled_batches
from instar_evolvers.strategies.demonstrations import demonstration_of, verified
from instar_evolvers.strategies.grpo_prompts import (
    consolidation_messages,
    read_findings,
    render_attempt,
)
from instar_evolvers.strategies.homes import HomeFinder
from instar_evolvers.strategies.playbook import Operation
from instar_evolvers.strategies.replies import json_array_in, numbered_items, section_in
from instar_evolvers.strategies.thompson import FactorBandit
from instar_evolvers.strategies.tokens import estimate_tokens
from instar_evolvers.strategies.trials import Trial, TrialConfig
from instar_evolvers.strategies.validation import Measured, compare
from instar_evolvers.testing import ScriptedWorld
from instar_evolvers.worlds import World, WorldSpec, open_world


async def lab_on(world: World, rollouts: int | None = None) -> Lab:
    lab = open_lab(
        "run",
        world,
        MemoryJournal(Remaining(rollouts=rollouts)),
        MemoryBook(world.tasks().sealed),
        incumbent=world.seed_candidate(),
        seed=3,
    )
    await lab.start()
    return lab


def changed(world: World) -> Candidate:
    return world.seed_candidate().with_component(
        "lessons", {"entries": [{"id": "l-1", "text": "x"}]}
    )


def test_json_arrays_are_found_in_fences_and_words() -> None:
    assert json_array_in('Sure [a]:\n```json\n[{"op": "NONE"}]\n```') == [{"op": "NONE"}]
    assert json_array_in("[]") == []
    with pytest.raises(ValueError, match="no JSON array"):
        json_array_in('{"op": "ADD"}')


def test_sections_and_items_are_read_tolerantly_and_missing_ones_told() -> None:
    assert section_in("x <Lessons>\n a \n</Lessons>", "lessons") == "a"
    assert numbered_items("1. one\n2) two\n- three\nfour\n* none.") == ("one", "two", "three")
    assert read_findings("<lessons>none</lessons>") == ()
    with pytest.raises(ValueError, match="<lessons>"):
        read_findings("<lessons></lessons>")


def test_consolidation_shows_operations_under_the_id_that_they_touch() -> None:
    lessons = Lessons(entries=(Lesson(id="l-1", text="one"), Lesson(id="l-2", text="two")))
    operations = [
        Operation(op="DELETE", ids=("l-2",)),
        Operation(op="ADD", text="new"),
        Operation(op="UPDATE", ids=("l-2",), text="too"),
    ]
    prompt = consolidation_messages(lessons, operations, max_lessons=5, token_budget=90)[1].content
    under_two = prompt.split("### l-2")[1].split("###")[0]
    assert '"DELETE"' in under_two
    assert '"too"' in under_two
    assert '"new"' in prompt.split("### (new)")[1]
    assert "90 tokens" in prompt


def test_an_attempt_is_rendered_with_its_calls_and_cut_when_long() -> None:
    world = open_world("world:planted:seed=1")
    step = Step(
        index=0,
        kind="model",
        message=Message(
            role="assistant",
            content="w" * 9000,
            tool_calls=(ToolCall(name="look", arguments={"at": "it"}),),
        ),
    )
    rollout = Rollout(
        id="r",
        task_id="t",
        candidate_digest=world.seed_candidate().digest,
        draw=0,
        trajectory=Trajectory(steps=(step,)),
        score=Score(reward=1.0),
    )
    assert len(render_attempt(rollout)) == 6000
    short = step.model_copy(update={"message": step.message.model_copy(update={"content": "hm"})})
    brief = rollout.model_copy(update={"trajectory": Trajectory(steps=(short,), answer="42")})
    assert render_attempt(brief).splitlines() == [
        "assistant: hm",
        'assistant calls look({"at":"it"})',
        "ended: answered",
        "answer: 42",
    ]


def test_token_estimates_grow_with_text_and_count_short_words() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("a b c d e f") == 6
    assert estimate_tokens("x" * 400) == 100


@pytest.mark.parametrize(("gain", "wins"), [(0.5, True), (0.0, False), (-0.3, False)])
def test_a_trial_is_won_by_a_real_gain_and_stops_early_without_one(gain: float, wins: bool) -> None:
    def truth(candidate: Candidate, task: Task) -> float:
        entries = Lessons.model_validate(candidate.components["lessons"].content).entries
        return 0.35 + gain * bool(entries)

    async def run() -> Trial:
        world = ScriptedWorld(truth)
        lab, trial = await lab_on(world), Trial(TrialConfig())
        arms = (changed(world), world.seed_candidate())
        won = await trial.run(lab, Allowance(lab, None), arms, world.tasks().train[:7])
        assert won is trial.won
        return trial

    trial = asyncio.run(run())
    assert trial.won is wins
    assert 0 < trial.pairs < 200
    assert trial.runs == 1


def test_a_trial_keeps_its_evidence_for_the_next_time_and_its_allowance() -> None:
    async def run() -> None:
        world = ScriptedWorld(lambda *_: 0.5)
        lab, trial = await lab_on(world), Trial(TrialConfig(max_pairs=20))
        arms, tasks = (changed(world), world.seed_candidate()), world.tasks().train
        small = Allowance(lab, 25)
        assert not await trial.run(lab, small, arms, tasks)
        assert trial.pairs == 10  # a second look of 20 rollouts would not fit
        await trial.run(lab, Allowance(lab, None), arms, tasks)
        assert 10 < trial.pairs <= 30
        assert trial.runs == 2

    asyncio.run(run())


def test_a_shrinking_change_need_only_lose_nothing() -> None:
    async def won(loss: float) -> bool:
        def truth(candidate: Candidate, task: Task) -> float:
            entries = Lessons.model_validate(candidate.components["lessons"].content).entries
            return 0.97 - loss * bool(entries)

        world = ScriptedWorld(truth)
        lab, trial = await lab_on(world), Trial(TrialConfig(), shrinks=True)
        arms = (changed(world), world.seed_candidate())
        return await trial.run(lab, Allowance(lab, None), arms, world.tasks().train)

    assert asyncio.run(won(0.0))
    assert not asyncio.run(won(0.3))


def test_homes_are_the_tasks_that_a_text_speaks_about() -> None:
    async def run() -> float:
        world = open_world("world:planted:seed=14")
        homes = HomeFinder(await lab_on(world), world.tasks().train, 12)
        hits = []
        for family in world.lore.families.values():
            found = await homes.home_of(family.rules[0].text)
            assert len(found) == 12
            hits += [task.slice == family.topic for task in found]
        return sum(hits) / len(hits)

    assert asyncio.run(run()) > 0.75


def test_batches_hold_every_task_once() -> None:
    tasks = open_world("world:null:seed=1").tasks().train[:10]
    batches = shuffled_batches(tasks, 4, Random(5))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(task.id for batch in batches for task in batch) == [task.id for task in tasks]
    assert batches != shuffled_batches(tasks, 4, Random(6))


def test_an_allowance_minds_both_its_own_limit_and_the_runs_budget() -> None:
    async def run() -> None:
        world = open_world("world:null:seed=1")
        lab = await lab_on(world, rollouts=50)
        own = Allowance(lab, 30)
        assert own.left == 30
        await own.rollouts(world.seed_candidate(), world.tasks().train[:10], n=2)
        assert (own.spent, own.left) == (20, 10)
        assert Allowance(lab, 40).left == 30
        assert Allowance(lab, None).left == 30
        with pytest.raises(UserError, match="at least 31"):
            Allowance(lab, None).require(31, "search")
        assert Allowance(await lab_on(world), None).left > 10**6

    asyncio.run(run())


def scored(task: str, reward: float | None) -> Rollout:
    score = None if reward is None else Score(reward=reward)
    return Rollout(id=task, task_id=task, candidate_digest="d", draw=0, score=score, error="away")


def test_measurements_leave_missing_scores_out_and_never_read_them_as_zero() -> None:
    candidate = open_world("world:null:seed=1").seed_candidate()
    new = Measured(candidate, [scored("a", 1.0), scored("a", 0.0), scored("b", None)])
    old = Measured(candidate, [scored("a", 0.0), scored("b", 1.0)])
    assert (new.mean, old.mean) == (0.5, 0.5)
    assert compare(new, old) == (0.5, 0.0)
    with pytest.raises(EnvironmentFault, match="away"):
        Measured(candidate, [scored("a", None)])


def test_demonstrations_show_only_what_worked() -> None:
    tasks = open_world("world:planted:seed=1").tasks().train[:2]
    call, wrong = ToolCall(name="route", arguments={"desk": "x"}), ToolCall(name="oops")

    def tool(index: int, made: ToolCall, *, failed: bool) -> Step:
        message = Message(role="tool", content="done")
        return Step(index=index, kind="tool", message=message, tool_call=made, is_error=failed)

    steps = (tool(0, wrong, failed=True), tool(1, call, failed=False))
    good = scored(tasks[0].id, 1.0).model_copy(update={"trajectory": Trajectory(steps=steps)})
    bad = scored(tasks[1].id, 0.5).model_copy(update={"trajectory": Trajectory(steps=steps)})
    (case,) = verified(tasks, [good, bad, good], 1.0)
    assert case.actions == (call,)
    assert (case.input, case.answer, case.source) == (tasks[0].input, None, good.id)
    assert demonstration_of(tasks[0], scored(tasks[0].id, 1.0)) is None
    answered = tasks[0].model_copy(update={"reference_answer": "42"})
    replayed = scored(tasks[0].id, 1.0).model_copy(update={"arm": "reference"})
    replay = demonstration_of(answered, replayed)
    assert replay is not None
    assert (replay.answer, replay.source) == ("42", f"reference:{tasks[0].id}")


def test_the_bandit_shares_strength_between_relatives_and_finds_the_best() -> None:
    arms = [(kind, k) for kind in ("near", "fixed") for k in (1, 2, 3)]
    bandit = FactorBandit(arms)
    bandit.update(arms.index(("near", 1)), [1.0] * 8)
    bandit.update(arms.index(("fixed", 1)), [0.0] * 8)
    untried_near, untried_fixed = arms.index(("near", 3)), arms.index(("fixed", 3))
    assert bandit.mean(untried_near) > bandit.mean(untried_fixed) + 0.3
    assert bandit.tries(untried_near) == 0

    rng, truth = Random(7), [0.3, 0.8, 0.5, 0.2, 0.2, 0.2]
    learning = FactorBandit(arms)
    for _ in range(60):
        for index in learning.choose(2, rng):
            learning.update(index, [float(rng.random() < truth[index])])
    assert max(range(6), key=learning.mean) == 1
    assert learning.tries(1) > learning.tries(5)


def test_planted_worlds_are_cheap_to_open_twice() -> None:
    spec = WorldSpec(name="planted", seed=2)
    assert World(spec).tasks() is World(spec).tasks()
