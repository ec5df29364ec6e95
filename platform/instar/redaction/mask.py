"""Masking: known values and whatever looks like a credential are replaced in texts and structures.

Known values are found by their first characters in a table, so that a line costs the same whether
ten secrets are known or ten thousand.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from instar.redaction.encodings import SHORTEST, forms_of
from instar.redaction.names import MASK, is_secret_name, is_secret_variable

__all__ = [
    "mask_known",
    "redact",
    "redact_log",
    "redact_text",
    "register_secret",
    "scope_redaction",
]

_OWN_KEY = re.compile(r"\binstar_[A-Za-z0-9_-]{40,}")
_SHAPES = (
    (re.compile(r"(?i)(://[^/\s:@]*:)[^@/\s]+(@)"), rf"\1{MASK}\2"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {MASK}"),
    (
        re.compile(r"\b(sk|pk|rk|ghp|gho|glpat|xox[abprs]|hf|AIza|AKIA)[-_]?[A-Za-z0-9_-]{16,}"),
        MASK,
    ),
    (_OWN_KEY, MASK),
    (
        # A reference to a secret (`${secret:…}`) is no secret.
        re.compile(
            r"(?i)((?<!\$\{)(?:api[-_]?key|secret|password|access[-_]?token)[\w-]*"
            r"[\"']?\s*[=:]\s*[\"']?)(?!\$\{secret:)[^\s\"',;&}]{4,}"
        ),
        rf"\1{MASK}",
    ),
)
_USERINFO = re.compile(r"://[^/\s:@]*:([^@/\s]+)@")


class _Table:
    """Known forms by their first characters; within one start the longest first."""

    def __init__(self, forms: Iterable[str]) -> None:
        self.by_start: dict[str, tuple[str, ...]] = {}
        starts: dict[str, set[str]] = {}
        for form in forms:
            starts.setdefault(form[:SHORTEST], set()).add(form)
        for start, found in starts.items():
            self.by_start[start] = tuple(sorted(found, key=lambda form: (-len(form), form)))

    def mask(self, text: str) -> str:
        """The text with every known form masked; overlapping ones as one."""
        spans: list[tuple[int, int]] = []
        by_start = self.by_start
        for place in range(len(text) - SHORTEST + 1):
            found = by_start.get(text[place : place + SHORTEST])
            if found is None:
                continue
            for form in found:
                if text.startswith(form, place):
                    end = place + len(form)
                    if spans and place < spans[-1][1]:
                        spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
                    else:
                        spans.append((place, end))
                    break
        if not spans:
            return text
        parts, last = [], 0
        for begin, end in spans:
            parts += [text[last:begin], MASK]
            last = end
        return "".join([*parts, text[last:]])


class _Known:
    """What this process knows to be secret: registered values, by project, and its environment's.

    A project's values mask only texts of that project where a project is in scope: by masking, one
    project could else try guesses at the secrets of another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registered: dict[str | None, set[str]] = {}
        self._environment: frozenset[str] = frozenset()
        self._tables: dict[str | None, _Table] = {}

    def add(self, value: str, project_id: str | None) -> None:
        with self._lock:
            values = self._registered.setdefault(project_id, set())
            if value not in values:
                values.add(value)
                self._tables.clear()

    def table(self, project_id: str | None = None) -> _Table:
        """The values of one project and of none; all there are without a project."""
        found = _environment_values()
        with self._lock:
            if found != self._environment:
                self._environment = found
                self._tables.clear()
            if project_id not in self._tables:
                values = set(found)
                for owner, registered in self._registered.items():
                    if project_id is None or owner in (None, project_id):
                        values |= registered
                forms = (form for value in values for form in forms_of(value))
                self._tables[project_id] = _Table(forms)
            return self._tables[project_id]

    def copy(self) -> dict[str | None, set[str]]:
        """What is registered now; for tests, which put it back."""
        with self._lock:
            return {owner: set(values) for owner, values in self._registered.items()}

    def put_back(self, registered: dict[str | None, set[str]]) -> None:
        """Knows again what it knew when it was copied, and nothing else."""
        with self._lock:
            self._registered = registered
            self._tables.clear()


_known = _Known()
_scope: ContextVar[str | None] = ContextVar("project whose secrets are masked", default=None)


def _environment_values() -> frozenset[str]:
    """Values of secret variables, and passwords inside the addresses that others hold."""
    found = set()
    for name, value in os.environ.items():
        if len(value) < SHORTEST:
            continue
        if is_secret_variable(name) and not value.isspace() and not _is_path(value):
            found.add(value)
        if "://" in value and "@" in value:
            found.update(one for one in _USERINFO.findall(value) if len(one) >= SHORTEST)
    return frozenset(found)


def _is_path(value: str) -> bool:
    """Whether it is where a secret lies, such as a key's file, and none itself."""
    return value.startswith("/") and os.path.exists(value)


def scope_redaction(project_id: str) -> None:
    """Lets what follows in this request or job mask the values of one project, and of none.

    Logs go on masking every value that the process knows.
    """
    _scope.set(project_id)


def register_secret(value: str, project_id: str | None = None) -> None:
    """Makes a value known as secret in this process, whatever text it appears in later.

    Values shorter than six characters are not taken: they would mask ordinary words.

    Args:
        value: The secret value.
        project_id: Whose it is, where it belongs to a project and not to the installation.
    """
    if len(value) >= SHORTEST:
        _known.add(value, project_id)


def mask_known(text: str) -> str:
    """The text with every known secret masked, also encoded; what merely looks secret stays.

    For content that must otherwise stay as it is: results of tools, answers that are kept.
    """
    return _OWN_KEY.sub(MASK, _known.table(_scope.get()).mask(text))


def redact_text(text: str) -> str:
    """The text with every known secret, and whatever looks like one, replaced by a mask."""
    return _redact_text(text, _known.table(_scope.get()))


def redact_log(text: str) -> str:
    """As :func:`redact_text`, by every value that the process knows, whatever is in scope."""
    return _redact_text(text, _known.table())


def _redact_text(text: str, table: _Table) -> str:
    text = table.mask(text)
    for pattern, replacement in _SHAPES:
        text = pattern.sub(replacement, text)
    return text


def redact(value: Any) -> Any:
    """The same structure with secrets masked: whole values under secret names, and inside texts.

    Args:
        value: Mappings, sequences, texts and scalars, nested as they like.

    Returns:
        A copy; the argument is not changed.
    """
    return _redact(value, _known.table(_scope.get()))


def _redact(value: Any, table: _Table) -> Any:
    if isinstance(value, str):
        return _redact_text(value, table)
    if isinstance(value, Mapping):
        return {
            (_redact_text(key, table) if isinstance(key, str) else key): MASK
            if is_secret_name(str(key)) and item not in (None, "")
            else _redact(item, table)
            for key, item in value.items()
        }
    if isinstance(value, bytes | bytearray):
        return value
    if isinstance(value, Sequence):
        return [_redact(item, table) for item in value]
    return value
