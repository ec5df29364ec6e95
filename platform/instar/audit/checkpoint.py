"""Checkpoints: the heads of all of a project's audit streams at one moment, as a signed document.

The document, whose canonical JSON bytes are hashed and signed::

    {"format": 1, "installation": "…", "project": "…",
     "seq": 7,                    # 1, 2, 3 … without gaps
     "previous": "…",             # hash of the document before; empty in the first
     "at": "2026-01-31T09:30:00.000000Z",   # never before the document before
     "rows": 1200, "streams": 14, # of all streams together, this moment
     "root": "…",                 # over all heads, see below
     "complete": true,            # false: so many heads changed that the next document has the rest
     "heads": [["admin", 120, "…", "1f00a2b3…"], …]}

``heads`` has only the streams that grew since the document before: the stream, its last number,
the link of that row, and the first 8 hex digits of the link of every row since (empty when there
are too many). The links' beginnings find the first row that differs where an attacker computed a
whole chain anew; what proves that it differs is the full link. Folding the documents from the first
on gives the heads of all streams at each of them, and ``root`` proves that the fold has them all:
it is the sha256 of the concatenation, in byte order of the streams' names, of the sha256 of
``stream "\\n" number "\\n" link``.

The signature is Ed25519 over ``"instar audit checkpoint 1\\n"`` and the canonical bytes. One line
of the copy outside the database is the JSON object of document, hash, key id and signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import Field

from instar.audit.keys import PublicKey, Signer
from instar_core.base import Frozen, canonical_json, content_hash

__all__ = ["LINK_DIGITS", "Checkpoint", "Document", "Head", "checkpoint_problem", "root_of", "seal"]

LINK_DIGITS = 8
"""Hex digits of each row's link that a checkpoint keeps."""
_DOMAIN = b"instar audit checkpoint 1\n"


class Head(NamedTuple):
    """Where a stream stood: its last number, that row's link, and beginnings of the links since."""

    stream: str
    seq: int
    hash: str
    links: str = ""


class Document(Frozen):
    """What is signed; see the module's description."""

    format: int = 1
    installation: str
    project: str
    seq: int = Field(ge=1)
    previous: str = ""
    at: str
    rows: int = Field(ge=0)
    streams: int = Field(ge=0)
    root: str
    complete: bool = True
    heads: tuple[Head, ...] = ()


class Checkpoint(Frozen):
    """A document with its hash and its signature, as it is stored and copied."""

    document: Document
    hash: str
    key_id: str
    signature: str

    @property
    def seq(self) -> int:
        """Its number."""
        return self.document.seq

    def line(self) -> bytes:
        """Its line in the copy outside the database."""
        return canonical_json(self) + b"\n"


def seal(document: Document, signer: Signer) -> Checkpoint:
    """The document with hash and signature."""
    data = canonical_json(document)
    return Checkpoint(
        document=document,
        hash=content_hash(data),
        key_id=signer.public.id,
        signature=signer.sign(_DOMAIN + data),
    )


def checkpoint_problem(checkpoint: Checkpoint, trusted: Mapping[str, PublicKey]) -> str:
    """What is wrong with a checkpoint by itself, in words; empty if nothing is."""
    data = canonical_json(checkpoint.document)
    if content_hash(data) != checkpoint.hash:
        return "its document was changed: it does not match its hash"
    key = trusted.get(checkpoint.key_id)
    if key is None:
        return (
            f"it is signed by the key {checkpoint.key_id}, which is not trusted here (trusted: "
            f"{', '.join(sorted(trusted)) or 'none'})"
        )
    if not key.verifies(checkpoint.signature, _DOMAIN + data):
        return "it is forged: its signature is not that of the key it names"
    return ""


def root_of(heads: Mapping[str, tuple[int, str]]) -> str:
    """The root over all heads, given as stream → (number, link)."""
    total = hashlib.sha256()
    for stream in sorted(heads, key=lambda name: name.encode("utf-8")):
        seq, link = heads[stream]
        total.update(hashlib.sha256(f"{stream}\n{seq}\n{link}".encode()).digest())
    return total.hexdigest()
