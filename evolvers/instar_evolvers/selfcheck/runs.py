"""Runs: one evolver, one world, a number of nights, on a Lab in memory of its own.

Everything here is picklable and a function of its job, so runs spread over processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from instar_core.base import Frozen, JsonValue
from instar_core.candidates import Candidate, Lessons
from instar_core.evolution import AcceptanceConfig, Evidence, Verdict
from instar_core.lab import Evolver
from instar_evolvers.lab import LabConfig, MemoryBook, MemoryJournal, open_lab
from instar_evolvers.registry import open_evolver
from instar_evolvers.selfcheck.controls import Argmax, oracle_candidate, quoted_effect
from instar_evolvers.selfcheck.watch import Watch
from instar_evolvers.worlds import World, WorldSpec

__all__ = ["SETTINGS", "Job", "RunResult", "perform"]

Kind = Literal["evolver", "argmax", "oracle"]

# Nothing can be learned in these worlds, so a night spends what a small night spends.
SETTINGS: Mapping[str, Mapping[str, dict[str, JsonValue]]] = {
    "null": {
        "tf_grpo": {"search_rollouts": 160, "batch_size": 6, "epochs": 2},
        "bootstrap": {"search_rollouts": 150},
    },
    "lottery": {
        "tf_grpo": {"search_rollouts": 160, "batch_size": 6, "epochs": 2},
        "bootstrap": {"search_rollouts": 150},
    },
    "planted": {"bootstrap": {"search_rollouts": 150}},
}
_SIZES: Mapping[str, tuple[int, int]] = {"null": (64, 24), "lottery": (64, 24)}
_LAB = LabConfig(concurrency=1, sealed_lookahead=1)


class Job(Frozen):
    """One run to do."""

    world: str
    kind: Kind
    evolver: str
    number: int
    nights: int
    seed: int


class RunResult(Frozen):
    """What one run did. Rates of lessons are counts, so that runs can be added up."""

    evolver: str
    promotions: int = 0
    tested: int = 0
    without_candidate: int = 0
    pairs: tuple[int, ...] = ()
    search_rollouts: tuple[int, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    true_gain: float = 0.0
    claimed: bool = False
    helpful_all: int = 0
    helpful_offered: int = 0
    helpful_kept: int = 0
    harmful_offered: int = 0
    harmful_kept: int = 0
    useless_offered: int = 0
    useless_kept: int = 0
    lesson_tokens: int = 0


def perform(job: Job) -> RunResult:
    """Does one run. Deterministic; shares nothing with any other run."""
    return asyncio.run(_run(job))


def _world_of(job: Job) -> World:
    train, validation = _SIZES.get(job.world, (160, 64))
    # A group serves few tests per epoch, so the sealed pool grows with the nights.
    sealed = max(400, 50 * job.nights)
    spec = WorldSpec.model_validate(
        {
            "name": job.world,
            "seed": _seed_of(job),
            "train": train,
            "validation": validation,
            "sealed": sealed,
        }
    )
    if job.kind != "oracle":
        return World(spec)
    seed = World(spec).seed_candidate()
    gain = quoted_effect(AcceptanceConfig())
    return World(spec, {oracle_candidate(seed, job.number).digest: gain})


def _seed_of(job: Job) -> int:
    """A world of its own for each run; evolvers and controls never meet in one."""
    kinds = ("evolver", "argmax", "oracle")
    salt = sum(ord(letter) for letter in job.evolver)
    return ((job.seed * 8 + kinds.index(job.kind)) * 4096 + salt) * 100_000 + job.number


async def _run(job: Job) -> RunResult:
    world = _world_of(job)
    tasks = world.tasks()
    seed = incumbent = world.seed_candidate()
    config = AcceptanceConfig()
    book = MemoryBook(tasks.sealed, config, seed=job.number)
    verdicts: list[Verdict] = []
    rollouts: list[int] = []
    missing, promotions, claimed = 0, 0, False
    for night in range(job.nights):
        lab = open_lab(
            f"run-{job.number}-{night}",
            world,
            MemoryJournal(),
            book,
            incumbent=incumbent,
            seed=job.seed * 1_000_003 + job.number * 1009 + night,
            config=_LAB,
        )
        await lab.start()
        watch = Watch(lab)
        candidate: Candidate | None
        if job.kind == "oracle":
            candidate = oracle_candidate(seed, job.number)
        else:
            candidate = await _evolver_of(job).evolve(incumbent, tasks.splits, watch)
            rollouts.append(watch.rollouts_seen)
            claimed = claimed or candidate.digest != incumbent.digest
        if job.kind == "argmax":
            promoted = candidate.digest != incumbent.digest
        else:
            if candidate.digest == incumbent.digest:
                candidate = watch.best_other(incumbent)
            if candidate is None:
                missing += 1
                await lab.close()
                continue
            verdict = await lab.propose(candidate, Evidence(reason="selfcheck"))
            verdicts.append(verdict)
            promoted = verdict == "accepted"
        await lab.close()
        if promoted:
            promotions += 1
            incumbent = candidate
    result = RunResult(
        evolver=job.evolver,
        promotions=promotions,
        tested=len(verdicts),
        without_candidate=missing,
        pairs=tuple(outcome.pairs for outcome in book.outcomes.values()),
        search_rollouts=tuple(rollouts),
        verdicts=tuple(verdicts),
        claimed=claimed,
    )
    return result.model_copy(update=_truth(world, seed, incumbent))


def _evolver_of(job: Job) -> Evolver:
    if job.kind == "argmax":
        return Argmax()
    return open_evolver(job.evolver, dict(SETTINGS.get(job.world, {}).get(job.evolver, {})))


def _truth(world: World, seed: Candidate, final: Candidate) -> dict[str, float | int]:
    """What the promoted version is truly worth, and which of the offered lessons it holds."""
    sealed = world.tasks().sealed
    gains = [world.success(final, task) - world.success(seed, task) for task in sealed]
    held = "\n".join(
        entry.text
        for part in final.components.values()
        if part.kind == "lessons"
        for entry in Lessons.model_validate(part.content).entries
    )
    found: dict[str, float | int] = {"true_gain": sum(gains) / len(gains)}
    kinds = {"helpful": ("helpful",), "harmful": ("harmful", "contradiction")}
    for name, members in (*kinds.items(), ("useless", ("useless",))):
        texts = [text for text, part in world.lore.statements.items() if part.kind in members]
        offered = [text for text in texts if text in world.proposer.offered]
        found[f"{name}_offered"] = len(offered)
        found[f"{name}_kept"] = sum(text in held for text in texts)
        if name == "helpful":
            found["helpful_all"] = len(texts)
    return found
