"""The verifier of reasoning-gym tasks: the dataset's own score, in [0, 1]."""

from __future__ import annotations

import json
import threading
import warnings
from functools import lru_cache
from typing import Any

from pydantic import Field

from instar.rollouts.verifiers.base import quoted, read_config, score
from instar_core.base import Frozen, JsonValue
from instar_core.errors import VerifierError
from instar_core.rollouts import Score, Trajectory
from instar_core.tasks import Task

__all__ = ["ReasoningGym", "ReasoningGymConfig", "open_dataset", "read_entry"]

# Generators and scorers of the library may use the process-wide random module.
_LOCK = threading.Lock()
_FLOOR = 0.01


class ReasoningGymConfig(Frozen):
    """Which entry of which dataset: it is generated again, since scorers need all of it."""

    dataset: str
    seed: int
    size: int = Field(ge=1)
    index: int = Field(ge=0)
    options: dict[str, JsonValue] = Field(default_factory=dict)
    after: str = Field(default="answer:", description="what follows the last one counts, if any")


def open_dataset(name: str, *, size: int, seed: int, options: dict[str, JsonValue]) -> Any:
    """A reasoning-gym dataset; the same arguments give the same entries.

    Raises:
        VerifierError: If the library does not know the dataset or refuses the options.
    """
    return _dataset(name, size, seed, json.dumps(options, sort_keys=True))


@lru_cache(maxsize=64)
def _dataset(name: str, size: int, seed: int, options: str) -> Any:
    with warnings.catch_warnings():
        # One of its dependencies does not compile without a warning.
        warnings.simplefilter("ignore", SyntaxWarning)
        import reasoning_gym
        from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        raise VerifierError(
            f"reasoning-gym has no dataset {name!r}; it has: {', '.join(sorted(DATASETS))}"
        )
    try:
        with _LOCK:
            return reasoning_gym.create_dataset(name, size=size, seed=seed, **json.loads(options))
    except (TypeError, ValueError, AssertionError) as error:
        raise VerifierError(f"reasoning-gym refuses {name!r} with {options}: {error}") from error


def read_entry(dataset: Any, index: int) -> dict[str, Any]:
    """One entry of a dataset: ``question``, ``answer`` (may be ``None``) and ``metadata``."""
    with _LOCK:
        entry: dict[str, Any] = dataset[index]
    return entry


class ReasoningGym:
    """The answer gets the dataset's own score."""

    name = "reasoning_gym"
    needs_state = False

    def check(self, task: Task) -> None:
        """See :class:`~instar.rollouts.verifiers.base.Verifier`."""
        self._entry(task, read_config(ReasoningGymConfig, task))

    def _entry(self, task: Task, config: ReasoningGymConfig) -> tuple[Any, dict[str, Any]]:
        dataset = open_dataset(
            config.dataset, size=config.size, seed=config.seed, options=config.options
        )
        entry = read_entry(dataset, config.index)
        if entry["question"] != task.input:
            raise VerifierError(
                f"the installed reasoning-gym gives another question for entry {config.index} of "
                f"{config.dataset!r} than the task {task.id!r} has",
                remedy="Install the version the tasks were made with, or make them again.",
            )
        return dataset, entry

    def score(self, task: Task, trajectory: Trajectory) -> Score:
        """The dataset's score of what follows the last "answer:", or of the whole answer."""
        config = read_config(ReasoningGymConfig, task)
        given = _final_part(trajectory.answer, config.after)
        if not given:
            return score(self.name, 0.0, "There was no answer.")
        dataset, entry = self._entry(task, config)
        with _LOCK:
            try:
                reward = float(dataset.score_answer(given, entry))
            except Exception as error:  # noqa: BLE001 - scorers fail in their own ways on odd text
                words = f"The answer {quoted(given)} cannot be scored: {error}."
                return score(self.name, 0.0, words)
        if reward == 1.0:
            return score(self.name, 1.0, "The answer is right.")
        # Several datasets give a hundredth for any text at all, which is no part of a solution.
        reward = reward if reward > _FLOOR else 0.0
        wanted = entry.get("answer")
        known = f"; expected was {quoted(wanted)}" if wanted is not None else ""
        return score(self.name, reward, f"The answer was {quoted(given)}{known}.")


def _final_part(answer: str, after: str) -> str:
    position = answer.casefold().rfind(after.casefold()) if after else -1
    return (answer if position < 0 else answer[position + len(after) :]).strip()
