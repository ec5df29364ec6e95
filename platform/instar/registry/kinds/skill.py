"""Skill: a folder with a SKILL.md, in the open Agent Skills format."""

from __future__ import annotations

from collections.abc import Mapping

from instar.registry.kinds.base import BaseKind
from instar_core.base import JsonValue, short
from instar_core.errors import InvalidContent
from instar_core.kinds import KindLimits, TrainableComponent, did_you_mean, estimate_tokens
from instar_skills.content import (
    decode_files,
    document_of,
    encode_files,
    main_path,
)
from instar_skills.document import SkillDocument

__all__ = ["Skill"]

_LISTED_BUDGET, _BODY_BUDGET = 256, 5_000


class Skill(BaseKind):
    """A skill as an artifact: ``{"files": {path: text | {"base64": …}}}``."""

    name = "skill"
    title = "a folder with a SKILL.md: how to do something, read when it is needed"
    form = "tree"
    limits = KindLimits(max_bytes=5_000_000, max_depth=4)
    budget_tokens = _BODY_BUDGET

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two folders, one of them with a script."""
        header = "---\nname: triage\ndescription: Sorts tickets. Use it when one comes in.\n---\n"
        script = "#!/bin/sh\necho billing\n"
        return (
            {"files": {"SKILL.md": f"{header}# Triage\n\nRead the ticket, then name the queue.\n"}},
            {
                "files": {
                    "SKILL.md": f"{header}# Triage\n\nRun scripts/guess.sh and check its answer.\n",
                    "scripts/guess.sh": script,
                    "assets/logo.bin": {"base64": "AP8Q"},
                }
            },
        )

    def check(self, content: JsonValue) -> JsonValue:
        """The files by path; a SKILL.md that names what it is for is among them."""
        files = _files_of(content)
        document_of(files)
        return {"files": encode_files(files)}

    def problems(self, name: str, content: JsonValue) -> tuple[str, ...]:
        """What the specification refuses in it; ``name`` stands for the folder's name."""
        return _document(content, folder=name).problems

    def listing(self, name: str, description: str, content: JsonValue) -> str:
        """Name and the SKILL.md's own description, by which an agent chooses it."""
        return f"{name}: {' '.join(_document(content).description.split())}"

    def search_text(self, content: JsonValue) -> str:
        """Name, description and body of the SKILL.md."""
        document = _document(content)
        return f"{document.name}\n{document.description}\n{document.body}"

    def trained_text(self, content: JsonValue) -> str:
        """The body, which an agent reads when it uses the skill."""
        return _document(content).body

    def components(self, content: JsonValue) -> tuple[TrainableComponent, ...]:
        """Description and body, each within its own budget; scripts are not trained."""
        document = _document(content)
        return tuple(
            TrainableComponent(
                name=name, kind=self.name, tokens=estimate_tokens(text), budget_tokens=budget
            )
            for name, text, budget in (
                ("description", document.description, _LISTED_BUDGET),
                ("body", document.body, _BODY_BUDGET),
            )
        )

    def files(self, content: JsonValue) -> dict[str, bytes]:
        """The folder, byte for byte."""
        return _files_of(content)

    def read_files(self, files: Mapping[str, bytes]) -> JsonValue:
        """The skill that a folder is."""
        return self.check({"files": encode_files(files)})


def _document(content: JsonValue, *, folder: str = "") -> SkillDocument:
    files = _files_of(content)
    # Only the main file is needed; reading it does not depend on the others.
    return document_of({path: files[path] for path in (main_path(files),)}, folder=folder)


def _files_of(content: JsonValue) -> dict[str, bytes]:
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise InvalidContent(
            f"a skill is a folder, not {short(repr(content), 60)}.",
            remedy='Send {"files": {"SKILL.md": "---\\nname: …\\ndescription: …\\n---\\n…"}}.',
        )
    extra = set(content) - {"files"}
    if extra:
        raise InvalidContent(
            f"skill: {short(min(extra))!r} is no field of a skill.",
            remedy=did_you_mean(min(extra), ["files"], what="Its fields"),
        )
    files = content["files"]
    assert isinstance(files, dict)
    return decode_files(files)
