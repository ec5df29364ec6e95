"""Worlds: their outcomes follow their laws, and their laws are what the words say."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from instar_core.base import JsonValue
from instar_core.candidates import Candidate
from instar_core.errors import UserError
from instar_core.lab import CallOutcome, RolloutRequest
from instar_core.tasks import Task
from instar_core.usage import Amount
from instar_evolvers.worlds import World, open_world, parse_spec
from instar_evolvers.worlds.laws import PlantedLaw, draw_constants
from instar_evolvers.worlds.lore import Statement

SEEDS = (3, 11, 2024)


class CountingCalls:
    """Performs calls at once and counts them."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.reserved = Amount()

    async def call(self, kind, request, perform, *, reserve) -> CallOutcome:  # type: ignore[no-untyped-def]
        self.kinds.append(kind)
        self.reserved = self.reserved + reserve
        outcome: CallOutcome = await perform()
        return outcome


def roll(world: World, candidate: Candidate, task: Task, draw: int = 0, **more: str) -> float:
    request = RolloutRequest(candidate=candidate, task=task, draw=draw, **more)
    return asyncio.run(world.rollout(request, CountingCalls())).reward


def with_lessons(world: World, *texts: str) -> Candidate:
    entries: list[JsonValue] = [
        {"id": f"l-{index}", "text": text} for index, text in enumerate(texts)
    ]
    return world.seed_candidate().with_component("lessons", {"entries": entries})


def with_demonstration(world: World, task: Task, desk: str, *, retrieval: str) -> Candidate:
    case: JsonValue = {
        "id": "d-1",
        "input": task.input,
        "actions": [{"id": "", "name": "route", "arguments": {"desk": desk}}],
        "answer": None,
        "source": "",
    }
    content: JsonValue = {"pool": [case], "retrieval": retrieval, "k": 1, "order": ["d-1"]}
    return world.seed_candidate().with_component("demonstrations", content)


def frequency(world: World, candidate: Candidate, tasks: tuple[Task, ...], draws: int) -> float:
    async def all_of() -> list[float]:
        requests = [
            RolloutRequest(candidate=candidate, task=task, draw=draw)
            for task in tasks
            for draw in range(draws)
        ]
        return [(await world.rollout(one, CountingCalls())).reward for one in requests]

    rewards = asyncio.run(all_of())
    return sum(rewards) / len(rewards)


@pytest.mark.parametrize("seed", SEEDS)
def test_null_is_a_fair_coin_whatever_the_text_says(seed: int) -> None:
    world = open_world(f"world:null:seed={seed}")
    tasks = world.tasks().train[:40]
    rules = [part.text for part in world.lore.statements.values() if part.kind == "helpful"]
    for candidate in (world.seed_candidate(), with_lessons(world, *rules)):
        assert all(world.success(candidate, task) == 0.5 for task in tasks)
        # 2,000 fair draws: five standard deviations are .056.
        assert abs(frequency(world, candidate, tasks, 50) - 0.5) < 0.056


@pytest.mark.parametrize("seed", SEEDS)
def test_lottery_effects_are_fixed_per_task_and_text_and_have_mean_zero(seed: int) -> None:
    world = open_world(f"world:lottery:seed={seed},sealed=2000")
    seed_text, other = world.seed_candidate(), with_lessons(world, "Anything.")
    tasks = world.tasks().sealed
    effects = [world.success(other, task) - 0.5 for task in tasks]
    assert effects == [world.success(other, task) - 0.5 for task in tasks]
    assert max(effects) > 0.15
    assert min(effects) < -0.15
    # sd of a uniform on +-.28 is .162; five standard errors over 2,000 tasks are .018.
    assert abs(sum(effects) / len(effects)) < 0.018
    assert any(world.success(seed_text, task) != world.success(other, task) for task in tasks[:5])
    lucky = max(tasks[:50], key=lambda task: world.success(other, task))
    expected = world.success(other, lucky)
    assert abs(frequency(world, other, (lucky,), 1000) - expected) < 0.08


