"""Files that a person names on the command line, read with errors in words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from instar_core.errors import UserError

__all__ = ["read_content_file", "read_json", "read_text"]


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        UserError: It does not exist, may not be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{str(path)!r} is not UTF-8 text (byte {error.start}).") from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: It cannot be read, or is something else; names line and column.
    """
    found = _parsed(path)
    if not isinstance(found, dict):
        raise UserError(f"{str(path)!r} holds a {type(found).__name__}; an object is needed.")
    return found


def read_content_file(kind: str, file: Path) -> Any:
    """The content of an artifact in a file, a folder of its kind's open format, or standard input.

    Raises:
        UserError: It cannot be read, is no JSON although it is called so, or is no such folder.
    """
    if str(file) == "-":
        try:
            return sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"standard input is not UTF-8 text (byte {error.start}).") from error
    if file.is_dir():
        from instar.registry.kinds import open_kind
        from instar_skills.disk import read_folder

        return open_kind(kind).read_files(read_folder(file))
    return _parsed(file) if file.suffix == ".json" else read_text(file)


def _parsed(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{str(path)!r} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}."
        ) from error
    except RecursionError as error:
        raise UserError(f"{str(path)!r} is nested too deeply to be read.") from error
