"""Skill folders as content: paths and texts that can be stored, compared and written out again."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from instar_core.base import JsonValue, content_hash, short
from instar_core.errors import InvalidContent
from instar_core.kinds import did_you_mean
from instar_skills.document import SkillDocument, read_document
from instar_skills.paths import check_paths

__all__ = [
    "MAIN_FILE",
    "decode_files",
    "document_of",
    "encode_files",
    "main_path",
    "script_hashes",
]

MAIN_FILE = "SKILL.md"
MAX_FILES = 1_000


def decode_files(files: Mapping[str, JsonValue]) -> dict[str, bytes]:
    """Path → bytes of a content's files, whose values are texts or ``{"base64": …}``.

    Raises:
        InvalidContent: If a path is unsafe (see :func:`check_paths`), there are too many files,
            or a value is neither.
    """
    if len(files) > MAX_FILES:
        raise InvalidContent(f"a folder has {len(files):,} files; the limit is {MAX_FILES:,}.")
    return {path: _bytes_of(path, files[path]) for path in check_paths(sorted(files))}


def encode_files(files: Mapping[str, bytes]) -> dict[str, JsonValue]:
    """The canonical values of files: a text where the bytes are UTF-8 without NUL, else base64."""
    encoded: dict[str, JsonValue] = {}
    for path in sorted(files):
        data = files[path]
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = "\x00"
        if "\x00" in text:
            encoded[path] = {"base64": base64.b64encode(data).decode("ascii")}
        else:
            encoded[path] = text
    return encoded


def document_of(files: Mapping[str, bytes], *, folder: str = "") -> SkillDocument:
    """The SKILL.md of a folder, read leniently; a lower-case ``skill.md`` is an objection.

    Raises:
        InvalidContent: If there is none, or it cannot be read.
    """
    path = main_path(files)
    try:
        text = files[path].decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidContent(
            f"{path} is no valid UTF-8 (byte {error.start}).", remedy="Save it as UTF-8."
        ) from error
    document = read_document(text, folder=folder)
    if path == MAIN_FILE:
        return document
    misnamed = f"its main file is called {path!r}, not {MAIN_FILE!r}"
    return document.model_copy(update={"problems": (*document.problems, misnamed)})


def main_path(files: Mapping[str, bytes]) -> str:
    """The path of the SKILL.md.

    Raises:
        InvalidContent: If there is none at the top of the folder.
    """
    for path in (MAIN_FILE, MAIN_FILE.lower()):
        if path in files:
            return path
    raise InvalidContent(
        f"a skill needs the file {MAIN_FILE!r} at its top.",
        remedy=did_you_mean(MAIN_FILE, files, what="Its files"),
    )


def script_hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    """Path → sha256 of what could be run: files under ``scripts/`` and those with a ``#!`` line."""
    return {
        path: content_hash(data)
        for path, data in sorted(files.items())
        if path.startswith("scripts/") or data.startswith(b"#!")
    }


def _bytes_of(path: str, value: JsonValue) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidContent(f"the file {path!r} is no valid base64: {error}.") from error
    raise InvalidContent(
        f"the file {path!r} is {short(repr(value), 60)}.",
        remedy='A file is a text, or {"base64": "…"} for bytes that are none.',
    )
