"""Keys: the key files that a backup leaves out, told apart by fingerprints, and put back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from instar.audit.keys import load_signer, signing_key_file, vouch_for_lost_key
from instar.backup.manifest import KeyFile
from instar.backup.place import layout_of
from instar.embedded.files import private_write
from instar.settings import Settings
from instar.store.keyring import KeySource
from instar_core.errors import PrerequisiteError, UserError

__all__ = [
    "AUDIT_KEY",
    "MADE_ANEW",
    "NEEDED",
    "SECRET_KEYS",
    "KeyChoice",
    "choose_keys",
    "fingerprints",
]

SECRET_KEYS, AUDIT_KEY = "secrets.keys", "audit_signing.key"
NEEDED = {
    SECRET_KEYS: "it opens the secrets of every project",
    AUDIT_KEY: "it signs the checkpoints of the audit chain",
}
"""Key files that a restored installation wants back, and what for."""
MADE_ANEW = ("api.key", "secrets.json", "postgres/superuser.password")
"""Key files of one machine; a restore makes others."""


def fingerprints(settings: Settings, secret_keys: Iterable[str]) -> tuple[KeyFile, ...]:
    """What the manifest says about the key files.

    Args:
        settings: Settings of this process; they say where keys are.
        secret_keys: Ids of the keys that stored secrets are under.

    Raises:
        PrerequisiteError: A key file cannot be read.
    """
    found = [KeyFile(name=SECRET_KEYS, fingerprint=key_id) for key_id in sorted(secret_keys)]
    if signing_key_file(settings).exists():
        public = load_signer(settings).public
        found.append(KeyFile(name=AUDIT_KEY, fingerprint=public.id))
    for name in MADE_ANEW:
        path = layout_of(settings).data_dir / name
        if path.is_file():
            found.append(KeyFile(name=name, fingerprint=_fingerprint(name, path)))
    return tuple(found)


def _fingerprint(name: str, path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PrerequisiteError(
            f"the key file {str(path)!r} cannot be read: {error.strerror}.",
            remedy="Run this as the user who owns it.",
        ) from error
    # The label keeps it apart from any other hash of the same bytes.
    return hashlib.sha256(b"instar key file\n" + name.encode() + b"\n" + data).hexdigest()[:32]


class KeyChoice(NamedTuple):
    """What is done about the keys that a backup needs.

    Attributes:
        files: Name → file to be put in place.
        present: Names of those that are there already (in the environment, or a file elsewhere).
        lost: Those that the restored installation has to do without.
    """

    files: dict[str, Path]
    present: frozenset[str]
    lost: tuple[KeyFile, ...]

    def place(self, settings: Settings) -> None:
        """Puts the files in place, readable by their owner alone; makes up for a lost signing key.

        Raises:
            PrerequisiteError: A file cannot be written.
        """
        targets = {
            SECRET_KEYS: KeySource.of(settings).path,
            AUDIT_KEY: signing_key_file(settings),
        }
        for name, source in self.files.items():
            target = targets[name]
            target.parent.mkdir(parents=True, exist_ok=True)
            private_write(target, source.read_text(encoding="utf-8"))
        for key in self.lost:
            if key.name == AUDIT_KEY:
                vouch_for_lost_key(settings, key.fingerprint)


def choose_keys(
    settings: Settings, wanted: tuple[KeyFile, ...], folder: Path | None, without: bool
) -> KeyChoice:
    """Decides about every needed key, before anything is restored.

    Args:
        settings: Settings of this process; keys may come from the environment.
        wanted: What the manifest names.
        folder: Where the person has the files.
        without: The person goes on without those that are not there.

    Raises:
        UserError: Keys are needed and nothing was said about them, or a file is missing, another
            one than the backup's, or about to be cleared.
    """
    if without and folder is not None:
        raise UserError("--keys and --without-keys exclude each other.", remedy="Name one of them.")
    needed = [key for key in wanted if key.name in NEEDED]
    present = frozenset(key.name for key in needed) & frozenset(_present(settings, needed))
    missing = [key for key in needed if key.name not in present]
    if without:
        return KeyChoice({}, present, tuple(missing))
    if missing and folder is None:
        names = "\n".join(f"  {_words(key)}" for key in missing)
        raise UserError(
            f"the backup leaves these keys out:\n{names}",
            remedy="Name the folder that holds the files with --keys DIR (the old data directory, "
            "or where you keep copies), or go on without them with --without-keys.",
        )
    files: dict[str, Path] = {}
    for key in missing:
        assert folder is not None, "checked above"
        path = folder / key.name
        if _is_cleared(settings, path):
            raise UserError(
                f"{str(folder)!r} holds what an unfinished restore left, which is cleared first.",
                remedy="Name the folder that the keys came from, or move them out of this one.",
            )
        if not path.is_file():
            raise UserError(
                f"{str(folder)!r} has no file {key.name!r}, which the backup needs: {_words(key)}.",
                remedy="Name the folder that holds it, or go on with --without-keys.",
            )
        if key.fingerprint not in _ids(settings, key.name, path):
            raise UserError(
                f"{str(path)!r} does not hold the key of this backup: {_words(key)}.",
                remedy="Name the folder with the keys of the installation that was backed up.",
            )
        files[key.name] = path
    return KeyChoice(files, present, ())


def _present(settings: Settings, needed: list[KeyFile]) -> Iterable[str]:
    """Which key files need no placing: the settings name them elsewhere, and they fit."""
    source, signing = KeySource.of(settings), signing_key_file(settings)
    for name in NEEDED:
        ids = {key.fingerprint for key in needed if key.name == name}
        if name == SECRET_KEYS:
            if (source.environment or _stays(settings, source.path)) and ids <= set(
                source.read().keys
            ):
                yield name
        elif _stays(settings, signing) and ids == {load_signer(settings).public.id}:
            yield name


def _stays(settings: Settings, path: Path) -> bool:
    """Whether a file is there, and will be once the restore has begun."""
    return path.exists() and not _is_cleared(settings, path)


def _is_cleared(settings: Settings, path: Path) -> bool:
    """Whether a file is part of an unfinished restore, which the next one clears away."""
    layout = layout_of(settings)
    return layout.restoring.exists() and path.resolve().is_relative_to(layout.data_dir.resolve())


def _ids(settings: Settings, name: str, path: Path) -> set[str]:
    """The fingerprints of the keys in a file."""
    if name == SECRET_KEYS:
        return set(KeySource(path).read().keys)
    audit = settings.audit.model_copy(update={"signing_key_file": path})
    return {load_signer(settings.model_copy(update={"audit": audit})).public.id}


def _words(key: KeyFile) -> str:
    return f"{key.name}, fingerprint {key.fingerprint} ({NEEDED[key.name]})"
