"""Task sets from reasoning-gym: ``reasoning_gym:<dataset>[?size=…&seed=…&<option>=…]``.

Tasks that nobody here wrote. The splits come from generators with different seeds; each task is a
group of its own, and a question that a generator repeats is kept once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from instar.rollouts.taskset import SplitShares, TaskSet, load_task_set
from instar.rollouts.verifiers.reasoning_gym import open_dataset, read_entry
from instar_core.base import JsonValue, content_hash
from instar_core.errors import UserError, VerifierError
from instar_core.tasks import Split, Task, VerifierSpec

__all__ = ["PREFIX", "open_task_source", "reasoning_gym_tasks"]

PREFIX = "reasoning_gym:"


def open_task_source(spec: str) -> TaskSet:
    """The task set a person means: a JSONL file's path, or ``reasoning_gym:<dataset>``.

    Raises:
        TaskFileError: If the file is broken.
        UserError: If the dataset or one of its options is unknown.
    """
    return reasoning_gym_tasks(spec) if spec.startswith(PREFIX) else load_task_set(Path(spec))


def reasoning_gym_tasks(spec: str) -> TaskSet:
    """Generated tasks; the same spec and library version give the same tasks.

    Raises:
        UserError: If the dataset or one of its options is unknown, or gives too few questions.
    """
    dataset, _, query = spec.removeprefix(PREFIX).partition("?")
    options: dict[str, Any] = {key: _value(text) for key, text in parse_qsl(query)}
    size, seed = options.pop("size", 300), options.pop("seed", 1)
    for name, number in (("size", size), ("seed", seed)):
        if not isinstance(number, int) or isinstance(number, bool) or number < (name == "size"):
            raise UserError(f"{spec!r}: {name} is {number!r}, but must be a whole number.")
    try:
        tasks = _tasks(dataset, size, seed, options)
    except VerifierError as error:
        raise UserError(f"{spec!r}: {error.message}.") from error
    missing = {"train", "validation", "sealed"} - {task.split for task in tasks}
    if missing:
        raise UserError(
            f"{spec!r} gives no task for {', '.join(sorted(missing))}.",
            remedy="Raise size; a dataset with few different questions may not do at all.",
        )
    return TaskSet(name=dataset, description=f"generated: {spec}", tasks=tuple(tasks))


def _tasks(dataset: str, size: int, seed: int, options: dict[str, JsonValue]) -> list[Task]:
    shares = SplitShares()
    counts: dict[Split, int] = {
        "train": round(size * shares.train),
        "validation": round(size * shares.validation),
    }
    counts["sealed"] = size - sum(counts.values())
    seen: set[str] = set()
    tasks: list[Task] = []
    order: tuple[Split, ...] = ("sealed", "validation", "train")
    for split in order:
        count = counts[split]
        if count < 1:
            continue
        # Generators use seed + index for an entry: neighbouring seeds would share most questions.
        own_seed = int(content_hash([seed, split])[:7], 16)
        generator = open_dataset(dataset, size=count, seed=own_seed, options=options)
        for index in range(count):
            entry = read_entry(generator, index)
            question = str(entry["question"])
            level = " ".join(question.split()).casefold()
            if level in seen:
                continue
            seen.add(level)
            name = f"{dataset}-{split}-{index}"
            config: dict[str, JsonValue] = {
                "dataset": dataset,
                "seed": own_seed,
                "size": count,
                "index": index,
                "options": options,
            }
            answer = entry.get("answer")
            tasks.append(
                Task(
                    id=name,
                    input=question,
                    split=split,
                    group=name,
                    verifier=VerifierSpec(name="reasoning_gym", config=config),
                    reference_answer=None if answer is None else str(answer),
                )
            )
    return tasks


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
