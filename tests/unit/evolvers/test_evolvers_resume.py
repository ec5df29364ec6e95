"""Evolvers survive kills: run again on the same tape, they end as if nothing had happened."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from instar_core.evolution import Evidence
from instar_core.lab import Evolver
from instar_core.usage import Remaining
from instar_evolvers.bootstrap import Bootstrap, BootstrapConfig
from instar_evolvers.lab import LabConfig, MemoryBook, MemoryJournal, Tape, open_lab
from instar_evolvers.lab.rehearsal import Kill, Killed, MortalBook, MortalJournal
from instar_evolvers.tf_grpo import TrainingFreeGRPO, TrainingFreeGRPOConfig
from instar_evolvers.worlds import World, open_world

WORLD = "world:planted:seed=12,steps=2,train=48,validation=24,sealed=80"


def evolver_named(name: str) -> Evolver:
    if name == "bootstrap":
        return Bootstrap(BootstrapConfig(search_rollouts=80))
    return TrainingFreeGRPO(
        TrainingFreeGRPOConfig(epochs=1, batch_size=8, group_size=3, search_rollouts=240)
    )


async def life(name: str, world: World, journal: MortalJournal, book: MortalBook) -> list[object]:
    """One process's life; what the run came to."""
    seed = world.seed_candidate()
    config = LabConfig(concurrency=6, sealed_lookahead=2, retry_wait_s=0.0)
    lab = open_lab("run", world, journal, book, incumbent=seed, seed=5, config=config)
    await lab.start()
    found = await evolver_named(name).evolve(seed, world.tasks().splits, lab)
    verdict = await lab.propose(found, Evidence(reason="it did best on validation"))
    await lab.close()
    return [found.digest, verdict, lab.rollouts_done]


def run(name: str, kills: list[int]) -> tuple[list[object], list[str], int]:
    """A run whose processes die at these writes, one after the other."""
    world, tape = open_world(WORLD), Tape()
    book = MemoryBook(world.tasks().sealed)
    limit = Remaining(rollouts=600)
    budget = MemoryJournal(limit, tape=tape).budget
    for at in [*kills, None]:
        kill = Kill(at, after=bool((at or 0) % 2))
        journal = MortalJournal(MemoryJournal(tape=tape, budget=budget), kill)
        try:
            ended = asyncio.run(life(name, world, journal, MortalBook(book, kill)))
        except Killed:
            continue
        return ended, [event.message for event in tape.events], tape.writes
    raise AssertionError("the last life ends by itself")


@pytest.mark.parametrize("name", ["bootstrap", "tf_grpo"])
def test_a_killed_run_ends_as_the_undisturbed_one(name: str) -> None:
    undisturbed, events, writes = run(name, [])
    assert writes > 500
    rng = Random(3)
    for _ in range(3):
        kills = [rng.randrange(10, writes // 2) for _ in range(3)]
        ended, told, _ = run(name, kills)
        assert ended == undisturbed
        assert told == events
