"""Contents: a stored content as files in its open format, and back, with the proof that it is one
and the same: where the files alone do not give the exact bytes, the bytes go along beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from instar.registry.kinds import open_kind
from instar.store.artifacts import JSON, TEXT, decode_content, encode_content
from instar_core.base import JsonValue, short
from instar_core.errors import InstarError, InvalidContent
from instar_core.kinds import check_content
from instar_skills.document import name_problem
from instar_skills.paths import check_paths

__all__ = [
    "OWN_STORE",
    "OpenForm",
    "attachments_of",
    "check_stored",
    "decode_stored",
    "open_form",
    "parse_json",
    "read_open_form",
    "search_words",
]

OWN_STORE = frozenset({"agent", "task_set"})
"""Kinds whose stored bytes are a bundle of references, not the content that people see."""
_TREE_NAME = frozenset({"skill"})
_ADAPTER_FILES = frozenset({"adapter_config.json", "instar_adapter.json"})


class OpenForm(NamedTuple):
    """A content as files; ``exact`` says whether they alone give the stored bytes again."""

    files: dict[str, bytes]
    exact: bool


def open_form(kind: str, name: str, data: bytes, media_type: str) -> OpenForm:
    """The open format of a stored content; no files where its kind or form is unknown here.

    Args:
        kind: The artifact's kind.
        name: The artifact's name: the folder of a skill is called so.
        data: The stored bytes.
        media_type: What they are.
    """
    try:
        value = decode_stored(data, media_type)
        files = _files_of(kind, name, value)
        check_paths(files)
    except (InstarError, ValueError, KeyError, AssertionError, TypeError, AttributeError):
        # Whatever an older version stored that no kind takes today: its bytes go out as they are.
        return OpenForm({}, False)
    if kind in OWN_STORE:
        return OpenForm(files, False)
    try:
        exact = read_open_form(kind, files) == (data, media_type)
    except InstarError:
        exact = False
    return OpenForm(files, exact)


def read_open_form(kind: str, files: Mapping[str, bytes]) -> tuple[bytes, str]:
    """Bytes and media type of the content that files in the open format hold.

    Raises:
        InvalidContent: If they hold no content of that kind.
        NotFoundError: If the kind is unknown.
    """
    if kind in _TREE_NAME:
        files = {path.partition("/")[2]: data for path, data in files.items()}
    elif kind == "adapter":
        # The weights beside them are named there by their hash; not all of them need be here.
        files = {path: data for path, data in files.items() if path in _ADAPTER_FILES}
    value = open_kind(kind).read_files(files)
    return encode_content(value)


def decode_stored(data: bytes, media_type: str) -> JsonValue:
    """The value of stored bytes, whoever stored them.

    Raises:
        InvalidContent: If they are not what their media type says, or are of another.
    """
    if media_type not in (TEXT, JSON):
        raise InvalidContent(
            f"the media type {short(media_type, 60)!r} is unknown; known are {TEXT!r} and {JSON!r}."
        )
    try:
        if media_type == JSON:
            return parse_json(data, "the content")
        return decode_content(data, media_type)
    except UnicodeDecodeError as error:
        raise InvalidContent(f"the content is no valid UTF-8 (byte {error.start}).") from error


def parse_json(data: bytes, what: str) -> JsonValue:
    """The JSON value in bytes; nesting without end and doubled keys are refused.

    Raises:
        InvalidContent: If it is none.
    """

    def once(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key is given twice in one object")
        return found

    def refuse(word: str) -> JsonValue:
        raise ValueError(f"{word} is not JSON")

    try:
        value: JsonValue = json.loads(data, object_pairs_hook=once, parse_constant=refuse)
    except RecursionError as error:
        raise InvalidContent(f"{what} is nested too deeply to be read.") from error
    except ValueError as error:
        raise InvalidContent(f"{what} is no valid JSON: {error}.") from error
    return value


def check_stored(kind: str, data: bytes, media_type: str) -> JsonValue:
    """The value of bytes that an import brings, if the kind takes it.

    Raises:
        InvalidContent: If it does not; names the place.
        NotFoundError: If the kind is unknown.
    """
    value = decode_stored(data, media_type)
    known = open_kind(kind)
    if kind not in OWN_STORE:
        check_content(known, value)
    return value


def attachments_of(kind: str, value: JsonValue) -> dict[str, str]:
    """Path → sha256 of files that a content names by their hash: the weights of an adapter."""
    files = value.get("files") if kind == "adapter" and isinstance(value, dict) else None
    if not isinstance(files, dict):
        return {}
    found: dict[str, str] = {}
    for path, one in files.items():
        digest = one.get("sha256") if isinstance(one, dict) else None
        if isinstance(digest, str):
            found[path] = digest
    return found


def search_words(kind: str, data: bytes, media_type: str) -> str:
    """The words by which a content is found; empty where its kind makes none of it."""
    if kind in OWN_STORE:
        return ""
    try:
        return open_kind(kind).search_text(decode_stored(data, media_type))
    except (InstarError, ValueError, KeyError, AssertionError):
        return ""


def _files_of(kind: str, name: str, value: JsonValue) -> dict[str, bytes]:
    known = open_kind(kind)
    if kind in OWN_STORE:
        return {}
    files = known.files(check_content(known, value))
    if kind in _TREE_NAME:
        folder = name if name_problem(name) is None else kind
        return {f"{folder}/{path}": data for path, data in files.items()}
    return files
