"""Age: the encryption library, loaded when it is first needed. It comes without type hints."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["load_age"]


def load_age() -> Any:
    """The module ``pyrage``: recipients, identities, and encryption of streams."""
    return import_module("pyrage")
