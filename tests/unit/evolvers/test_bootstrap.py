"""Bootstrap: a test for each trait that fails when the trait is taken away."""

from __future__ import annotations

import pytest

from instar_core.candidates import Candidate, Demonstration, Demonstrations
from instar_core.errors import UserError
from instar_core.messages import ToolCall
from instar_core.tasks import Splits, Task
from instar_evolvers.bootstrap import (
    Bootstrap,
    BootstrapConfig,
    Choice,
    demonstrations_for,
    list_choices,
)
from instar_evolvers.testing import ScriptedWorld, run_evolver
from instar_evolvers.worlds import WorldSpec, open_world

PLANTED = WorldSpec(name="planted", seed=6, train=96, validation=48)


def shown(candidate: Candidate) -> Demonstrations:
    return Demonstrations.model_validate(candidate.components["demonstrations"].content)


def config(**changes: object) -> Bootstrap:
    return Bootstrap(BootstrapConfig.model_validate(changes))


def without_references(world: ScriptedWorld) -> Splits:
    tasks = world.tasks()
    train = tuple(task.model_copy(update={"reference_actions": ()}) for task in tasks.train)
    return Splits(train=train, validation=tasks.validation)


def nearest_is_best(candidate: Candidate, task: Task) -> float:
    """The sample agent in miniature: nothing without demonstrations, most with few nearest ones."""
    demos = shown(candidate)
    if not demos.pool:
        return 0.0
    if demos.retrieval == "fixed":
        return 0.35
    return {1: 0.75, 2: 0.85, 3: 0.9, 4: 0.8, 6: 0.6}[demos.k]


def test_first_demonstrations_are_references_that_passed_the_verifier() -> None:
    world = ScriptedWorld(nearest_is_best, spec=PLANTED)
    night = run_evolver(Bootstrap(), world)
    replayed = [one for one in world.requests if one.arm == "reference"]
    assert replayed
    assert not any(one.candidate.digest != world.seed_candidate().digest for one in replayed)
    pool = shown(night.candidate).pool
    tasks = {task.id: task for task in world.tasks().train}
    assert pool
    for case in pool:
        task = tasks[case.source.removeprefix("reference:")]
        assert case.input == task.input
        assert [call.arguments for call in case.actions] == [
            call.arguments for call in task.reference_actions
        ]


def test_references_that_fail_their_verifier_are_not_shown() -> None:
    world = ScriptedWorld(lambda *_: 0.0, spec=WorldSpec(name="null", seed=1, train=60))
    night = run_evolver(Bootstrap(), world)
    assert "bootstrap.cold_start" in night.kinds()
    assert night.candidate.digest == world.seed_candidate().digest


def test_without_references_the_agents_own_successes_are_shown() -> None:
    def truth(candidate: Candidate, task: Task) -> float:
        return 0.9 if shown(candidate).pool else 0.3

    world = ScriptedWorld(truth, spec=PLANTED)
    data = without_references(world)
    night = run_evolver(Bootstrap(), world, data=data)
    pool = shown(night.candidate).pool
    assert pool
    desks = {task.input: world.lore.families[task.slice].desk for task in data.train}
    assert all(case.actions[0].arguments["desk"] == desks[case.input] for case in pool)
    assert not any(case.source.startswith("reference:") for case in pool)


def test_s35_a_dead_start_without_references_is_said_in_words() -> None:
    world = ScriptedWorld(lambda *_: 0.0, spec=PLANTED)
    night = run_evolver(Bootstrap(), world, data=without_references(world))
    (event,) = [event for event in night.events if event.kind == "bootstrap.cold_start"]
    assert "reference actions" in event.message
    assert night.candidate.digest == world.seed_candidate().digest


def test_race_tasks_share_no_group_with_the_pool() -> None:
    world = ScriptedWorld(nearest_is_best, spec=PLANTED)
    pairs = [
        task.model_copy(update={"group": f"g-{int(task.id[-4:]) // 3}"})
        for task in world.tasks().train
    ]
    data = Splits(train=tuple(pairs), validation=world.tasks().validation)
    run_evolver(config(pool_size=96, search_rollouts=400), world, data=data)
    replayed = {one.task.group for one in world.requests if one.arm == "reference"}
    raced = {one.task.group for one in world.requests if not one.arm and one.task.split == "train"}
    assert replayed
    assert raced
    assert not replayed & raced


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nearest_retrieval_with_few_cases_is_found_where_it_is_best(seed: int) -> None:
    world = ScriptedWorld(nearest_is_best, spec=PLANTED)
    night = run_evolver(Bootstrap(), world, seed=seed)
    demos = shown(night.candidate)
    assert demos.retrieval == "nearest"
    assert demos.k <= 4
    assert night.spent - sum(one.arm == "reference" for one in world.requests) <= 150


def test_fixed_demonstrations_are_found_where_retrieval_hurts() -> None:
    def truth(candidate: Candidate, task: Task) -> float:
        demos = shown(candidate)
        return 0.8 if demos.retrieval == "fixed" and demos.k >= 4 else 0.2

    night = run_evolver(Bootstrap(), ScriptedWorld(truth, spec=PLANTED))
    assert shown(night.candidate).retrieval == "fixed"
    assert len(shown(night.candidate).order) >= 4


