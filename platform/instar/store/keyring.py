"""Keyring: the keys that secrets are encrypted with, kept outside the database.

A key is 256 random bits; its id is a fingerprint, so that a row can say which key opens it without
saying anything about the key. The keyring is a file that its owner alone may read, or keys in the
environment. One key is active: it encrypts; the others still decrypt until a rotation is done.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import secrets
import stat
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from instar.embedded.files import private_write, sync_folder
from instar.redaction import register_secret
from instar.settings import Settings
from instar_core.errors import PrerequisiteError

__all__ = ["KeySource", "Keyring", "fingerprint"]

_FILE = "secrets.keys"
_FORMAT = 1
_KEY_BYTES = 32
_REMEDY = (
    "Restore the key file of this installation ({path}), or set INSTAR_SECRETS__KEY_FILE or "
    "INSTAR_SECRETS__KEYS. If the key is lost for good, start once with INSTAR_SECRETS__ABANDON="
    "{key_id}: that deletes the secrets that only it opens."
)


def fingerprint(key: bytes) -> str:
    """The id of a key: 16 hex digits that say nothing about it."""
    return hashlib.sha256(b"instar.secret.key\0" + key).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Keyring:
    """Keys by id, and which of them encrypts.

    Attributes:
        active: Id of the key that encrypts.
        keys: Key id → 32 bytes.
        created: Key id → when it was made (RFC 3339), as far as known.
    """

    active: str
    keys: dict[str, bytes]
    created: dict[str, str]

    def __repr__(self) -> str:
        return f"Keyring(active={self.active!r}, ids={sorted(self.keys)})"

    def with_new_key(self) -> Keyring:
        """The ring with a fresh key, which is active."""
        key = secrets.token_bytes(_KEY_BYTES)
        made = fingerprint(key)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Keyring(made, {**self.keys, made: key}, {**self.created, made: now})

    def without(self, key_ids: set[str]) -> Keyring:
        """The ring without some keys, never without the active one."""
        gone = key_ids - {self.active}
        keys = {key_id: key for key_id, key in self.keys.items() if key_id not in gone}
        return replace(self, keys=keys)


@dataclass(slots=True)
class KeySource:
    """Where this process gets its keyring from; reads the file again when it has changed.

    Attributes:
        path: The keyring's file.
        environment: Keys from the environment, which take the file's place.
    """

    path: Path
    environment: str = ""
    _ring: Keyring | None = None
    _seen: tuple[int, int, int] | None = None

    @classmethod
    def of(cls, settings: Settings) -> KeySource:
        """The source that the settings name; reads nothing yet."""
        path = settings.secrets.key_file or settings.data_dir / _FILE
        keys = settings.secrets.keys.get_secret_value().strip()
        return cls(path.expanduser().absolute(), keys)

    @property
    def writable(self) -> bool:
        """Whether keys can be added: not to those of the environment."""
        return not self.environment

    def read(self) -> Keyring:
        """The keyring as it is now.

        Raises:
            PrerequisiteError: There is none, it is damaged, or others may read it.
        """
        if self.environment:
            if self._ring is None:
                self._ring = _from_environment(self.environment)
                _register(self._ring)
            return self._ring
        seen = _check_file(self.path)
        if self._ring is None or seen != self._seen:
            self._ring, self._seen = _from_file(self.path), seen
            _register(self._ring)
        return self._ring

    def ensure(self) -> Keyring:
        """The keyring, with its first key made where there is none.

        Call it only where no secret is stored yet, or a lost key would be replaced in silence.
        """
        if self.environment or self.path.exists():
            return self.read()
        self.write(Keyring("", {}, {}).with_new_key())
        return self.read()

    def write(self, ring: Keyring) -> None:
        """Writes the file whole or not at all, readable by its owner alone, and waits for the disk.

        Raises:
            PrerequisiteError: The keys come from the environment, or the file cannot be written.
        """
        if not self.writable:
            raise PrerequisiteError(
                "the keys come from INSTAR_SECRETS__KEYS, which cannot be written.",
                remedy="Put the new key first in that variable (base64 of 32 random bytes), "
                "restart, and rotate again.",
            )
        document = {
            "format": _FORMAT,
            "active": ring.active,
            "keys": {
                key_id: {
                    "key": base64.b64encode(key).decode("ascii"),
                    "created_at": ring.created.get(key_id, ""),
                }
                for key_id, key in ring.keys.items()
            },
        }
        try:
            # What a kill in the middle of an earlier write left behind.
            for left in self.path.parent.glob(f".{self.path.name}.*"):
                left.unlink(missing_ok=True)
            private_write(self.path, json.dumps(document, indent=1) + "\n")
            sync_folder(self.path.parent)
        except OSError as error:
            raise PrerequisiteError(
                f"the key file {str(self.path)!r} cannot be written: {error.strerror}.",
                remedy="Give this user the right to write it, or name another with "
                "INSTAR_SECRETS__KEY_FILE.",
            ) from error

    def missing(self, key_id: str) -> PrerequisiteError:
        """The error for a key that stored secrets need and this ring has not."""
        return PrerequisiteError(
            f"secrets are encrypted with the key {key_id}, which is not in the keyring "
            f"({self.described}).",
            remedy=_REMEDY.format(path=self.path, key_id=key_id),
        )

    @property
    def described(self) -> str:
        """Where the keys come from, for messages."""
        return "INSTAR_SECRETS__KEYS" if self.environment else str(self.path)


def _register(ring: Keyring) -> None:
    for key in ring.keys.values():
        register_secret(base64.b64encode(key).decode("ascii"))
        register_secret(key.hex())


def _check_file(path: Path) -> tuple[int, int, int]:
    """Refuses a key file that others may read or change; its identity otherwise."""
    try:
        info = path.stat()
    except OSError as error:
        raise PrerequisiteError(
            f"the key file {str(path)!r} cannot be read: {error.strerror}.",
            remedy="Restore it from where you keep keys (backups leave it out), or name it with "
            "INSTAR_SECRETS__KEY_FILE; a new one is made by the first start (`instar up`).",
        ) from error
    if not stat.S_ISREG(info.st_mode):
        raise PrerequisiteError(f"the key file {str(path)!r} is no file.")
    mode = stat.S_IMODE(info.st_mode)
    # A secret that a container platform mounts is readable by a group and writable by nobody.
    allowed = 0o700 if mode & 0o200 else 0o550
    if mode & ~allowed:
        raise PrerequisiteError(
            f"the key file {str(path)!r} has mode {mode:04o}: other users may read or change it.",
            remedy=f"Run `chmod 600 {path}`, and rotate the keys (`instar secret rotate --prune`) "
            "if anybody may have read it.",
        )
    if info.st_uid not in (os.geteuid(), 0):
        raise PrerequisiteError(
            f"the key file {str(path)!r} belongs to user {info.st_uid}, not to this one "
            f"({os.geteuid()}).",
            remedy=f"Run `chown {os.geteuid()} {path}`.",
        )
    return (info.st_ino, info.st_mtime_ns, info.st_size)


def _from_file(path: Path) -> Keyring:
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] > _FORMAT:
            raise PrerequisiteError(
                f"the key file {str(path)!r} was written by a newer Instar.",
                remedy="Install that version.",
            )
        keys, created = {}, {}
        for key_id, entry in document["keys"].items():
            keys[key_id] = _decoded(entry["key"])
            created[key_id] = str(entry.get("created_at", ""))
            if fingerprint(keys[key_id]) != key_id:
                raise ValueError(f"key {key_id} has another fingerprint")
        active = str(document["active"])
        if active not in keys:
            raise ValueError("its active key is not in it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # The cause is named by its kind alone: its words may quote the file.
        why = str(error) if type(error) is ValueError else type(error).__name__
        raise PrerequisiteError(
            f"the key file {str(path)!r} is damaged ({why}).",
            remedy="Restore it from where you keep keys.",
        ) from None
    return Keyring(active, keys, created)


def _from_environment(text: str) -> Keyring:
    keys: dict[str, bytes] = {}
    for number, part in enumerate(text.split(","), start=1):
        try:
            key = _decoded(part.strip())
        except ValueError as error:
            raise PrerequisiteError(
                f"INSTAR_SECRETS__KEYS is wrong: its entry {number} {error}.",
                remedy="Write base64 of 32 random bytes: "
                '`python -c "import base64, os; print(base64.b64encode(os.urandom(32)).decode())"`'
                ".",
            ) from None
        keys[fingerprint(key)] = key
    return Keyring(next(iter(keys)), keys, {})


def _decoded(text: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64") from None
    if len(key) != _KEY_BYTES:
        raise ValueError(f"has {len(key)} bytes, not {_KEY_BYTES}")
    return key
