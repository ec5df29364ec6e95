"""Controls: two methods whose result is known beforehand, so that the selfcheck itself can fail.

``argmax`` promotes whatever did best on validation, without a sealed test: on worlds where nothing
helps it must be wrong most of the time. ``oracle`` puts forward a candidate whose true gain is the
smallest effect that the quote promises to find: it must be accepted as often as promised.
"""

from __future__ import annotations

from random import Random

from instar_core.candidates import Candidate
from instar_core.evolution import AcceptanceConfig
from instar_core.lab import Lab
from instar_core.statistics.elond import level
from instar_core.statistics.power import promised_effect
from instar_core.tasks import Splits
from instar_evolvers.strategies.validation import Measured

__all__ = ["Argmax", "oracle_candidate", "quoted_effect"]

_TEXTS = 8


class Argmax:
    """An evolver that tries random lessons and believes validation means."""

    name = "argmax"

    async def evolve(self, seed: Candidate, data: Splits, lab: Lab) -> Candidate:
        """The candidate with the highest validation mean, the seed only on a tie at the top."""
        rng = lab.rng("argmax")
        arms = [seed, *(_with_lesson(seed, f"Number {rng.random()}.") for _ in range(_TEXTS))]

        async def measured(candidate: Candidate) -> Measured:
            return Measured(candidate, await lab.rollouts(candidate, data.validation))

        return max(await lab.gather("arms", arms, measured), key=lambda one: one.mean).candidate


def oracle_candidate(seed: Candidate, number: int) -> Candidate:
    """The text to which a world attaches its known gain."""
    return _with_lesson(seed, f"Oracle {Random(number).random()}.")


def quoted_effect(config: AcceptanceConfig, test: int = 1, *, base: float = 0.5) -> float:
    """The smallest gain that a quote promises to find with a power of at least 80 %.

    Args:
        config: Size and level of the sealed test.
        test: Index of the test in its epoch.
        base: The incumbent's success rate.

    Raises:
        ValueError: If a test of this size can find nothing.
    """
    alpha_t = level(test, 0, alpha=config.alpha, horizon=config.epoch_tests)
    found = promised_effect(config.max_pairs, alpha_t, base=base, bets=config.bets)
    if found is None:
        raise ValueError(f"a sealed test of {config.max_pairs} pairs can find no gain at all")
    return found


def _with_lesson(seed: Candidate, text: str) -> Candidate:
    name = next(name for name, part in seed.components.items() if part.kind == "lessons")
    return seed.with_component(name, {"entries": [{"id": "l-control", "text": text}]})
