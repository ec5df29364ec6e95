"""Laws: the true success probability of a candidate at a task, known because we wrote it.

A law is what a selfcheck compares an evolver's claims with. Its constants are drawn from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import NamedTuple, Protocol

from instar_core.candidates import Candidate, Demonstration, Demonstrations
from instar_core.tasks import Task
from instar_evolvers.worlds.draws import uniform
from instar_evolvers.worlds.lore import Lore, Statement

__all__ = [
    "Law",
    "LotteryLaw",
    "NullLaw",
    "PlantedConstants",
    "PlantedLaw",
    "draw_constants",
    "embed_text",
]

_AXES = 8
_NOISE_DIMENSIONS = 24
_MAX_READINGS = 4096


class Law(Protocol):
    """Gives the probability that one attempt succeeds."""

    def success(self, candidate: Candidate, task: Task) -> float:
        """The true success probability in [0, 1]."""
        ...


@dataclass(frozen=True, slots=True)
class NullLaw:
    """Success is a fair coin whatever the text says: no gain is ever real."""

    def success(self, candidate: Candidate, task: Task) -> float:
        """One half, always."""
        return 0.5


@dataclass(frozen=True, slots=True)
class LotteryLaw:
    """Each (task, text) has its own fixed effect of mean zero over tasks.

    A gain on the tasks seen is real there and gone on new tasks, which is how search overfits.

    Args:
        seed: The world's seed.
        spread: Largest effect in either direction; effects are uniform on [-spread, spread].
    """

    seed: int
    spread: float

    def success(self, candidate: Candidate, task: Task) -> float:
        """One half plus the effect that this text has on this task."""
        luck = uniform("lottery", self.seed, candidate.digest, task.content_digest)
        return 0.5 + self.spread * (2.0 * luck - 1.0)


@dataclass(frozen=True, slots=True)
class PlantedConstants:
    """Constants of a planted law; see :func:`draw_constants` for their ranges."""

    base: float
    gain: float
    harm: float
    contradiction: float
    off_family: float
    per_token: float
    free_tokens: int
    misplaced: float


def draw_constants(seed: int) -> PlantedConstants:
    """The constants of a planted world: about .35 without, .85 with all rules, -.15 per harm."""
    rng = Random(f"planted:{seed}")
    return PlantedConstants(
        base=rng.uniform(0.32, 0.38),
        gain=rng.uniform(0.47, 0.53),
        harm=rng.uniform(0.13, 0.17),
        contradiction=rng.uniform(0.08, 0.12),
        off_family=rng.uniform(0.001, 0.003),
        per_token=rng.uniform(0.0001, 0.0002),
        free_tokens=rng.randrange(150, 250),
        misplaced=rng.uniform(0.02, 0.06),
    )


class PlantedLaw:
    """Success follows the rules that the text holds for the task's family.

    Starting from ``base``, each needed rule adds its share of ``gain``, each harmful statement of
    the family takes ``harm``, a rule beside its contradiction takes ``contradiction``, every
    statement about another family ``off_family``, and every token beyond ``free_tokens``
    ``per_token``. A shown demonstration of the family with right actions teaches all its rules.
    """

    def __init__(self, seed: int, lore: Lore) -> None:
        self.lore = lore
        self.constants = draw_constants(seed)
        self._seed = seed
        self._readings: dict[str, _Reading] = {}

    def success(self, candidate: Candidate, task: Task) -> float:
        """The probability in [.02, .98]; a function of the text and the task's family alone."""
        statements, tokens, demonstrations = self._reading(candidate)
        family = self.lore.families[task.slice]
        shown = shown_demonstrations(demonstrations, task, self.vector)
        taught = any(self._teaches(demo, task.slice) for demo in shown)
        here = {part.text for part in statements if part.topic == task.slice}
        known = len(family.rules) if taught else sum(rule.text in here for rule in family.rules)
        clashes = sum(
            rule.text in here and against.text in here
            for rule, against in zip(family.rules, family.contradictions, strict=True)
        )
        elsewhere = sum(bool(part.topic) and part.topic != task.slice for part in statements)
        elsewhere += sum(self.lore.topic_in(demo.input) != task.slice for demo in shown)
        constants = self.constants
        chance = (
            constants.base
            + constants.gain * known / len(family.rules)
            - constants.harm * sum(part.text in here for part in family.harmful)
            - constants.contradiction * clashes
            - constants.off_family * elsewhere
            - constants.per_token * max(0, tokens - constants.free_tokens)
        )
        return min(0.98, max(0.02, chance))

    def vector(self, text: str) -> tuple[float, ...]:
        """The unit vector of a text in this world; see :func:`embed_text`."""
        return embed_text(self.lore, self._seed, self.constants.misplaced, text)

    def _teaches(self, demo: Demonstration, topic: str) -> bool:
        desk = self.lore.families[topic].desk
        right = any(call.arguments.get("desk") == desk for call in demo.actions)
        return right and self.lore.topic_in(demo.input) == topic

    def _reading(self, candidate: Candidate) -> _Reading:
        """What the law reads in a candidate, kept by digest because rollouts share candidates."""
        reading = self._readings.get(candidate.digest)
        if reading is None:
            if len(self._readings) >= _MAX_READINGS:
                self._readings.clear()
            reading = self._readings[candidate.digest] = self._read(candidate)
        return reading

    def _read(self, candidate: Candidate) -> _Reading:
        texts = []
        demonstrations = Demonstrations()
        for part in candidate.components.values():
            if part.kind == "demonstrations":
                demonstrations = Demonstrations.model_validate(part.content)
            else:
                texts.append(_text_of(part.content))
        joined = "\n".join(texts)
        found = tuple(part for text, part in self.lore.statements.items() if text in joined)
        return _Reading(found, math.ceil(len(joined) / 4), demonstrations)


