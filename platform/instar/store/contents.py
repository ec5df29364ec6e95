"""Contents: the immutable bytes that versions point to, and what may be stored as such.

A content is text or a JSON value. Its bytes are its canonical form, and their sha256 names the
blob. What no reader could take back (half a character, NUL, NaN, brackets without end) is refused
before anything is written, with the limit in the message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from instar.store.tables import BlobRow, VersionRow
from instar_core.base import JsonValue, canonical_json, content_hash
from instar_core.errors import InvalidContent, StoreError

__all__ = [
    "JSON",
    "MAX_CONTENT_BYTES",
    "MAX_DEPTH",
    "MAX_DESCRIPTION",
    "MAX_EVIDENCE_BYTES",
    "MAX_REASON",
    "MAX_TAG",
    "MAX_TAGS",
    "TEXT",
    "check_bytes",
    "check_tags",
    "check_value",
    "check_words",
    "decode_content",
    "encode_content",
    "is_too_deep",
    "lock_stream",
    "put_blobs",
    "read_content",
]

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
MAX_CONTENT_BYTES = 5_000_000
"""Bytes of one content, unless the setting ``registry.max_content_bytes`` says otherwise."""
MAX_DEPTH = 200
"""Objects and arrays inside each other."""
MAX_REASON = 20_000
MAX_DESCRIPTION = 10_000
MAX_EVIDENCE_BYTES = 1_000_000
MAX_TAGS = 50
MAX_TAG = 100
_LOCK_HEAD = text("select instar.lock_audit_head(cast(:project as uuid), :stream)")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACKETS = b"[]{}"
_NO_BRACKET = bytes(sorted(set(range(256)) - set(_BRACKETS)))
_AS_ONE_KIND = bytes.maketrans(b"{}", b"[]")


def encode_content(value: JsonValue) -> tuple[bytes, str]:
    """Bytes and media type of a content: text as UTF-8 just as it is, anything else canonical JSON.

    Raises:
        InvalidContent: If it holds what cannot be stored: half a character (a lone surrogate), a
            NUL character, NaN, or more than 200 objects and arrays inside each other.
    """
    check_value(value, "this content")
    try:
        if isinstance(value, str):
            return value.encode("utf-8"), TEXT
        return canonical_json(value), JSON
    except ValueError as error:
        raise InvalidContent(
            f"this content cannot be stored: {error}.",
            remedy="Send valid Unicode text, and numbers that JSON can write (no NaN).",
        ) from error


def decode_content(content: bytes, media_type: str) -> JsonValue:
    """The value that :func:`encode_content` was given."""
    decoded = content.decode("utf-8")
    value: JsonValue = decoded if media_type == TEXT else json.loads(decoded)
    return value


def check_value(value: JsonValue, what: str, *, around: int = 0) -> None:
    """Refuses a JSON value that nests too deeply or holds a NUL character.

    Args:
        value: The value.
        what: What it is, for the message.
        around: Levels that the service itself put around it, beyond the limit.

    Raises:
        InvalidContent: Naming the limit.
    """
    for depth, words in _texts(value):
        if depth > MAX_DEPTH + around:
            raise InvalidContent(
                f"{what} cannot be stored: it has more than {MAX_DEPTH} objects and arrays inside "
                "each other.",
                remedy="Flatten it.",
            )
        if "\x00" in words:
            raise InvalidContent(
                f"{what} cannot be stored: it holds a NUL character (U+0000).",
                remedy="Remove it, or send bytes in base64.",
            )


def check_bytes(content: bytes, limit: int, what: str) -> None:
    """Refuses bytes beyond a limit.

    Raises:
        InvalidContent: Naming the size and the limit.
    """
    if len(content) > limit:
        raise InvalidContent(
            f"{what} has {len(content):,} bytes; at most {limit:,} are stored.",
            remedy="Split it, or raise the setting registry.max_content_bytes.",
        )


def check_words(words: str, limit: int, what: str) -> None:
    """Refuses a text that people wrote (reason, description, cause) where it cannot be stored.

    Raises:
        InvalidContent: If it is longer than the limit, or holds NUL or half a character.
    """
    if len(words) > limit:
        raise InvalidContent(
            f"{what} has {len(words):,} characters; at most {limit:,} are stored.",
            remedy="Shorten it.",
        )
    if "\x00" in words:
        raise InvalidContent(f"{what} holds a NUL character (U+0000).", remedy="Remove it.")
    try:
        words.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidContent(
            f"{what} holds half a character (a lone surrogate at position {error.start}).",
            remedy="Send valid Unicode.",
        ) from error


def check_tags(tags: Sequence[str]) -> list[str]:
    """Tags without repetition, in their order.

    Raises:
        InvalidContent: If they are too many, or one is empty or too long.
    """
    found = list(dict.fromkeys(tags))
    if len(found) > MAX_TAGS:
        raise InvalidContent(
            f"there are {len(found)} tags; at most {MAX_TAGS} are stored.", remedy="Use fewer."
        )
    for tag in found:
        check_words(tag, MAX_TAG, f"the tag {tag[:20]!r}")
        if not tag.strip():
            raise InvalidContent(f"{tag!r} cannot be a tag.", remedy="Write a word.")
    return found


def is_too_deep(data: bytes, limit: int = MAX_DEPTH) -> bool:
    """Whether a JSON text nests deeper than a limit; never recurses, whatever it is given.

    Args:
        data: The text, valid or not. Of a broken text this tells whether a parser would get deeper
            than a few times the limit before it notices.
        limit: Objects and arrays inside each other.
    """
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    left = _STRING.sub(b"", data).translate(_AS_ONE_KIND, _NO_BRACKET)
    for _ in range(limit):
        # Each pass takes away the innermost level everywhere, at the speed of a copy.
        inner = left.replace(b"[]", b"")
        if not inner:
            return False
        if len(inner) == len(left):
            break
        left = inner
    else:
        return True
    # Brackets without a partner: what opens before the first that is wrong.
    opened = len(left) - len(left.lstrip(b"["))
    return opened > limit


async def put_blobs(
    session: AsyncSession, project_id: str, contents: Iterable[bytes], *, stream: str = "admin"
) -> None:
    """Stores contents under their digests; those already there are left as they are.

    They are written in the order of their digests, and after the lock of the audit stream that the
    change will be written to, so that two writers never wait for each other in a circle.
    """
    await lock_stream(session, project_id, stream)
    by_digest = {content_hash(content): content for content in contents}
    for digest in sorted(by_digest):
        content = by_digest[digest]
        await session.execute(
            insert(BlobRow)
            .values(project_id=project_id, digest=digest, size=len(content), content=content)
            .on_conflict_do_nothing()
        )


async def lock_stream(session: AsyncSession, project_id: str, stream: str) -> None:
    """Takes an audit stream's lock, which every writer of the registry takes before any other."""
    await session.execute(_LOCK_HEAD, {"project": project_id, "stream": stream})


async def read_content(session: AsyncSession, version: VersionRow) -> JsonValue:
    """The content of a version, checked against its digest.

    Raises:
        StoreError: If the stored bytes are not those that were saved.
    """
    content = await session.scalar(
        select(BlobRow.content).where(
            BlobRow.project_id == version.project_id, BlobRow.digest == version.blob_digest
        )
    )
    if content is None or content_hash(content) != version.blob_digest:
        raise StoreError(
            f"the content {version.blob_digest} of version {version.id} is damaged or missing.",
            remedy="Restore the database from a backup.",
        )
    return decode_content(content, version.media_type)


def _texts(value: JsonValue) -> Iterator[tuple[int, str]]:
    """Every text in a value (keys too) with its depth; containers count as empty texts."""
    waiting: list[tuple[int, JsonValue]] = [(0, value)]
    while waiting:
        depth, item = waiting.pop()
        if isinstance(item, str):
            yield depth, item
        elif isinstance(item, dict):
            yield depth + 1, "".join(item)
            waiting.extend((depth + 1, each) for each in item.values())
        elif isinstance(item, list | tuple):
            yield depth + 1, ""
            waiting.extend((depth + 1, each) for each in item)
