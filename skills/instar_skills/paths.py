"""Paths: names of files that come from elsewhere, let through only where every system reads them
the same way.

A path is refused for what it could become somewhere: a way out of its folder, a device, a second
name for another file. What is refused is never repaired, because a repaired path is a guess.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from instar_core.base import short
from instar_core.errors import InvalidContent

__all__ = ["MAX_DEPTH", "MAX_PART_BYTES", "MAX_PATH_BYTES", "check_path", "check_paths"]

MAX_PART_BYTES = 200
MAX_PATH_BYTES = 1024
MAX_DEPTH = 32

_DEVICES = re.compile(r"(?i)(con|prn|aux|nul|clock\$|conin\$|conout\$|com[0-9]|lpt[0-9])([.: ].*)?")
_DRIVE = re.compile(r"[A-Za-z]:")
# Characters that some file system or some reader takes for a separator, a stream or a wildcard.
_FORBIDDEN = frozenset('\\:*?"<>|\u2044\u2215\u29f8\u29f5\u2216\ufe68\uff0f\uff3c')
# Control, format (zero width, direction), surrogate, line and paragraph separators.
_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_VERSION_CONTROL = frozenset({".git", ".hg", ".svn"})


def check_path(path: str) -> str:
    """The path itself, if it is a plain relative path on every system.

    Args:
        path: Parts separated by ``/``.

    Raises:
        InvalidContent: If it is absolute, climbs (``..``), names a drive, a device or a version
            control folder, holds a control or look-alike separator character, ends a part in a dot
            or a space, or is too long or too deep.
    """
    why = _fault(path)
    if why:
        raise InvalidContent(
            f"{short(repr(path), 120)} cannot be the path of a file: {why}.",
            remedy="Use a relative path of plain names separated by '/'.",
        )
    return path


def check_paths(paths: Iterable[str]) -> list[str]:
    """The paths in order, if each is plain and no two of them could be the same file somewhere.

    Raises:
        InvalidContent: As :func:`check_path`; also if two are equal, differ only in case or in the
            Unicode form, or one is a folder of another.
    """
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    checked: list[str] = []
    for path in paths:
        key = _folded(check_path(path))
        if key in seen:
            same = "is given twice" if seen[key] == path else f"is {seen[key]!r} on some systems"
            raise _clash(path, same)
        seen[key] = path
        checked.append(path)
        parts = path.split("/")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            first = folders.setdefault(_folded(folder), folder)
            if first != folder:
                raise _clash(path, f"lies in a folder that is {first!r} on some systems")
    for key, folder in folders.items():
        if key in seen:
            raise _clash(seen[key], f"is also a folder, {folder!r}")
    return checked


def _clash(path: str, why: str) -> InvalidContent:
    return InvalidContent(
        f"the path {short(repr(path), 120)} {why}.", remedy="Give every file a name of its own."
    )


def _folded(path: str) -> str:
    """What a file system that ignores case and Unicode form makes of a path."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


def _fault(path: str) -> str:
    """Why a path is refused; empty if it is not."""
    try:
        size = len(path.encode("utf-8"))
    except UnicodeEncodeError:
        return "it is no Unicode text"
    if not path:
        return "it is empty"
    if size > MAX_PATH_BYTES:
        return f"it has {size} bytes, more than {MAX_PATH_BYTES}"
    if path.startswith("/"):
        return "it is absolute"
    if _DRIVE.match(path):
        return "it names a drive"
    parts = path.split("/")
    if len(parts) > MAX_DEPTH:
        return f"it is {len(parts)} folders deep, more than {MAX_DEPTH}"
    return next(filter(None, map(_fault_of_part, parts)), "")


def _fault_of_part(part: str) -> str:
    """Why one name in a path is refused, as it is written or as it looks after NFKC."""
    bad = next(
        (one for one in part if one in _FORBIDDEN or unicodedata.category(one) in _CATEGORIES), None
    )
    if bad is not None:
        return f"it holds the character U+{ord(bad):04X}"
    if len(part.encode()) > MAX_PART_BYTES:
        return f"a name in it has more than {MAX_PART_BYTES} bytes"
    for form in (part, unicodedata.normalize("NFKC", part)):
        if form in ("", "."):
            return "it has an empty part"
        if form == ".." or "/" in form or "\\" in form:
            return "it leads out of its folder"
        if form[-1] in ". " or form[0] == " ":
            return "a name in it begins or ends with a space, or ends with a dot"
        if _DEVICES.fullmatch(form):
            return f"{part!r} is the name of a device on some systems"
        if form.casefold() in _VERSION_CONTROL:
            return f"{part!r} is a folder of version control"
    return ""
