"""Protection: how a backup is encrypted (age), and what opens it again."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, NamedTuple

from instar.backup.age import load_age
from instar_core.errors import PrerequisiteError, UserError

__all__ = [
    "Protection",
    "Unlock",
    "is_open_to_others",
    "read_identities",
    "read_passphrase",
    "recipients_of",
]

_LEAST = 12


class Protection(NamedTuple):
    """How to encrypt: to recipients, with a passphrase, or (said aloud) not at all."""

    recipients: tuple[str, ...] = ()
    passphrase: str = ""
    none: bool = False

    @property
    def kind(self) -> str:
        """``recipients``, ``passphrase`` or ``none``.

        Raises:
            UserError: Nothing was chosen, or several things.
        """
        chosen = [bool(self.recipients), bool(self.passphrase), self.none]
        if sum(chosen) == 1:
            return ("recipients", "passphrase", "none")[chosen.index(True)]
        said = "nothing" if not any(chosen) else "more than one of them"
        raise UserError(
            f"a backup is encrypted to a recipient or with a passphrase, and {said} was named.",
            remedy="Name --recipient age1… (a key made by `age-keygen`) or --passphrase-file FILE; "
            "--no-encryption leaves everything in it readable.",
        )


class Unlock(NamedTuple):
    """What may open a backup: age identities (``AGE-SECRET-KEY-1…``), or a passphrase."""

    identities: tuple[str, ...] = ()
    passphrase: str = ""


def recipients_of(names: tuple[str, ...]) -> list[Any]:
    """The age recipients of these names.

    Raises:
        UserError: One is no age recipient; a secret key is never quoted.
    """
    pyrage = load_age()

    found: list[Any] = []
    for name in names:
        if name.upper().startswith("AGE-SECRET-KEY"):
            raise UserError(
                "a recipient is a public key; a secret key was named.",
                remedy="Name the line that begins with 'age1' (`age-keygen -y KEYFILE` shows it).",
            )
        try:
            found.append(pyrage.x25519.Recipient.from_str(name))
        except pyrage.RecipientError as error:
            raise UserError(
                f"{name!r} is not an age recipient.",
                remedy="Name a public key that begins with 'age1', as `age-keygen` prints it.",
            ) from error
    return found


def read_passphrase(path: Path) -> str:
    """The passphrase in a file, without the line's end.

    Raises:
        UserError: The file cannot be read, or the passphrase is too short to protect anything.
    """
    words = _read(path).strip("\r\n")
    if len(words) < _LEAST:
        raise UserError(
            f"the passphrase in {str(path)!r} has {len(words)} characters; it needs {_LEAST} or "
            "more.",
            remedy="Use several random words.",
        )
    return words


def read_identities(path: Path) -> tuple[str, ...]:
    """The age identities in a key file; comments are skipped.

    Raises:
        UserError: The file cannot be read, or holds none.
    """
    pyrage = load_age()

    lines = [line.strip() for line in _read(path).splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    try:
        for key in keys:
            pyrage.x25519.Identity.from_str(key)
    except pyrage.IdentityError as error:
        raise UserError(
            f"{str(path)!r} holds a line that is no age identity.",
            remedy="Name a key file as `age-keygen` writes it (AGE-SECRET-KEY-1…).",
        ) from error
    if not keys:
        raise UserError(
            f"{str(path)!r} holds no age identity.",
            remedy="Name a key file as `age-keygen` writes it (AGE-SECRET-KEY-1…).",
        )
    return tuple(keys)


def is_open_to_others(path: Path) -> bool:
    """Whether other users of this machine may read a file that holds a passphrase or a key."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o044)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PrerequisiteError(
            f"{str(path)!r} cannot be read: {getattr(error, 'strerror', '') or 'it is not text'}.",
            remedy="Name a text file that this user may read.",
        ) from error
