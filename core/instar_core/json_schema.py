"""Argument schemas: checked once when a tool is listed, applied to every call.

A tool whose schema cannot be used is quarantined alone. Arguments are validated against the schema
as its author wrote it; models are shown a canonical object schema, because some providers reject
one without ``properties``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from instar_core.base import JsonValue, canonical_json, short

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

__all__ = ["argument_problem", "canonical_schema", "schema_problem"]

MAX_DEPTH = 32
MAX_NODES = 5_000
MAX_ARGUMENT_DEPTH = 64


def _measure(value: Any, limit: int) -> tuple[int, int]:
    """Depth and number of nodes, without recursion; stops counting beyond the limits."""
    depth = nodes = 0
    level: list[Any] = [value]
    while level and depth <= limit and nodes <= MAX_NODES:
        depth += 1
        nodes += len(level)
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        level = [item for item in inner if isinstance(item, dict | list)]
    return depth, nodes


def _foreign_reference(value: Any) -> str | None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            for key in ("$ref", "$dynamicRef"):
                target = item.get(key)
                if isinstance(target, str) and not target.startswith("#"):
                    return target
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return None


def schema_problem(schema: Any) -> str | None:
    """Why a schema of arguments cannot be used, in words; ``None`` when it can."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, dict):
        return f"its input schema is {short(repr(schema), 60)}, not an object"
    depth, nodes = _measure(schema, MAX_DEPTH)
    if depth > MAX_DEPTH or nodes > MAX_NODES:
        return f"its input schema is larger than {MAX_DEPTH} levels or {MAX_NODES} parts"
    kind = schema.get("type", "object")
    if kind != "object":
        return f"its input schema has type {kind!r} where 'object' is needed"
    properties = schema.get("properties", {})
    if properties is not None and not isinstance(properties, dict):
        return f"its 'properties' are {short(repr(properties), 60)}, not an object"
    try:
        Draft202012Validator.check_schema(canonical_schema(schema))
    except SchemaError as error:
        return f"its input schema is not valid JSON Schema: {short(error.message)}"
    if (target := _foreign_reference(schema)) is not None:
        return f"its input schema refers to {target!r}; only references inside it are followed"
    return None


def canonical_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with ``type`` ``object`` and ``properties`` present; everything else as it was."""
    return {**schema, "type": "object", "properties": schema.get("properties") or {}}


@lru_cache(maxsize=512)
def _validator(canonical: bytes) -> Draft202012Validator:
    import json

    from jsonschema import Draft202012Validator
    from referencing import Registry

    # An empty registry: references resolve inside the schema, never over the network.
    return Draft202012Validator(json.loads(canonical), registry=Registry())


def argument_problem(schema: dict[str, Any], arguments: JsonValue) -> str | None:
    """What is wrong with arguments, in words the model can act on; ``None`` when nothing is."""
    from jsonschema.exceptions import best_match

    if not isinstance(arguments, dict):
        return f"arguments must be an object, not {short(repr(arguments), 60)}"
    if _measure(arguments, MAX_ARGUMENT_DEPTH)[0] > MAX_ARGUMENT_DEPTH:
        return f"arguments are nested more than {MAX_ARGUMENT_DEPTH} levels deep"
    validator = _validator(canonical_json(canonical_schema(schema)))
    error = best_match(validator.iter_errors(arguments))
    if error is None:
        return None
    where = ".".join(str(part) for part in error.absolute_path)
    return f"{where}: {short(error.message)}" if where else short(error.message)
