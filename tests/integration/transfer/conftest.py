"""A registry with something of everything, and the way out of one project and into another."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from instar.registry.transfer.exporting import ExportOptions, export_project
from instar.registry.transfer.importing import ImportOptions, import_package
from instar.registry.transfer.package import open_package
from instar.registry.transfer.report import ImportReport
from instar.store.agents import save_agent
from instar.store.artifacts import (
    ArtifactRef,
    Draft,
    create_version,
    describe_artifact,
    encode_content,
)
from instar.store.audit import Author
from instar.store.labels import ANY, LabelMove, delete_label, delete_version, move_label
from instar.store.session import Database
from instar.store.task_sets import create_task_set
from instar_core.base import JsonValue
from instar_core.candidates import Candidate, Component, Harness
from instar_core.tasks import Task, VerifierSpec
from instar_skills.archives import read_archive

PERSON = Author("person", "key:alice")
ADMIN = Author("person", "key:admin")


class Undo(Exception):
    """Rolls a dry run back."""


async def take_out(db: Database, project_id: str, options: ExportOptions | None = None) -> bytes:
    """A project as a tar.gz."""
    target = io.BytesIO()
    async with db.snapshot(project_id) as session:
        await export_project(session, project_id, target, options or ExportOptions())
    return target.getvalue()


async def bring_in(
    db: Database, project_id: str, data: bytes, options: ImportOptions | None = None
) -> ImportReport:
    """A tar.gz into a project."""
    package = open_package(read_archive(data))
    options = options or ImportOptions()
    report: ImportReport | None = None
    try:
        async with db.transaction(project_id) as session:
            report = await import_package(session, project_id, package, ADMIN, options)
            if options.dry_run:
                raise Undo
    except Undo:
        assert options.dry_run
    assert report is not None
    return report


def manifest_of(data: bytes) -> dict[str, Any]:
    """The manifest of an export without what may differ: the moment and the project."""
    found: dict[str, Any] = json.loads(read_archive(data)["manifest.json"])
    return {key: value for key, value in found.items() if key not in ("moment", "project")}


def a_task(number: int, split: str = "train") -> Task:
    """A small task."""
    return Task(
        id=f"t{number}",
        input=f"Is {number} even? 偶数ですか",
        split=split,  # type: ignore[arg-type]
        group=f"g{number}",
        verifier=VerifierSpec(name="exact", config={"answer": "yes"}),
        environment={"z": 1, "a": [number]},
    )


def an_agent(text: str) -> Candidate:
    """An agent of three components."""
    return Candidate(
        components={
            "instructions": Component(kind="instructions", content=text),
            "lessons": Component(
                kind="lessons", content={"entries": [{"id": "l1", "text": f"learned {text}"}]}
            ),
            "demonstrations": Component(
                kind="demonstrations",
                content={"pool": [], "retrieval": "fixed", "k": 0, "order": []},
            ),
        },
        harness=Harness(model="scripted/tell"),
    )


async def save(
    session: Any, project_id: str, kind: str, name: str, content: JsonValue, **more: Any
) -> Any:
    """One version of a content."""
    data, media_type = encode_content(content)
    draft = Draft(data, media_type, more.pop("author", PERSON), **more)
    return await create_version(session, ArtifactRef(project_id, kind, name), draft)


async def fill(db: Database, project_id: str) -> None:
    """Agents, components, a task set, skills, labels with history, archived things, merges."""
    async with db.transaction(project_id) as session:
        for text in ("one", "two", "three"):
            candidate = an_agent(text)
            await save_agent(
                session, project_id, "desk", candidate, author=PERSON, reason=f"say {text}"
            )
        ref = ArtifactRef(project_id, "agent", "desk")
        for number in (1, 3, 2):
            await move_label(
                session, ref, LabelMove("production", number, ANY, "try", role="admin"), PERSON
            )
        await move_label(session, ref, LabelMove("staging", 1, ANY, "gone soon"), PERSON)
        await delete_label(session, ref, "staging", PERSON)
        tasks = [a_task(n) for n in range(3)] + [a_task(3, "validation")]
        tasks += [a_task(n, "sealed") for n in range(4, 9)]
        await create_task_set(
            session, project_id, "even", tasks, author=PERSON, bindings={"d": "t"}
        )
        first = await save(session, project_id, "prompt", "greeting", "Hello\r\n世界\n")
        second = await save(session, project_id, "prompt", "greeting", "Hello", parents=[first.id])
        other = await save(session, project_id, "prompt", "copy-of", "Hello", base=first.id)
        await save(
            session,
            project_id,
            "prompt",
            "greeting",
            "Hi",
            parents=[second.id, other.id],
            evidence={"score": [0.25, {"b": 1, "a": 2}]},
        )
        prompt = ArtifactRef(project_id, "prompt", "greeting")
        await describe_artifact(session, prompt, PERSON, description="says hello", tags=["x", "y"])
        await delete_version(session, prompt, 2, PERSON)
        await save(
            session,
            project_id,
            "skill",
            "excel-merge",
            {
                "files": {
                    "SKILL.md": "---\nname: excel-merge\ndescription: Merges: all\n---\nDo it.\r\n",
                    "assets/logo.bin": {"base64": "AP8Q"},
                    "scripts/合并.py": "print('x')\n",
                }
            },
        )


@pytest.fixture
def filled(database: Any) -> Callable[[], Any]:
    """The database with a filled project."""
    database.run(lambda db: fill(db, database.project_id))
    return database  # type: ignore[no-any-return]