class _Reading(NamedTuple):
    statements: tuple[Statement, ...]
    tokens: int
    demonstrations: Demonstrations


def _text_of(content: object) -> str:
    """All strings of a component's content, in order."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return "\n".join(_text_of(value) for value in content.values())
    if isinstance(content, list):
        return "\n".join(_text_of(value) for value in content)
    return ""


def shown_demonstrations(
    demonstrations: Demonstrations, task: Task, vector: Callable[[str], tuple[float, ...]]
) -> tuple[Demonstration, ...]:
    """The demonstrations that a task's prompt would hold, as :class:`Demonstrations` defines."""
    if demonstrations.retrieval == "fixed":
        by_id = {demo.id: demo for demo in demonstrations.pool}
        return tuple(by_id[name] for name in demonstrations.order if name in by_id)
    if demonstrations.k == 0:
        return ()
    asked = vector(task.input)
    ranked = sorted(
        demonstrations.pool,
        key=lambda demo: sum(a * b for a, b in zip(asked, vector(demo.input), strict=True)),
    )
    return tuple(ranked[-demonstrations.k :])


@lru_cache(maxsize=16384)
def _embedded(
    topics: tuple[str, ...], topic: str | None, seed: int, text: str
) -> tuple[float, ...]:
    values = [0.0] * (_AXES + _NOISE_DIMENSIONS)
    if topic is not None:
        values[topics.index(topic)] = 1.0
    for index in range(_NOISE_DIMENSIONS):
        values[_AXES + index] = (uniform("noise", seed, text, index) - 0.5) * 0.25
    norm = math.sqrt(sum(value * value for value in values)) or 1.0
    return tuple(value / norm for value in values)


def embed_text(lore: Lore, seed: int, misplaced: float, text: str) -> tuple[float, ...]:
    """The unit vector of a text: near others of its family, and now and then in the wrong place.

    Args:
        lore: Knows which words belong to which family.
        seed: The world's seed.
        misplaced: Share of texts that land near another family.
        text: Any text.
    """
    topics = tuple(lore.families)
    topic = lore.topic_in(text)
    if uniform("misplaced", seed, text) < misplaced:
        topic = topics[int(uniform("place", seed, text) * len(topics))]
    return _embedded(topics, topic, seed, text)
