"""Registry: evolvers by name, the built-in ones and those that other packages bring.

Third parties register an entry point in the group ``instar.evolvers`` that names a class; the class
takes one optional argument, its frozen configuration model, as the built-in ones do.
"""

from __future__ import annotations

import importlib
import inspect
import typing
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from instar_core.base import JsonValue
from instar_core.candidates import Candidate
from instar_core.errors import UserError
from instar_core.lab import Evolver
from instar_core.tasks import Splits

__all__ = [
    "BUILT_IN",
    "GROUP",
    "check_seed",
    "least_rollouts",
    "list_evolvers",
    "needs_proposer",
    "open_evolver",
]

GROUP = "instar.evolvers"
BUILT_IN = {
    "bootstrap": "instar_evolvers.bootstrap:Bootstrap",
    "tf_grpo": "instar_evolvers.tf_grpo:TrainingFreeGRPO",
}


def list_evolvers() -> list[str]:
    """The names of all evolvers, sorted; nothing is imported."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def open_evolver(name: str, config: dict[str, JsonValue] | None = None) -> Evolver:
    """The evolver with this name, configured.

    Args:
        name: One of :func:`list_evolvers`.
        config: Fields of the evolver's configuration model; the rest keep their defaults.

    Raises:
        UserError: If the name is unknown, the class cannot be loaded or is no evolver, or the
            configuration does not fit.
    """
    kind = _load(name)
    model = _config_model(kind)
    if model is None:
        if config:
            raise UserError(
                f"Evolver {name!r} takes no configuration, but got {sorted(config)}.",
                remedy="Leave the configuration out.",
            )
        return cast("Evolver", kind())
    try:
        settings = model.model_validate(config or {})
    except ValidationError as error:
        first = error.errors()[0]
        fields = ", ".join(sorted(model.model_fields))
        raise UserError(
            f"Configuration of evolver {name!r}: {'.'.join(map(str, first['loc']))}: "
            f"{first['msg']} (got {first['input']!r}).",
            remedy=f"Fields: {fields}.",
        ) from error
    return cast("Evolver", kind(settings))


def needs_proposer(evolver: Evolver) -> bool:
    """Whether the evolver asks a model to reflect; one that does not say so needs none."""
    return bool(getattr(evolver, "needs_proposer", False))


def check_seed(evolver: Evolver, seed: Candidate, data: Splits) -> None:
    """Asks the evolver whether it could work on this agent and these tasks, where it can say so.

    Raises:
        UserError: With the evolver's reason.
    """
    check = getattr(evolver, "check", None)
    if check is not None:
        check(seed, data)


def least_rollouts(evolver: Evolver, data: Splits) -> int:
    """Search rollouts below which the evolver can tell nothing; 0 where it does not say."""
    least = getattr(evolver, "least_rollouts", None)
    return 0 if least is None else int(least(data))


def _load(name: str) -> type[Any]:
    if name in BUILT_IN:
        point = EntryPoint(name=name, value=BUILT_IN[name], group=GROUP)
    else:
        found = [one for one in entry_points(group=GROUP) if one.name == name]
        if not found:
            raise UserError(
                f"Unknown evolver {name!r}.", remedy=f"Known: {', '.join(list_evolvers())}."
            )
        point = found[0]
    try:
        kind = getattr(importlib.import_module(point.module), point.attr)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"Evolver {name!r} is registered as {point.value!r}, which cannot be loaded: {error}.",
            remedy="Repair or uninstall the package that registers it.",
        ) from error
    if not inspect.isclass(kind) or not inspect.iscoroutinefunction(getattr(kind, "evolve", None)):
        raise UserError(
            f"Evolver {name!r} is registered as {point.value!r}, which is no class with an async "
            "method 'evolve'.",
            remedy="See instar_core.lab.Evolver for what an evolver is.",
        )
    return kind


def _config_model(kind: type[Any]) -> type[BaseModel] | None:
    """The configuration model that the class's constructor takes first, if it takes one."""
    parameters = list(inspect.signature(kind).parameters)
    if not parameters:
        return None
    hint = typing.get_type_hints(kind.__init__).get(parameters[0])
    for option in typing.get_args(hint) or (hint,):
        if inspect.isclass(option) and issubclass(option, BaseModel):
            return option
    return None