def family_task(world: World, rules: int) -> tuple[Task, list[Statement]]:
    """A train task of a family that needs this many rules, and the rules."""
    for task in world.tasks().train:
        found = list(world.lore.families[task.slice].rules)
        if len(found) == rules:
            return task, found
    raise AssertionError(f"no family needs {rules} rules")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("needed", [1, 2])
def test_planted_success_follows_the_rules_present(seed: int, needed: int) -> None:
    world = open_world(f"world:planted:seed={seed}")
    constants = draw_constants(seed)
    task, rules = family_task(world, needed)
    family = world.lore.families[task.slice]

    def success(*texts: str) -> float:
        return world.success(with_lessons(world, *texts), task)

    base, texts = success(), [rule.text for rule in rules]
    assert base == pytest.approx(constants.base)
    assert 0.32 <= base <= 0.38
    assert success(*texts) == pytest.approx(constants.base + constants.gain)
    assert success(texts[0]) == pytest.approx(constants.base + constants.gain / needed)
    assert success(family.harmful[0].text) == pytest.approx(base - constants.harm)
    assert success(family.useless[0].text) == pytest.approx(base)
    clash = success(*texts, family.contradictions[0].text)
    assert clash == pytest.approx(success(*texts) - constants.contradiction)
    assert success(family.contradictions[0].text) == pytest.approx(base)


@pytest.mark.parametrize("seed", SEEDS)
def test_planted_is_lowered_by_other_families_and_by_length(seed: int) -> None:
    world = open_world(f"world:planted:seed={seed}")
    task, rules = family_task(world, 1)
    others = [
        part.text
        for part in world.lore.statements.values()
        if part.topic not in ("", task.slice) and part.kind == "helpful"
    ]
    alone = world.success(with_lessons(world, rules[0].text), task)
    crowded = world.success(with_lessons(world, rules[0].text, *others), task)
    long = world.success(with_lessons(world, rules[0].text, "filler " * 2000), task)
    assert crowded < alone
    assert long < alone - 0.1


@pytest.mark.parametrize("retrieval", ["fixed", "nearest"])
def test_planted_learns_from_a_right_demonstration_of_the_family_only(retrieval: str) -> None:
    world = open_world("world:planted:seed=5")
    train = world.tasks().train
    task, other = train[0], next(one for one in train if one.slice != train[0].slice)
    desk = world.lore.families[task.slice].desk
    constants = draw_constants(5)
    right = with_demonstration(world, train[8], desk, retrieval=retrieval)
    assert train[8].slice == task.slice
    assert world.success(right, task) == pytest.approx(constants.base + constants.gain, abs=0.01)
    assert world.success(right, other) < constants.base
    wrong = with_demonstration(world, train[8], "front", retrieval=retrieval)
    assert world.success(wrong, task) == pytest.approx(constants.base)
    null = open_world("world:null:seed=5")
    assert null.success(with_demonstration(null, task, desk, retrieval=retrieval), task) == 0.5


def test_planted_outcomes_have_the_frequency_of_their_law() -> None:
    world = open_world("world:planted:seed=8")
    task, rules = family_task(world, 2)
    candidate = with_lessons(world, *(rule.text for rule in rules))
    expected = world.success(candidate, task)
    # 2,000 draws: five standard deviations at .85 are .04.
    assert abs(frequency(world, candidate, (task,), 2000) - expected) < 0.045


def test_laws_and_rates_differ_from_seed_to_seed() -> None:
    worlds = [open_world(f"world:planted:seed={seed}") for seed in range(12)]
    assert len({tuple(world.lore.families) for world in worlds}) > 8
    assert len({draw_constants(seed).base for seed in range(12)}) == 12
    assert len({world.proposer.rates.helpful for world in worlds}) == 12


