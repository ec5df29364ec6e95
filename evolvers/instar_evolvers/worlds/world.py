"""World: a rollout backend whose truth is known, so that a claimed gain can be checked.

A world needs no model: an attempt succeeds with the probability that its law gives, drawn as a pure
function of (world seed, agent-version digest, task, draw index, arm, sealed or not). Two arms are
therefore independent, and any crash, order or concurrency leaves every outcome as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple

from instar_core.base import JsonValue
from instar_core.candidates import Candidate, Component, Harness
from instar_core.lab import CallOutcome, Calls, Role, RolloutRequest
from instar_core.messages import Message, Messages, ToolCall
from instar_core.rollouts import Rollout, Score, Step, StopReason, Trajectory
from instar_core.tasks import Split, Splits, Task, VerifierSpec
from instar_core.usage import Amount, Usage
from instar_evolvers.worlds.draws import uniform
from instar_evolvers.worlds.laws import Law, LotteryLaw, NullLaw, PlantedLaw, embed_text
from instar_evolvers.worlds.lore import Lore, draw_lore
from instar_evolvers.worlds.proposer import ScriptedProposer, draw_rates
from instar_evolvers.worlds.spec import WorldSpec, parse_spec

__all__ = ["REFERENCE_ARM", "World", "WorldTasks", "open_world"]

REFERENCE_ARM = "reference"
_CALL_TOKENS = Amount(tokens=200)


class WorldTasks(NamedTuple):
    """The tasks of a world by split; only the first two may be shown to an evolver."""

    train: tuple[Task, ...]
    validation: tuple[Task, ...]
    sealed: tuple[Task, ...]

    @property
    def splits(self) -> Splits:
        """What an evolver sees."""
        return Splits(train=self.train, validation=self.validation)


class World:
    """A :class:`~instar_core.lab.Backend` with a known law.

    Args:
        spec: Name, seed, sizes and slowness.
        gains: Candidate digest → true gain over its law, for controls that need a known truth.

    Attributes:
        lore: What there is to know in this world.
        law: The truth about success.
        proposer: The scripted model that answers evolvers' questions.
    """

    def __init__(self, spec: WorldSpec, gains: Mapping[str, float] | None = None) -> None:
        self.spec = spec
        self.lore: Lore = draw_lore(spec.seed)
        self.law: Law = _law_of(spec, self.lore)
        self.proposer = ScriptedProposer(spec.seed, self.lore, draw_rates(spec.seed))
        self._gains = dict(gains or {})
        self._misplaced = self.law.constants.misplaced if isinstance(self.law, PlantedLaw) else 0.0

    def seed_candidate(self) -> Candidate:
        """The agent before any evolution: instructions, no lessons, no demonstrations."""
        return Candidate(
            components={
                "instructions": Component(
                    kind="instructions",
                    content="You route requests to the right desk.",
                    trainable=False,
                ),
                "lessons": Component(kind="lessons", content={"entries": []}, owner="job"),
                "demonstrations": Component(
                    kind="demonstrations",
                    content={"pool": [], "retrieval": "fixed", "k": 0, "order": []},
                    owner="job",
                ),
            },
            harness=Harness(model="scripted", tool_protocol="text", environment=self.spec.text),
        )

    def tasks(self) -> WorldTasks:
        """The tasks of all splits, the same for the same specification."""
        spec = self.spec
        return _draw_tasks(spec.seed, spec.train, spec.validation, spec.sealed)

    def success(self, candidate: Candidate, task: Task) -> float:
        """The true success probability of a candidate at a task, known gains included."""
        chance = self.law.success(candidate, task)
        return min(1.0, max(0.0, chance + self._gains.get(candidate.digest, 0.0)))

    async def rollout(self, request: RolloutRequest, calls: Calls) -> Rollout:
        """One attempt; in the arm ``reference`` the task's own actions are replayed instead."""
        task = request.task
        identity = request.identity
        draw = uniform("outcome", self.spec.seed, identity)
        replayed = request.arm == REFERENCE_ARM and bool(task.reference_actions)
        if replayed and isinstance(self.law, PlantedLaw):
            passed = True  # the planted world's references are right, and its verifier is exact
        else:
            passed = draw < self.success(request.candidate, task)
        usage = await self._perform(identity, calls)
        desk = self.lore.families[task.slice].desk
        shown = desk if passed else "front"
        return Rollout(
            id=_uuid_like(identity),
            task_id=task.id,
            candidate_digest=request.candidate.digest,
            draw=request.draw,
            arm=request.arm,
            trajectory=_trajectory(task.input, shown),
            score=_score(passed, task.slice, shown),
            usage=usage,
        )

    def reserve_for(self, request: RolloutRequest) -> Amount:
        """One rollout; replaying a reference asks no model and is no attempt of the agent."""
        return Amount(rollouts=0 if request.arm == REFERENCE_ARM else 1)

    async def ask(self, role: Role, messages: Messages, calls: Calls) -> str:
        """The scripted model's reply, journalled as one model call where calls are journalled."""
        reply = self.proposer.reply(role, messages)
        if self.spec.steps == 0:
            return reply

        async def perform() -> CallOutcome:
            await self._sleep("ask", reply)
            return CallOutcome(value=reply, usage=_call_usage("model_call"))

        request: JsonValue = [message.model_dump(mode="json") for message in messages]
        outcome = await calls.call("model_call", request, perform, reserve=_CALL_TOKENS)
        return str(outcome.value)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Unit vectors in which texts of one family are near to each other."""
        seed, misplaced = self.spec.seed, self._misplaced
        return [list(embed_text(self.lore, seed, misplaced, text)) for text in texts]

    async def _perform(self, identity: str, calls: Calls) -> Usage:
        """Makes the rollout's journalled calls, model and tool in turn; their usage together."""
        usage = Usage()
        for index in range(self.spec.steps):
            usage = usage + await self._one_call(identity, index, calls)
        return usage

    async def _one_call(self, identity: str, index: int, calls: Calls) -> Usage:
        async def perform() -> CallOutcome:
            await self._sleep(identity, index)
            noise = int(uniform("reply", self.spec.seed, identity, index) * 1_000_000)
            kind_usage = _call_usage("tool_call" if index % 2 else "model_call")
            return CallOutcome(value={"step": index, "noise": noise}, usage=kind_usage)

        request: JsonValue = {"rollout": identity, "step": index}
        reserve = Amount() if index % 2 else _CALL_TOKENS
        outcome = await calls.call(
            "tool_call" if index % 2 else "model_call", request, perform, reserve=reserve
        )
        return outcome.usage

    async def _sleep(self, *parts: object) -> None:
        """Waits a hashed time around the mean latency, so that calls finish out of order."""
        if self.spec.latency_ms > 0:
            share = 0.5 + uniform("latency", self.spec.seed, *parts)
            await asyncio.sleep(self.spec.latency_ms * share / 1000.0)


