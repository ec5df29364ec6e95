"""Kinds of jobs: which function does the work of a job row, found by name when it is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module

from instar.evolution.context import JobContext
from instar_core.errors import InstarError, UserError

__all__ = ["Handler", "find_handler", "list_kinds", "register_kind"]

Handler = Callable[[JobContext], Awaitable[None]]

_KINDS: dict[str, str] = {"evolution": "instar.evolution.driver:execute"}


def register_kind(kind: str, handler: str) -> None:
    """Adds a kind of job.

    Args:
        kind: Name in the job's row.
        handler: ``module:function`` of an async function that takes a :class:`JobContext`.

    Raises:
        UserError: The name is taken by another handler, or the handler is not ``module:function``.
    """
    if handler.count(":") != 1:
        raise UserError(f"{handler!r} is no 'module:function'.")
    known = _KINDS.setdefault(kind, handler)
    if known != handler:
        raise UserError(f"jobs of kind {kind!r} are done by {known!r} already.")


def list_kinds() -> list[str]:
    """The names of all kinds."""
    return sorted(_KINDS)


def find_handler(kind: str) -> Handler:
    """The function that does jobs of this kind.

    Raises:
        InstarError: This worker has none (says which it has), or it cannot be imported.
    """
    where = _KINDS.get(kind)
    if where is None:
        raise InstarError(
            f"this worker has no handler for jobs of kind {kind!r}; it has {list_kinds()}.",
            remedy="Run a worker of the version that made the job.",
        )
    module, _, name = where.partition(":")
    found: Handler = getattr(import_module(module), name)
    return found
