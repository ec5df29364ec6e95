"""Errors: one type per boundary, each with a message that quotes the value and names the remedy.

A :class:`UserError` is a person's mistake and is printed without a traceback. Infrastructure
trouble (:class:`InfrastructureError` and its children) is never a score of zero: the attempt is
repeated or dropped. :func:`boundary` attributes whatever escapes a seam to that seam's type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "BudgetExhausted",
    "ConflictError",
    "ContextOverflow",
    "EnvironmentFault",
    "InfrastructureError",
    "InstarError",
    "InvalidContent",
    "LabMisuse",
    "LeaseLost",
    "ModelError",
    "NotFoundError",
    "ParseFailure",
    "PermissionDenied",
    "PrerequisiteError",
    "ReplayDiverged",
    "RunCancelled",
    "StaleProposal",
    "StoreError",
    "TaskFileError",
    "ToolError",
    "ToolServerError",
    "UserError",
    "VerifierError",
    "boundary",
]


class InstarError(Exception):
    """Any error that Instar raises on purpose.

    Args:
        message: What happened, quoting the offending value.
        remedy: What to do about it; shown after the message.
    """

    code: str = "internal"

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        between = "" if self.message.endswith("\n") else " "
        return f"{self.message}{between}{self.remedy}".strip()

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.remedy))


def _rebuild(kind: type[InstarError], message: str, remedy: str) -> InstarError:
    return kind(message, remedy=remedy)


class UserError(InstarError):
    """A mistake in what a person asked for; nothing was changed."""

    code = "invalid"


class InvalidContent(UserError):
    """A content or a name is not what its kind takes, or exceeds a limit; nothing was stored."""

    code = "validation"


class NotFoundError(UserError):
    """The named thing does not exist in this project."""

    code = "not-found"


class ConflictError(UserError):
    """The thing changed meanwhile, or already exists with other content."""

    code = "conflict"


class PermissionDenied(UserError):
    """The credential may not do this."""

    code = "forbidden"


class PrerequisiteError(UserError):
    """Something must be installed, set or freed first (package, key, port, disk, Python)."""

    code = "prerequisite"


class TaskFileError(UserError):
    """A tasks file is broken; names the line and the cause, and nothing was imported."""

    code = "task-file"


class StaleProposal(ConflictError):
    """The label moved since the proposal was tested; it must be tested again."""

    code = "stale-proposal"


class BudgetExhausted(InstarError):
    """The next step does not fit into what is left of a budget; nothing was spent for it."""

    code = "budget-exhausted"


class RunCancelled(InstarError):
    """A person cancelled the run."""

    code = "cancelled"


class LeaseLost(InstarError):
    """Another worker holds the job now (fencing token out of date); this one must stop writing."""

    code = "lease-lost"


class ReplayDiverged(InstarError):
    """On replay the evolver asked for something else under the same effect key."""

    code = "replay-diverged"


class LabMisuse(InstarError):
    """An evolver used the Lab in a way that could not be replayed."""

    code = "lab-misuse"


class ParseFailure(InstarError):
    """A model's reply stayed unusable after it was shown the error; quotes what came back."""

    code = "parse-failure"


class VerifierError(InstarError):
    """A verifier is configured wrongly or failed by itself (not the agent's fault)."""

    code = "verifier"


class InfrastructureError(InstarError):
    """A fault outside the agent: retry, or drop the attempt; never a score.

    Set ``nothing_sent`` on an instance raised before anything left this machine: its reservation is
    then released instead of being booked as spent.
    """

    code = "infrastructure"
    nothing_sent: bool = False


class StoreError(InfrastructureError):
    """The database is away, read-only, full, or of the wrong schema revision."""

    code = "store"


class ModelError(InfrastructureError):
    """A model provider or the local engine failed (connection, rate limit, 5xx)."""

    code = "model"


class ToolServerError(InfrastructureError):
    """An MCP server did not start, died, or spoke something else."""

    code = "tool-server"


class EnvironmentFault(InfrastructureError):
    """A task's environment could not be prepared, reset or inspected."""

    code = "environment"


class ContextOverflow(InstarError):
    """The messages do not fit into the model's context: the agent's doing, not a fault outside."""

    code = "context-overflow"


class ToolError(InstarError):
    """A tool call failed in a way the agent should see as an observation."""

    code = "tool"


@contextmanager
def boundary(kind: type[InstarError], what: str, *, remedy: str = "") -> Iterator[None]:
    """Attributes whatever escapes the block to ``kind``; Instar's own errors pass unchanged.

    Args:
        kind: The error type of this seam.
        what: What was being done, for the message ("starting MCP server 'desk'").
        remedy: What a person can do about it.

    Raises:
        InstarError: ``kind``, caused by whatever escaped. Cancellation passes untouched.
    """
    try:
        yield
    except (InstarError, asyncio.CancelledError, KeyboardInterrupt, SystemExit):
        raise
    except TimeoutError as error:
        raise kind(f"{what}: timed out ({error})".replace(" ()", ""), remedy=remedy) from error
    except Exception as error:
        raise kind(f"{what}: {type(error).__name__}: {error}", remedy=remedy) from error
