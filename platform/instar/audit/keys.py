"""Signing keys: the Ed25519 key pair of an installation, and whom its verifier trusts.

A key is named by its fingerprint: the first 32 hex digits of the sha256 of the raw public key. The
private key is one PEM file that only its owner may read. ``keys.json``, beside the checkpoints'
copies, lists every public key this installation has had. A key that replaced another is signed by
the one before, and signs that one in turn, so that whoever trusts any of them can follow to all.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from instar.embedded.files import private_write
from instar.embedded.layout import Layout
from instar.settings import Settings
from instar_core.base import Frozen, canonical_json, content_hash
from instar_core.errors import PrerequisiteError, UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "KEYS_FILE",
    "PublicKey",
    "Signer",
    "audit_dir",
    "ensure_signing_key",
    "listed_keys",
    "load_signer",
    "read_public_key",
    "rotate_signing_key",
    "signing_key_file",
    "trusted_keys",
    "vouch_for_lost_key",
]

KEYS_FILE = "keys.json"
_DOMAIN = b"instar audit key 1\n"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key: its fingerprint and its 32 raw bytes."""

    id: str
    raw: bytes

    @property
    def pem(self) -> str:
        """The key as PEM text, for people to keep."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        key = Ed25519PublicKey.from_public_bytes(self.raw)
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")

    def verifies(self, signature: str, message: bytes) -> bool:
        """Whether the signature (hex) is this key's over the message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(bytes.fromhex(signature), message)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Signer:
    """What signs: the private key of this installation."""

    public: PublicKey
    _private: Ed25519PrivateKey

    def sign(self, message: bytes) -> str:
        """The signature over the message, in hex."""
        return self._private.sign(message).hex()


class _Entry(Frozen):
    """One public key, and how it is tied to the one before."""

    key_id: str
    public_key: str = Field(description="PEM")
    created_at: datetime
    previous: str = Field(default="", description="fingerprint of the key it replaced")
    signature: str = Field(default="", description="by the key before, over both fingerprints")
    countersignature: str = Field(default="", description="by this key, over the same")


class _KeysFile(Frozen):
    format: int = 1
    keys: tuple[_Entry, ...] = ()


def audit_dir(settings: Settings) -> Path:
    """The folder of the checkpoints' copies outside the database."""
    layout = Layout(settings.data_dir.expanduser().absolute())
    return settings.audit.dir.expanduser().absolute() if settings.audit.dir else layout.audit


def signing_key_file(settings: Settings) -> Path:
    """The file of the private key."""
    named = settings.audit.signing_key_file
    if named is not None:
        return named.expanduser().absolute()
    return Layout(settings.data_dir.expanduser().absolute()).audit_key