def test_order_is_searched() -> None:
    """The same cases help in one order only; only a search over orders finds which."""

    def ordered(demos: Demonstrations) -> bool:
        return len(demos.order) > 1 and demos.order[0] > demos.order[-1]

    def truth(candidate: Candidate, task: Task) -> float:
        return 0.9 if ordered(shown(candidate)) else 0.2

    for seed in (1, 2):
        night = run_evolver(Bootstrap(), ScriptedWorld(truth, spec=PLANTED), seed=seed)
        assert ordered(shown(night.candidate))
    sets: dict[frozenset[str], set[tuple[str, ...]]] = {}
    world = ScriptedWorld(truth, spec=PLANTED)
    run_evolver(config(search_rollouts=600), world)
    for one in world.requests:
        order = shown(one.candidate).order
        sets.setdefault(frozenset(order), set()).add(order)
    assert max(map(len, sets.values())) > 1


def test_the_seed_is_returned_when_nothing_is_better() -> None:
    def truth(candidate: Candidate, task: Task) -> float:
        return 0.2 if shown(candidate).pool else 0.9

    world = ScriptedWorld(truth, spec=PLANTED)
    assert run_evolver(Bootstrap(), world).candidate.digest == world.seed_candidate().digest


def test_finalists_and_seed_are_compared_on_the_same_validation_tasks() -> None:
    world = ScriptedWorld(nearest_is_best, spec=PLANTED)
    run_evolver(Bootstrap(), world)
    tasks: dict[str, set[str]] = {}
    for one in world.requests:
        if one.task.split == "validation":
            tasks.setdefault(one.candidate.digest, set()).add(one.task.id)
    assert len(tasks) == 3
    assert len({frozenset(found) for found in tasks.values()}) == 1
    assert min(map(len, tasks.values())) >= 20


@pytest.mark.parametrize("budget", [24, 40, 100])
def test_small_budgets_are_kept_and_used_sensibly(budget: int) -> None:
    world = ScriptedWorld(nearest_is_best, spec=PLANTED)
    run_evolver(Bootstrap(), world, rollouts=budget)
    spent = sum(not one.arm for one in world.requests)
    assert budget // 2 < spent <= budget


def test_a_budget_of_eight_rollouts_is_refused_in_words() -> None:
    world = ScriptedWorld(nearest_is_best, spec=PLANTED)
    with pytest.raises(UserError, match="8 rollouts"):
        run_evolver(Bootstrap(), world, rollouts=8)
    assert world.requests == []


def test_one_group_of_train_tasks_is_refused_in_words() -> None:
    world = ScriptedWorld(nearest_is_best, spec=PLANTED)
    train = tuple(task.model_copy(update={"group": "one"}) for task in world.tasks().train)
    with pytest.raises(UserError, match="1 train groups"):
        run_evolver(
            Bootstrap(), world, data=Splits(train=train, validation=world.tasks().validation)
        )


def test_the_components_token_budget_limits_what_is_shown() -> None:
    class Tight(ScriptedWorld):
        def seed_candidate(self) -> Candidate:
            full = super().seed_candidate()
            part = full.components["demonstrations"].model_copy(update={"budget_tokens": 80})
            parts = {**full.components, "demonstrations": part}
            return full.model_copy(update={"components": parts})

    world = Tight(nearest_is_best, spec=PLANTED)
    night = run_evolver(Bootstrap(), world)
    assert {shown(one.candidate).k for one in world.requests} <= {0, 1, 2}
    assert shown(night.candidate).pool


def test_planted_gains_are_found_with_150_rollouts() -> None:
    gains = []
    for seed in range(5):
        world = open_world(f"world:planted:seed={seed},train=96,validation=48")
        night = run_evolver(Bootstrap(), world)
        sealed, start = world.tasks().sealed[:64], world.seed_candidate()
        gains.append(
            sum(world.success(night.candidate, t) - world.success(start, t) for t in sealed) / 64
        )
    # The rules are worth .5; with 150 rollouts a poor choice now and then is to be expected.
    assert sum(gains) / len(gains) > 0.35
    assert min(gains) > 0.1


def case(name: str, desk: str) -> Demonstration:
    action = ToolCall(name="route", arguments={"desk": desk})
    return Demonstration(id=name, input=f"input {name}", actions=(action,))


def test_fixed_sets_show_each_kind_of_solution_before_a_second_of_one() -> None:
    import random

    pool = [case(f"d-{index}", desk) for index, desk in enumerate("aaaabbc")]
    found = demonstrations_for(Choice("fixed", 3, 0, 0), pool, random.Random(1))
    assert found.order == ("d-0", "d-4", "d-6")
    assert {one.id for one in found.pool} == set(found.order)
    other = demonstrations_for(Choice("fixed", 3, 1, 0), pool, random.Random(1))
    assert set(other.order) != set(found.order)


def test_choices_never_show_more_than_the_pool_holds() -> None:
    assert {choice.k for choice in list_choices((1, 2, 6), 2)} == {1, 2}
    assert {choice.retrieval for choice in list_choices((1,), 1)} == {"nearest", "fixed"}
    assert len(set(list_choices((1, 2, 3, 4, 6), 40))) == len(list_choices((1, 2, 3, 4, 6), 40))