def test_two_arms_and_two_sealed_tests_are_independent_draws() -> None:
    world = open_world("world:null:seed=9")
    candidate, tasks = world.seed_candidate(), world.tasks().sealed[:200]
    arms = {
        name: [roll(world, candidate, task, 0, arm=name, sealed_test=test) for task in tasks]
        for name, test in (("candidate", "t-1"), ("incumbent", "t-1"))
    }
    # the Lab gives another test other draw indices
    other = [roll(world, candidate, task, 1, arm="candidate", sealed_test="t-2") for task in tasks]
    for first, second in ((arms["candidate"], arms["incumbent"]), (arms["candidate"], other)):
        equal = sum(a == b for a, b in zip(first, second, strict=True))
        assert 60 < equal < 140  # about half of 200 agree when nothing is shared


def test_a_draw_is_the_same_in_another_process_and_under_another_hash_seed() -> None:
    code = (
        "import asyncio\n"
        "from instar_core.lab import RolloutRequest\n"
        "from instar_evolvers.worlds import open_world\n"
        "world = open_world('world:planted:seed=31')\n"
        "def one(task):\n"
        "    request = RolloutRequest(candidate=world.seed_candidate(), task=task, draw=2)\n"
        "    return asyncio.run(world.rollout(request, None)).model_dump_json()\n"
        "print([one(task) for task in world.tasks().train[:20]])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert "reward" in outputs.pop()


def test_steps_are_journalled_calls_and_change_no_outcome() -> None:
    plain, stepped = open_world("world:null:seed=4"), open_world("world:null:seed=4,steps=5")
    calls = CountingCalls()
    task = plain.tasks().train[0]
    request = RolloutRequest(candidate=plain.seed_candidate(), task=task, draw=0)
    rollout = asyncio.run(stepped.rollout(request, calls))
    assert calls.kinds == ["model_call", "tool_call", "model_call", "tool_call", "model_call"]
    assert (rollout.usage.model_calls, rollout.usage.tool_calls) == (3, 2)
    assert 0 < rollout.usage.tokens <= calls.reserved.tokens
    assert rollout.reward == roll(plain, plain.seed_candidate(), task)


def test_references_are_replayed_and_cost_no_rollout() -> None:
    world = open_world("world:planted:seed=4")
    for task in world.tasks().train[:16]:
        assert roll(world, world.seed_candidate(), task, arm="reference") == 1.0
    task = world.tasks().train[0]
    request = RolloutRequest(candidate=world.seed_candidate(), task=task, draw=0)
    assert world.reserve_for(request).rollouts == 1
    replay = request.model_copy(update={"arm": "reference"})
    assert world.reserve_for(replay).rollouts == 0


def test_no_group_crosses_splits() -> None:
    tasks = open_world("world:planted:seed=1").tasks()
    groups = [{task.group for task in part} for part in tasks]
    assert not groups[0] & groups[1]
    assert not groups[0] & groups[2]
    assert not groups[1] & groups[2]
    assert all(not task.reference_actions for task in (*tasks.validation, *tasks.sealed))


def test_the_embedding_puts_most_texts_near_their_family() -> None:
    world = open_world("world:planted:seed=21")
    law = world.law
    assert isinstance(law, PlantedLaw)
    tasks = world.tasks().train
    near = 0
    for task in tasks:
        vector = law.vector(task.input)
        assert sum(value * value for value in vector) == pytest.approx(1.0)
        others = [one for one in tasks if one is not task]
        best = max(
            others,
            key=lambda one: sum(a * b for a, b in zip(vector, law.vector(one.input), strict=True)),
        )
        near += best.slice == task.slice
    assert near / len(tasks) > 0.85


def test_a_specification_survives_a_round_trip() -> None:
    spec = parse_spec("world:planted:seed=7,steps=3,latency_ms=20")
    assert (spec.name, spec.seed, spec.steps, spec.latency_ms) == ("planted", 7, 3, 20.0)
    assert parse_spec(spec.text) == spec
    assert open_world(spec.text).seed_candidate().harness.environment == spec.text
    large = parse_spec("null:seed=123456789012")
    assert parse_spec(large.text) == large


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("world:paradise", "null, lottery, planted"),
        ("world:null:sed=3", "seed"),
        ("world:null:seed", "key=value"),
        ("world:null:seed=high", "seed"),
        ("world:null:steps=-1", "steps"),
    ],
)
def test_a_wrong_specification_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        open_world(text)
