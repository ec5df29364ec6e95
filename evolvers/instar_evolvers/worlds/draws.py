"""Draws: uniform numbers that are a pure function of what they are drawn for.

Nothing here has state, so a draw is the same in every process, in any order and after any crash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

__all__ = ["pick", "uniform"]

T = TypeVar("T")
_SCALE = float(1 << 53)


def uniform(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts' texts alone; close parts are unrelated.

    Args:
        parts: What the draw is for, for instance (world seed, digest, task, draw index).

    Returns:
        A multiple of 2**-53 in [0, 1).
    """
    text = "\x1f".join(str(part) for part in parts)
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / _SCALE


def pick(options: Sequence[T], *parts: object) -> T:
    """One of the options, drawn as :func:`uniform` is.

    Raises:
        ValueError: If there is nothing to pick from.
    """
    if not options:
        raise ValueError(f"nothing to pick from for {parts!r}")
    return options[int(uniform(*parts) * len(options))]