def open_world(spec: str, gains: Mapping[str, float] | None = None) -> World:
    """The world that a text names, such as ``world:planted:seed=7,steps=3,latency_ms=20``.

    Args:
        spec: See :func:`~instar_evolvers.worlds.spec.parse_spec`.
        gains: Known true gains of candidates by digest, for controls.

    Raises:
        UserError: If the text names no world.
    """
    return World(parse_spec(spec), gains)


def _law_of(spec: WorldSpec, lore: Lore) -> Law:
    if spec.name == "null":
        return NullLaw()
    if spec.name == "lottery":
        return LotteryLaw(spec.seed, Random(f"lottery:{spec.seed}").uniform(0.20, 0.28))
    return PlantedLaw(spec.seed, lore)


@lru_cache(maxsize=8)
def _draw_tasks(seed: int, train: int, validation: int, sealed: int) -> WorldTasks:
    lore = draw_lore(seed)
    rng = Random(f"tasks:{seed}")
    topics = tuple(lore.families)

    def make(split: Split, count: int) -> tuple[Task, ...]:
        made = []
        for index in range(count):
            topic = topics[index % len(topics)]
            number = rng.randrange(10_000, 99_999)
            reference = ToolCall(name="route", arguments={"desk": lore.families[topic].desk})
            made.append(
                Task(
                    id=f"{split}-{index:04d}",
                    input=lore.request(topic, number, rng),
                    split=split,
                    group=f"{split}-{index:04d}",
                    verifier=VerifierSpec(name="world"),
                    environment={"number": number, "case": f"{split}-{index:04d}"},
                    reference_actions=(reference,) if split == "train" else (),
                    slice=topic,
                )
            )
        return tuple(made)

    return WorldTasks(make("train", train), make("validation", validation), make("sealed", sealed))


@lru_cache(maxsize=4096)
def _trajectory(text: str, desk: str) -> Trajectory:
    call = ToolCall(id="1", name="route", arguments={"desk": desk})
    stop: StopReason = "tool_final"
    return Trajectory(
        opening=(Message(role="user", content=text),),
        steps=(
            Step(index=0, kind="model", message=Message(role="assistant", tool_calls=(call,))),
            Step(
                index=1,
                kind="tool",
                message=Message(role="tool", content="done", tool_call_id="1", name="route"),
                tool_call=call,
            ),
        ),
        stop=stop,
    )


@lru_cache(maxsize=4096)
def _score(passed: bool, topic: str, desk: str) -> Score:
    if passed:
        return Score(reward=1.0, feedback="Right desk.", verifier="world")
    words = f"Desk {desk!r} is wrong for a request about {topic}; a step before routing was missed."
    return Score(reward=0.0, feedback=words, verifier="world")


def _call_usage(kind: str) -> Usage:
    if kind == "tool_call":
        return Usage(tool_calls=1)
    return Usage(input_tokens=120, output_tokens=30, model_calls=1)


def _uuid_like(identity: str) -> str:
    """The identity's first 32 hex digits in the shape of a UUID, for stores that want one."""
    cut = identity[:32]
    return f"{cut[:8]}-{cut[8:12]}-{cut[12:16]}-{cut[16:20]}-{cut[20:]}"
