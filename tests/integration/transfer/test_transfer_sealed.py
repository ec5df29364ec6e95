"""Sealed tasks: out only by who owns the database, in by whoever may import, read by neither."""

from __future__ import annotations

import json
from typing import Any

import pytest

from instar.evolution.schemas import EvolutionSpec
from instar.evolution.service import create_quote
from instar.registry.transfer.package import open_package
from instar.registry.transfer.sealed import add_sealed
from instar.settings import Settings
from instar.store.audit import SYSTEM, first_broken_link
from instar.store.projects import create_project
from instar.store.sealed_export import SealedContent, read_sealed_contents
from instar.store.session import Database
from instar.store.task_sets import count_sealed_missing, read_task_set
from instar_core.errors import InvalidContent, StoreError, UserError
from instar_core.evolution import AcceptanceConfig
from instar_skills.archives import pack_tar, read_archive
from tests.integration.transfer.conftest import a_task, bring_in, manifest_of, take_out

pytestmark = pytest.mark.slow


async def owned(database: Any, project_id: str) -> list[SealedContent]:
    """The sealed contents, read with the owner's login."""
    db = Database(database.owner_url)
    try:
        async with db.transaction(project_id) as session:
            return await read_sealed_contents(session, project_id, SYSTEM)
    finally:
        await db.close()


async def missing(db: Database, project_id: str) -> int:
    """How many sealed tasks have no content, as the application is told."""
    async with db.transaction(project_id) as session:
        found = await read_task_set(session, project_id, "even")
        return await count_sealed_missing(session, found.id)


def test_sealed_contents_stay_out_and_are_counted(filled: Any) -> None:
    data = filled.run(lambda db: take_out(db, filled.project_id))
    files = read_archive(data)
    manifest = json.loads(files["manifest.json"])
    assert manifest["sealed"] == {"included": False, "tasks": 5}
    for number in range(4, 9):
        needle = f"Is {number} even?".encode()
        assert not any(needle in content for content in files.values())


def test_the_application_cannot_read_them_out(filled: Any) -> None:
    async def go(db: Database) -> None:
        async with db.transaction(filled.project_id) as session:
            await read_sealed_contents(session, filled.project_id, SYSTEM)

    with pytest.raises(StoreError):
        filled.run(go)


def test_the_owner_adds_them_and_they_arrive(filled: Any) -> None:
    async def go(db: Database) -> None:
        project = filled.project_id
        plain = await take_out(db, project)
        contents = await owned(filled, project)
        assert [one.task_id for one in contents] == [f"t{n}" for n in range(4, 9)]
        full = pack_tar(add_sealed(read_archive(plain), contents))
        assert open_package(read_archive(full)).manifest.sealed.included
        other = await create_project(db, "other")
        # First without them: the set is there and says what it lacks.
        report = await bring_in(db, other, plain)
        assert report.sealed == 0 and any("sealed" in note for note in report.notes)
        assert await owned(filled, other) == []
        assert await missing(db, other) == 5
        # Then with them: only what was missing is added.
        report = await bring_in(db, other, full)
        assert (report.versions, report.sealed) == (0, 5)
        assert await missing(db, other) == 0
        assert await owned(filled, other) == contents
        assert (await bring_in(db, other, full)).nothing
        again = add_sealed(read_archive(await take_out(db, other)), await owned(filled, other))
        assert manifest_of(pack_tar(again)) == manifest_of(full)
        # A project that starts with the full export has them at once.
        third = await create_project(db, "third")
        assert (await bring_in(db, third, full)).sealed == 5
        assert await owned(filled, third) == contents
        async with db.transaction(project) as session:
            assert await first_broken_link(session, project) is None
        actions = filled.query(
            "select count(*) from instar.audit_event where subject = 'sealed tasks'"
        )
        assert actions[0][0] == 5

    filled.run(go)


def test_a_sealed_task_that_was_exchanged_is_refused(filled: Any) -> None:
    async def go(db: Database) -> None:
        plain = read_archive(await take_out(db, filled.project_id))
        contents = await owned(filled, filled.project_id)
        easy = {**a_task(4, "sealed").model_dump(mode="json"), "input": "Say yes."}
        contents[0] = contents[0]._replace(content=easy)
        with pytest.raises(InvalidContent, match="not the one"):
            open_package(add_sealed(plain, contents))

    filled.run(go)


def test_the_owner_sees_one_project_at_a_time(filled: Any) -> None:
    async def go(db: Database) -> None:
        other = await create_project(db, "other")
        assert await owned(filled, other) == []

    filled.run(go)


def test_a_run_on_tasks_that_came_without_sealed_contents_is_refused(filled: Any) -> None:
    async def go(db: Database) -> None:
        data = await take_out(db, filled.project_id)
        other = await create_project(db, "other")
        await bring_in(db, other, data)
        spec = EvolutionSpec(
            agent="desk",
            task_set="even",
            evolver="bootstrap",
            acceptance=AcceptanceConfig(min_pairs=5, max_pairs=5),
        )
        with pytest.raises(UserError, match="without content"):
            await create_quote(db, other, spec, settings=Settings())

    filled.run(go)
