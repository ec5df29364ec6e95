"""Skill folders in and out: a report on what comes in, a strict copy of what goes out.

What comes in is kept byte for byte, however odd; the report says what a strict reader of the format
would refuse. What goes out is the same bytes, or, where asked for, a copy that every reader takes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping

from instar_core.base import Frozen, JsonValue
from instar_core.errors import InvalidContent
from instar_skills.content import MAIN_FILE, document_of, main_path, script_hashes
from instar_skills.document import SkillDocument, name_problem, split_header
from instar_skills.paths import check_paths

__all__ = ["SkillReport", "check_skill", "folder_name", "plain_name", "strict_copy"]

_NOT_NAME = re.compile(r"[^\w]+|_+")
_MAX_NAME = 64


class SkillReport(Frozen):
    """What a skill folder is, what a strict reader would refuse, and what in it could be run."""

    name: str
    description: str
    strict: bool
    problems: tuple[str, ...] = ()
    scripts: dict[str, str] = {}
    files: int = 0
    bytes: int = 0


def check_skill(
    files: Mapping[str, bytes], *, folder: str = "", strict: bool = False
) -> SkillReport:
    """The report on a skill folder; its bytes are never changed.

    Args:
        files: Relative path → bytes.
        folder: Name of the folder, which should be the skill's; empty where unknown.
        strict: Refuse what a strict reader would.

    Raises:
        InvalidContent: If no reader could use it (no SKILL.md, no header, no description, a path
            that leads out of the folder), or it is not strict and has to be; lists every objection.
    """
    check_paths(files)
    document = document_of(files, folder=folder)
    if strict and document.problems:
        raise InvalidContent(
            f"the skill {document.name or folder!r} is not in the strict format: "
            f"{'; '.join(document.problems)}.",
            remedy="Correct them, or leave 'strict' out.",
        )
    return SkillReport(
        name=document.name or folder,
        description=document.description,
        strict=not document.problems,
        problems=document.problems,
        scripts=script_hashes(files),
        files=len(files),
        bytes=sum(map(len, files.values())),
    )


def folder_name(files: Mapping[str, bytes], fallback: str) -> str:
    """The name of the folder that the skill's own name asks for, which may differ from where it was
    found; ``fallback``, made a name, where it has none that can be one."""
    name = document_of(files).name
    return name if name_problem(name) is None else plain_name(fallback)


def strict_copy(
    files: Mapping[str, bytes], fallback: str, stamps: Mapping[str, str] | None = None
) -> dict[str, bytes]:
    """The folder as every reader takes it: the same bytes where nothing had to change.

    Otherwise the header of SKILL.md is written anew: fields that the format does not know become
    texts in ``metadata``, the name is made to fit. The body and all other files stay as they are.

    Args:
        files: Relative path → bytes.
        fallback: The name to make one from, where the skill's own cannot be mended.
        stamps: Entries to add to ``metadata``, such as ``instar.version``.

    Raises:
        InvalidContent: If a field is longer than the format allows, which nothing can mend, or the
            skill cannot be read at all.
    """
    check_paths(files)
    document = document_of(files)
    wanted = {key: value for key, value in (stamps or {}).items() if value}
    if not document.problems and not wanted:
        return dict(files)
    path = main_path(files)
    copy = {name: data for name, data in files.items() if name != path}
    copy[MAIN_FILE] = _write(document, files[path], fallback, wanted)
    left = [words for words in document_of(copy).problems if "advised" not in words]
    if left:
        raise InvalidContent(
            f"the skill {document.name or fallback!r} cannot be put into the strict format: "
            f"{'; '.join(left)}.",
            remedy="Shorten what is too long and save a new version.",
        )
    return dict(sorted(copy.items()))


def _write(
    document: SkillDocument, original: bytes, fallback: str, stamps: Mapping[str, str]
) -> bytes:
    name = document.name
    if name_problem(name) is not None:
        name = plain_name(name or fallback)
    metadata = dict(document.metadata)
    for key, value in document.extra.items():
        metadata.setdefault(key, _as_text(value))
    metadata.update(stamps)
    lines = [f"name: {_quoted(name)}", f"description: {_quoted(document.description)}"]
    for key, value in (
        ("license", document.license),
        ("compatibility", document.compatibility),
        ("allowed-tools", document.allowed_tools),
    ):
        if value:
            lines.append(f"{key}: {_quoted(value)}")
    if metadata:
        lines.append("metadata:")
        lines += [f"  {_quoted(key)}: {_quoted(metadata[key])}" for key in sorted(metadata)]
    parts = split_header(original.decode("utf-8"))
    assert parts is not None, "a document that was read has a header"
    return ("---\n" + "\n".join(lines) + "\n---\n" + parts[1]).encode("utf-8")


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _quoted(text: str) -> str:
    """A text as YAML reads it back unchanged: JSON's own quoting, which YAML understands."""
    return json.dumps(text, ensure_ascii=False)


def plain_name(text: str, fallback: str = "skill") -> str:
    """A name made from any text: lower-case letters and digits, single hyphens between."""
    plain = unicodedata.normalize("NFKC", text).lower()
    made = re.sub(r"-{2,}", "-", _NOT_NAME.sub("-", plain)).strip("-")[:_MAX_NAME].strip("-")
    return made if name_problem(made) is None else fallback
