"""World specification: the text that names a world, its seed and its sizes.

``world:planted:seed=7,steps=3,latency_ms=20`` is what a harness carries as its environment, so a
worker that never saw the bench can open the very same world.
"""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, ValidationError

from instar_core.base import Frozen
from instar_core.errors import UserError

__all__ = ["WorldName", "WorldSpec", "parse_spec"]

WorldName = Literal["null", "lottery", "planted"]


class WorldSpec(Frozen):
    """What fixes a world completely: law, seed, sizes of the splits, and how slow rollouts are."""

    name: WorldName
    seed: int = Field(default=0, ge=0, description="draws the law's constants and every outcome")
    steps: int = Field(
        default=0,
        ge=0,
        le=64,
        description="journalled calls per rollout, model and tool in turn; 0 journals none",
    )
    latency_ms: float = Field(
        default=0.0, ge=0.0, description="mean latency of a call; each call has its own, hashed"
    )
    train: int = Field(default=160, ge=8, description="train tasks")
    validation: int = Field(default=64, ge=8, description="validation tasks")
    sealed: int = Field(default=400, ge=8, description="sealed tasks, each a group of its own")

    @property
    def text(self) -> str:
        """The specification as text; fields at their defaults are left out, the seed never is."""
        fields = self.model_dump(exclude={"name"}, exclude_defaults=True)
        fields["seed"] = self.seed
        options = ",".join(f"{key}={value}" for key, value in sorted(fields.items()))
        return f"world:{self.name}:{options}"


def parse_spec(text: str) -> WorldSpec:
    """The specification that a text names.

    Args:
        text: ``world:NAME`` or ``world:NAME:key=value,…``; the ``world:`` may be left out.

    Raises:
        UserError: If the name or an option is unknown, or a value does not fit.
    """
    body = text.removeprefix("world:")
    name, _, rest = body.partition(":")
    known = ", ".join(get_args(WorldName))
    if name not in get_args(WorldName):
        raise UserError(f"Unknown world {name!r} in {text!r}.", remedy=f"Worlds: {known}.")
    fields: dict[str, object] = {"name": name}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in WorldSpec.model_fields or key == "name":
            options = ", ".join(sorted(set(WorldSpec.model_fields) - {"name"}))
            raise UserError(
                f"Unknown option {item!r} in world {text!r}.",
                remedy=f"Write key=value with a key of: {options}.",
            )
        fields[key] = value
    try:
        return WorldSpec.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"World {text!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}.",
            remedy="Correct the option; seed and sizes are whole numbers, latency_ms is a number.",
        ) from error
