"""Places: where two values differ, as JSON pointers."""

from __future__ import annotations

from instar_core.base import JsonValue

__all__ = ["changed_places"]


def changed_places(old: JsonValue, new: JsonValue) -> tuple[str, ...]:
    """The places at which two values differ, in the order of the old value, then what is new.

    Lists are compared by position; a text that differs is one place. The root is the empty pointer.
    """
    found: list[str] = []
    waiting: list[tuple[str, JsonValue, JsonValue]] = [("", old, new)]
    while waiting:
        place, left, right = waiting.pop()
        if isinstance(left, list) and isinstance(right, list):
            left = {str(at): value for at, value in enumerate(left)}
            right = {str(at): value for at, value in enumerate(right)}
        if isinstance(left, dict) and isinstance(right, dict):
            inner = []
            for key in dict.fromkeys((*left, *right)):
                at = f"{place}/{key.replace('~', '~0').replace('/', '~1')}"
                if key in left and key in right:
                    inner.append((at, left[key], right[key]))
                else:
                    found.append(at)
            waiting.extend(reversed(inner))
        elif left != right or type(left) is not type(right):
            found.append(place)
    return tuple(found)
