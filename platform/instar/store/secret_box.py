"""The box: how one secret is encrypted, and what its ciphertext is bound to.

AES-256-GCM with a random 96-bit nonce. The associated data hold everything that says what the
secret is and where it may be used: a ciphertext that is moved to another row, project, name or
revision, or whose row is declared fit for rollouts by hand, cannot be opened.
"""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from instar_core.base import canonical_json
from instar_core.errors import StoreError

__all__ = ["Binding", "Sealed", "SecretUse", "open_box", "seal"]

SecretUse = Literal["production", "rollouts"]
_NONCE_BYTES = 12
_LENGTH_BYTES = 4
_BLOCK = 64
"""Values are padded to whole blocks: a ciphertext's length does not tell a short password."""


class Binding(NamedTuple):
    """What a ciphertext belongs to."""

    project_id: str
    secret_id: str
    name: str
    use: str
    revision: int
    key_id: str

    def data(self) -> bytes:
        """The associated data."""
        return canonical_json(["instar.secret", 1, *self])


class Sealed(NamedTuple):
    """An encrypted value."""

    nonce: bytes
    ciphertext: bytes


def seal(key: bytes, binding: Binding, value: str) -> Sealed:
    """Encrypts a value under a fresh nonce."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    data = value.encode("utf-8")
    plain = len(data).to_bytes(_LENGTH_BYTES, "big") + data
    plain += bytes(-len(plain) % _BLOCK)
    nonce = os.urandom(_NONCE_BYTES)
    return Sealed(nonce, AESGCM(key).encrypt(nonce, plain, binding.data()))


def open_box(key: bytes, binding: Binding, sealed: Sealed) -> str:
    """The value.

    Raises:
        StoreError: The ciphertext does not belong to the key and the binding: it was changed or
            moved in the database.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        plain = AESGCM(key).decrypt(sealed.nonce, sealed.ciphertext, binding.data())
    except (InvalidTag, ValueError) as error:
        raise StoreError(
            f"the secret {binding.name!r} cannot be decrypted with its key {binding.key_id}: its "
            "row was changed by hand or damaged.",
            remedy="Restore the database from a backup, or set the secret anew.",
        ) from error
    length = int.from_bytes(plain[:_LENGTH_BYTES], "big")
    return plain[_LENGTH_BYTES : _LENGTH_BYTES + length].decode("utf-8")