def ensure_signing_key(settings: Settings) -> Signer:
    """The installation's signer; its key is made when there is none, and listed in ``keys.json``.

    Raises:
        PrerequisiteError: The file cannot be read or written, or holds no Ed25519 key.
    """
    path, folder = signing_key_file(settings), audit_dir(settings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(folder):
            if not path.exists():
                private_write(path, _new_private_pem())
            signer = load_signer(settings)
            known = _read_keys(folder)
            if all(entry.key_id != signer.public.id for entry in known.keys):
                _write_keys(folder, (*known.keys, _entry(signer.public)))
    except OSError as error:
        raise PrerequisiteError(
            f"the key that signs audit checkpoints cannot be kept in {str(path)!r}: "
            f"{error.strerror}.",
            remedy="Give this user the right to write there, or set "
            "INSTAR_AUDIT__SIGNING_KEY_FILE and INSTAR_AUDIT__DIR.",
        ) from error
    return signer


def load_signer(settings: Settings) -> Signer:
    """The signer of this installation.

    Raises:
        PrerequisiteError: The file is missing, cannot be read, or holds no Ed25519 key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    path = signing_key_file(settings)
    try:
        private = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise PrerequisiteError(
            f"the key that signs audit checkpoints cannot be read from {str(path)!r}: "
            f"{error.strerror}.",
            remedy="`instar up` makes it at the first start; after a restore, put the file back "
            "from where keys are kept.",
        ) from error
    except (ValueError, TypeError) as error:
        raise PrerequisiteError(
            f"{str(path)!r} holds no private key as unencrypted PEM.",
            remedy="Put the file back from where keys are kept.",
        ) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise PrerequisiteError(
            f"{str(path)!r} holds a key of another kind than Ed25519.",
            remedy="Make one with: openssl genpkey -algorithm ed25519",
        )
    return Signer(_public_of(private.public_key().public_bytes_raw()), private)


def rotate_signing_key(settings: Settings) -> Signer:
    """Replaces the signing key by a new one that the old one signs; the old file is kept aside.

    Returns:
        The new signer. Checkpoints of the old key stay valid.

    Raises:
        PrerequisiteError: The old key cannot be read, or the new one cannot be written.
    """
    path, folder = signing_key_file(settings), audit_dir(settings)
    old = ensure_signing_key(settings)
    try:
        with _locked(folder):
            made = _new_private_pem()
            new = _signer_of(made)
            statement = _statement(old.public.id, new.public)
            entry = _entry(
                new.public,
                previous=old.public.id,
                signature=old.sign(statement),
                countersignature=new.sign(statement),
            )
            # The list first: a crash in between leaves a listed key that nothing was signed with.
            _write_keys(folder, (*_read_keys(folder).keys, entry))
            os.replace(path, path.with_name(f"{path.name}.{old.public.id}"))
            private_write(path, made)
    except OSError as error:
        raise PrerequisiteError(
            f"the signing key in {str(path)!r} cannot be replaced: {error.strerror}."
        ) from error
    return new


def vouch_for_lost_key(settings: Settings, lost: str) -> Signer:
    """Makes a signing key after a restore without the old one, and lists it as its successor.

    The new key signs that the old one came before it, so whoever trusts the new one can verify the
    older checkpoints too. The old key cannot sign the new one: who trusts only the old one sees
    that the chain goes on under a key that nothing ties to it, and has to be told.

    Args:
        settings: Settings of this process; there is no key yet.
        lost: Fingerprint of the key that is gone; ``keys.json`` lists its public half.
    """
    signer, folder = ensure_signing_key(settings), audit_dir(settings)
    with _locked(folder):
        known = _read_keys(folder).keys
        if all(entry.key_id != lost for entry in known) or signer.public.id == lost:
            return signer
        tied = signer.sign(_statement(lost, signer.public))
        entry = _entry(signer.public, previous=lost, countersignature=tied)
        others = tuple(one for one in known if one.key_id != signer.public.id)
        _write_keys(folder, (*others, entry))
    return signer


def trusted_keys(folder: Path, anchors: Iterable[PublicKey]) -> dict[str, PublicKey]:
    """Fingerprint → public key of everything that the anchors vouch for, by ``keys.json``.

    Args:
        folder: Where ``keys.json`` lies; may be missing.
        anchors: Keys that are trusted to begin with.
    """
    trusted = {key.id: key for key in anchors}
    entries = _read_keys(folder).keys
    for _ in entries:
        before = len(trusted)
        for entry in entries:
            _follow(entry, entries, trusted)
        if len(trusted) == before:
            break
    return trusted


def _follow(entry: _Entry, entries: Sequence[_Entry], trusted: dict[str, PublicKey]) -> None:
    """Extends trust over one replacement, in either direction."""
    if not entry.previous:
        return
    listed = {one.key_id: one.public_key for one in entries}
    try:
        new = read_public_key(entry.public_key)
        old = read_public_key(listed[entry.previous])
    except (UserError, KeyError):
        return
    statement = _statement(old.id, new)
    if old.id in trusted and trusted[old.id].verifies(entry.signature, statement):
        trusted.setdefault(new.id, new)
    if new.id in trusted and trusted[new.id].verifies(entry.countersignature, statement):
        trusted.setdefault(old.id, old)


def read_public_key(pem: str) -> PublicKey:
    """The public key in PEM text.

    Raises:
        UserError: It is no PEM, or a key of another kind than Ed25519.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key: object = None
    with suppress(ValueError, TypeError):
        key = load_pem_public_key(pem.encode("ascii", "replace"))
    if not isinstance(key, Ed25519PublicKey):
        raise UserError(
            "the text holds no Ed25519 public key as PEM.",
            remedy="Give what `instar audit key` printed: '-----BEGIN PUBLIC KEY-----' and so on.",
        )
    return _public_of(key.public_bytes_raw())


def _public_of(raw: bytes) -> PublicKey:
    return PublicKey(content_hash(raw)[:32], raw)


def _new_private_pem() -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    return pem.decode("ascii")


def _signer_of(pem: str) -> Signer:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private = load_pem_private_key(pem.encode("ascii"), password=None)
    assert isinstance(private, Ed25519PrivateKey), "the text was made here"
    return Signer(_public_of(private.public_key().public_bytes_raw()), private)


def _statement(previous: str, new: PublicKey) -> bytes:
    return _DOMAIN + canonical_json({"previous": previous, "key": new.raw.hex()})


def _entry(key: PublicKey, **ties: str) -> _Entry:
    return _Entry(key_id=key.id, public_key=key.pem, created_at=datetime.now(UTC), **ties)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the lock of an audit folder, so that two processes make one key."""
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read_keys(folder: Path) -> _KeysFile:
    path = folder / KEYS_FILE
    try:
        return _KeysFile.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return _KeysFile()
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise PrerequisiteError(
            f"{str(path)!r}, the list of the keys that signed audit checkpoints, cannot be read.",
            remedy="Restore it from a copy; it holds public keys only.",
        ) from error


def _write_keys(folder: Path, entries: tuple[_Entry, ...]) -> None:
    private_write(folder / KEYS_FILE, _KeysFile(keys=entries).model_dump_json(indent=1) + "\n")


def listed_keys(folder: Path) -> Mapping[str, str]:
    """Fingerprint → PEM of every key that ``keys.json`` lists, trusted or not."""
    return {entry.key_id: entry.public_key for entry in _read_keys(folder).keys}
